"""What a plan of faults has shown, read from the record: did everything happen, and did anything count twice?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from splitrelay.chaos.fault_kinds import ENDS, KINDS, Fault
from splitrelay.chaos.fault_scheduler import InjectedFault, get_visit, is_recorded
from splitrelay.deploy.event_record import read_events, standing_events

Event = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """Everything that must be empty or nought after a plan."""

    missed: tuple[str, ...]  # faults that never happened
    unrecorded: tuple[str, ...]  # faults that left no event
    committed_twice: int  # visits
    steps_twice: int  # visits whose applied steps are not those that were granted
    fences_back: int  # fences that did not grow

    @property
    def sound(self) -> bool:
        """Nothing to find."""
        return not (self.missed or self.unrecorded or self.committed_twice or self.steps_twice or self.fences_back)


def found(
    waiting: Sequence[Fault],
    happened: Sequence[InjectedFault],
    events: Sequence[Event],
    K: Mapping[int, int],
    witnessed: Mapping[Fault, bool],
    whole: bool = False,
) -> Findings:
    """`K`: the steps granted, by fence, as seen on the way; with the `whole` model at the client none is made here."""
    commits = [event for event in standing_events(events) if event["event"] == "committed"]
    visits = Counter(get_visit(event) for event in commits)
    wrong = [event for event in commits if event["steps"] != (0 if whole else K.get(event["fence"]))]
    fences = [event["fence"] for event in events if event["event"] == "leased"]
    return Findings(
        tuple([str(fault) for fault in waiting] + [str(fault) for fault, seen in witnessed.items() if not seen]),
        tuple(str(one.fault) for one in happened if not _accounted_for(one, happened, events)),
        sum(number > 1 for number in visits.values()),
        len(wrong),
        sum(after <= before for before, after in pairwise(fences)),
    )


def _accounted_for(one: InjectedFault, happened: Sequence[InjectedFault], events: Sequence[Event]) -> bool:
    return is_recorded(one, events) or hidden(one, happened, events) or too_late(one, events)


def too_late(one: InjectedFault, events: Sequence[Event]) -> bool:
    """Whether a client was lost when its last word of all had gone through: the run was over before it was missed."""
    after = [
        event["event"] for event in events[one.before :] if event.get("client", one.fault.client) == one.fault.client
    ]
    return "gone" in KINDS[one.fault.kind].events and after in (["committed", "closing"], ["closing"])


def hidden(one: InjectedFault, happened: Sequence[InjectedFault], events: Sequence[Event]) -> bool:
    """Whether the server was gone before it could notice: until then the fault's client had got nowhere."""
    ends = [
        other.before for other in happened if other.fault.kind in ENDS and other.before >= one.before and other != one
    ]
    between = events[one.before : min(ends, default=one.before)]
    moved = any(event["event"] == "committed" and event["client"] == one.fault.client for event in between)
    return bool(ends) and not moved


def missed(m: int, events: Sequence[Event]) -> bool:
    """Whether client m has stayed away for long enough: a server begun anew has nothing to take back from it."""
    kinds = [event["event"] for event in events if event.get("client", m) == m]
    return bool({"expired", "skipped", "listening"} & set(kinds))


def read_record(file: Path) -> list[Event]:
    """The server's record; a line that was not written to its end does not count."""
    return read_events(file)


def list_skipped_visits(events: Sequence[Event]) -> frozenset[tuple[int, int, int]]:
    """Visits that were left out: round, client, occurrence."""
    return frozenset(get_visit(event) for event in standing_events(events) if event["event"] == "skipped")
