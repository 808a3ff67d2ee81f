"""Reports of a run that waits: for whom, since when, why, and what the operator can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.server_visit import Policy, VisitLease
from splitrelay.network import limits
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.runs.client_records import make_printable

CHECK = 1.0  # seconds between two checks of one reporter
MANY = 10  # waits that are reported one by one
SELDOM = 3600.0  # seconds between two reports of a wait that goes on and on


@dataclass(frozen=True)
class Wait:
    """The run cannot go on before client m (or the evaluator, or the fed server) does something.

    `kind` is one of never-joined, away, unable, quarantined, failed, no-step, no-answer and no-deposit. `since` is a
    time of the monotonic clock.
    """

    m: int
    kind: str
    since: float
    why: str
    remedy: str

    @property
    def who(self) -> str:
        """The name in reports."""
        return get_client_name(self.m)

    def document(self, now: float, after: float) -> dict[str, Any]:
        """Return the wait as `status` gives it; it counts as stalled after so many seconds."""
        waited = max(now - self.since, 0.0)
        about = {"who": self.who, "client": self.m, "kind": self.kind, "since": round(waited, 1)}
        return {**about, "why": self.why, "remedy": self.remedy, "stalled": waited >= after}


class Waiting(Protocol):
    """Something that is asked, and perhaps not answered."""

    def wait(self, now: float) -> Wait | None:
        """Return what is waited for, if anything is."""
        ...


class StallReporter:
    """Reports waits that last longer than `after` seconds, each again when it has lasted twice as long."""

    def __init__(self, note: Callable[..., None], say: Callable[[str], None], after: float) -> None:
        self.note, self.say, self.after = note, say, after
        self._checked = float("-inf")
        self._next: dict[tuple[int, str], float] = {}  # when a wait that was reported is reported again

    def check(self, now: float, find: Callable[[float], Sequence[Wait]]) -> None:
        """Report what `find` returns; at most once in CHECK seconds, as this is called for every message."""
        if now - self._checked < min(CHECK, max(self.after, 0.01)):
            return
        self._checked = now
        stalled = {(wait.m, wait.kind): wait for wait in find(now) if now - wait.since >= self.after}
        for m, kind in set(self._next) - set(stalled):
            del self._next[m, kind]
            self.note("stall-over", client=m, kind=kind)
        for key, wait in list(stalled.items())[:MANY]:  # there may be thousands of clients
            if now >= self._next.get(key, now):
                self._next[key] = now + min(max(now - wait.since, CHECK), SELDOM)
                self._report(wait, now - wait.since, max(len(stalled) - MANY, 0))

    def _report(self, wait: Wait, waited: float, more: int) -> None:
        facts = {"who": wait.who, "kind": wait.kind, "since": round(waited, 1), "why": wait.why, "hint": wait.remedy}
        self.note("stalled", client=wait.m, **facts, more=more)
        others = f" and {more} others that are not listed" if more else ""
        self.say(f"the run has waited {waited:.0f} s for {wait.who}{others}: {wait.why}. {wait.remedy}")


def find_visit_wait(
    lease: VisitLease, here: bool, seen: bool, policy: Policy, quarantine: Quarantine, slow: float, now: float
) -> Wait | None:
    """Return what a visit waits for; None where it goes on. A connected client may take `slow` seconds for a step."""
    m = lease.visit.m
    if lease.server_visit is None and quarantine.is_held(m):
        why = quarantine.clients[m].why
        return Wait(m, "quarantined", lease.progress_ever, f"it is in quarantine ({why})", quarantine.remedy(m))
    if lease.connection is None and not here:
        return describe_absence(m, lease.absent_since, seen, policy)
    if lease.why:
        return describe_inability(m, lease.progress_ever, lease.why)
    if lease.server_visit is None:
        if not lease.failures:
            return None  # its lease is about to be granted
        last = make_printable(lease.failures[-1], limits.TEXT)
        why = f"its visit failed {len(lease.failures)} times ({last}) and is tried again"
        return Wait(m, "failed", lease.progress_ever, why, "Read the client's log and repair it.")
    if now - lease.progress_at < slow:
        return None
    remedy = "Read the client's log. Lower --patience or --visit-deadline to take such visits back earlier."
    return Wait(m, "no-step", lease.progress_at, "it is connected but makes no step", remedy)


def describe_absence(m: int, since: float, seen: bool, policy: Policy) -> Wait:
    """Return the wait for a client, an evaluator or a fed server that is not connected."""
    kind, why = ("away", "it is away") if seen else ("never-joined", "it has not joined yet")
    remedy = "Bring it back" if seen else "Start it with splitrelay join"
    if m == FED_SERVER_NUMBER:
        remedy += "; the run cannot go on without it"
    elif policy.away == "skip":
        remedy += "; after --lease seconds the run goes on without it"
    elif m == EVALUATOR_NUMBER:
        remedy += ", or start the server again with --away skip"
    else:
        remedy += f", or start the server again with --away skip or with --without {m}"
    return Wait(m, kind, since, why, f"{remedy}.")


def describe_inability(m: int, since: float, why: str) -> Wait:
    """Return the wait for a client that says that it cannot do its part yet."""
    remedy = "Give the client what it lacks, such as its new sealing.json."
    why = make_printable(why.rstrip("."), limits.TEXT)
    return Wait(m, "unable", since, f"it cannot take its part yet ({why})", remedy)
