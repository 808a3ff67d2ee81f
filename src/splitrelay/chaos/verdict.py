"""Compare the server's event record with a fault plan: did every fault happen, and did anything count twice?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from splitrelay.chaos.fault_kinds import KINDS, SERVER_STOPS, Fault
from splitrelay.chaos.fault_scheduler import InjectedFault, is_recorded
from splitrelay.deploy.events import Event, get_visit, list_valid_events


@dataclass(frozen=True)
class Findings:
    """What went wrong in a plan; everything is empty or 0 if nothing did.

    Attributes:
        missing: Faults that did not happen or had no effect.
        unrecorded: Faults that left no event in the record.
        double_commits: Number of visits that were committed more than once.
        wrong_steps: Number of visits whose applied steps differ from the K of their lease.
        fence_errors: Number of fences that are not larger than the one before.
    """

    missing: tuple[str, ...]
    unrecorded: tuple[str, ...]
    double_commits: int
    wrong_steps: int
    fence_errors: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.missing or self.unrecorded or self.double_commits or self.wrong_steps or self.fence_errors)


def compute_findings(
    waiting: Sequence[Fault],
    injected: Sequence[InjectedFault],
    events: Sequence[Event],
    K: Mapping[int, int],
    observed: Mapping[Fault, bool],
    whole: bool = False,
) -> Findings:
    """Compare the events with the plan.

    Args:
        waiting: Faults that have not happened.
        injected: Faults that have happened.
        events: All events of the server.
        K: The number of steps of each lease, by fence, as the message proxies saw it.
        observed: For faults that the server cannot notice: whether the rehearsal saw their effect.
        whole: Whether the client has the whole model; then the server applies no steps.
    """
    commits = [event for event in list_valid_events(events) if event["event"] == "committed"]
    visits = Counter(get_visit(event) for event in commits)
    wrong = [event for event in commits if event["steps"] != (0 if whole else K.get(event["fence"]))]
    fences = [event["fence"] for event in events if event["event"] == "leased"]
    without_effect = [fault for fault, seen in observed.items() if not seen]
    unrecorded = [
        one
        for one in injected
        if not (
            is_recorded(one, events)
            or is_hidden_by_restart(one, injected, events)
            or is_after_last_message(one, events)
        )
    ]
    return Findings(
        tuple(str(fault) for fault in [*waiting, *without_effect]),
        tuple(str(one.fault) for one in unrecorded),
        sum(number > 1 for number in visits.values()),
        len(wrong),
        sum(after <= before for before, after in pairwise(fences)),
    )


def is_after_last_message(one: InjectedFault, events: Sequence[Event]) -> bool:
    """Return True if the client disconnected after its last message, so the server never noticed."""
    m = one.fault.client
    later = [event["event"] for event in events[one.event_count :] if event.get("client", m) == m]
    return "gone" in KINDS[one.fault.kind].events and later in (["committed", "closing"], ["closing"])


def is_hidden_by_restart(one: InjectedFault, injected: Sequence[InjectedFault], events: Sequence[Event]) -> bool:
    """Return True if the server ended before the client made progress, so the server could not notice the fault."""
    stops = [
        other.event_count
        for other in injected
        if other.fault.kind in SERVER_STOPS and other.event_count >= one.event_count and other != one
    ]
    between = events[one.event_count : min(stops, default=one.event_count)]
    committed = any(event["event"] == "committed" and event["client"] == one.fault.client for event in between)
    return bool(stops) and not committed


def is_absence_noticed(m: int, events: Sequence[Event]) -> bool:
    """Return True if the server has cancelled or skipped the visit of client m, or was restarted."""
    names = {event["event"] for event in events if event.get("client", m) == m}
    return bool({"expired", "skipped", "listening"} & names)
