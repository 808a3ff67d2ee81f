"""The visits in progress: how long each may take, and what happens to one that fails or whose client stays away.

Rules
    - Each visit ends: it is committed, it is skipped, or the run stops with the reason.
    - A visit times out only when it makes no progress. A repeated message and a new connection are not progress.
    - Only a client that is not connected is away. One that is connected, and waits until the server grants it the visit
      or has read its arrival, loses no lease. Its time begins when it leaves.
    - A visit that fails or whose lease runs out is rolled back: both halves return to the start of the visit. Then it
      is leased again, under a new fence.
    - With `--away skip` the visit of an absent client is skipped after one lease, and its next visits at once, until
      the client connects again. With `--away retry` the run stops after some leases.
    - Only the training thread calls the methods. Other threads may call `list_waits`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event
from typing import Any

from splitrelay.algorithms.base import Outcome, Skipped, Visit
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.server_visit import Policy, ServerVisits, VisitLease
from splitrelay.deploy.stalls import StallReporter, Wait, Waiting, find_visit_wait
from splitrelay.deploy.state_probe import Finding, SpoiledDeposit
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, VisitFailed, WorkError
from splitrelay.network import limits
from splitrelay.network.connection_handler import ConnectionHandler
from splitrelay.network.messages import Cancel, Message
from splitrelay.network.server_connection import EVALUATOR_NUMBER

RETUNE = f"{LOWER_ETA} If only this client diverges, repair it or run with --away skip."


@dataclass(frozen=True)
class VisitContext:
    """The parts of the server that make visits.

    Attributes:
        connections: The connections of the clients.
        server_visits: Makes the server's part of visits.
        journal: Records commits, skips and events.
        policy: Timeouts, and what to do about absent clients.
        quarantine: The strikes of clients.
        stalls: Reports long waits.
        stop: Once set, the run ends with KeyboardInterrupt.
        examine: Finds the deposit that makes a visit overflow.
    """

    connections: ConnectionHandler
    server_visits: ServerVisits
    journal: Journal
    policy: Policy
    quarantine: Quarantine
    stalls: StallReporter
    stop: Event
    examine: Callable[[Visit[Any]], Finding] | None = None


class VisitScheduler:
    """Holds the leases of the visits in progress, and ends each of them."""

    def __init__(
        self,
        context: VisitContext,
        *,
        on_roll_back: Callable[[VisitLease], None] = lambda lease: None,
        take_absence: Callable[[VisitLease, float], bool] = lambda lease, now: False,
    ) -> None:
        """Start without visits.

        Args:
            context: The parts of the server that make visits.
            on_roll_back: Gets each lease before its visit is rolled back.
            take_absence: Gets each lease that has run out, and returns whether nothing else is to be done.
        """
        self.connections, self.server_visits = context.connections, context.server_visits
        self.journal, self.policy, self.examine = context.journal, context.policy, context.examine
        self.quarantine, self.stalls = context.quarantine, context.stalls
        self.on_roll_back, self.take_absence = on_roll_back, take_absence
        self.question: Waiting | None = None  # the request that the evaluator or the fed server has to answer
        self.seen = set(self.connections.get_clients())  # all that were connected since the first round
        self.leases: dict[int, VisitLease] = {}  # by client
        self.outcomes: dict[int, Outcome[Any]] = {}
        self.absent: dict[int, str] = {}  # clients for which the run does not wait until they connect, and the reason
        self.diverged = set[int]()  # clients whose visits diverged since the last commit
        self.diverged_in = self.committed_in = -1  # the last rounds with a visit that diverged, that was committed
        self.dropped: Counter[tuple[int, int, int]] = Counter()  # visits whose deposits were dropped, and how often
        self.at_fault = set[int]()  # clients whose deposits were dropped since the last checkpoint

    def get_absence_reason(self, m: int) -> str | None:
        """Return the reason to skip client m without waiting, or None.

        If no client at all is connected, the server itself may be the one that is cut off: then it waits.
        """
        here = self.connections.get_clients()
        must_wait = self.policy.away != "skip" or m in here or not any(other < EVALUATOR_NUMBER for other in here)
        return None if must_wait else self.absent.get(m)

    def get_quarantine_reason(self, m: int) -> str | None:
        """Return the reason to skip the visits of client m at once if it is in quarantine, or None.

        They are skipped only while a client that is not in quarantine is connected. Otherwise nobody would train.
        """
        if self.policy.away != "skip" or not self.quarantine.is_held(m):
            return None
        others = [
            other
            for other in self.connections.get_clients()
            if other < EVALUATOR_NUMBER and not self.quarantine.is_confined(other)
        ]
        return f"{get_client_name(m)} is in quarantine" if others else None

    def list_waits(self, now: float) -> list[Wait]:
        """List what the run waits for. Other threads may call this."""
        here, whole = self.connections.get_clients(), self.server_visits.whole
        waits = []
        for lease in list(self.leases.values()):
            slow = self.policy.stalled_after * (lease.visit.K if whole else 1)
            m = lease.visit.m
            waits.append(find_visit_wait(lease, m in here, m in self.seen, self.policy, self.quarantine, slow, now))
        if self.question is not None:
            waits.append(self.question.wait(now))
        return [wait for wait in waits if wait is not None]

    def skip_absent(self) -> bool:
        """Skip the visits of clients for which the run does not wait. Return whether there were any."""
        lost = [lease for lease in self.leases.values() if lease.connection is None]
        clients = [lease.visit.m for lease in lost]
        reasons = {m: self.get_absence_reason(m) or self.get_quarantine_reason(m) for m in clients}
        if self.policy.away == "retry":
            self._check_quarantine(lease for lease in lost if lease.server_visit is None)
        for lease in lost:
            reason = reasons[lease.visit.m]
            if reason is not None:
                self.roll_back(lease, reason)
                self._skip(lease, reason)
        return any(reasons.values())

    def check_timeouts(self, now: float) -> None:
        """Fail the visits that make no progress, and handle those whose clients are away for too long."""
        here = self.connections.get_clients()
        for lease in list(self.leases.values()):
            if lease.connection is None:
                if lease.server_visit is None and self.quarantine.is_held(lease.visit.m):
                    continue
                if lease.visit.m in here and lease.unable is None:  # it waits for us
                    lease.since = now if lease.server_visit is None else lease.since
                    continue
                is_due = now - lease.since > self.policy.lease and now >= lease.after  # before, the client waits for us
                if is_due and not self.take_absence(lease, now):
                    self._handle_absence(lease, now)
                continue
            lease.record_transfer(
                self.connections.get_transferred(lease.connection), now, self.connections.limits.piece
            )
            timeout = self.policy.step * (lease.visit.K if self.server_visits.whole else 1)
            deadline = self.policy.deadline(lease.visit.K)
            if now - lease.progress_at > timeout:
                self.fail_visit(lease, f"no step for {timeout:g} seconds", lease.connection)
            elif now - lease.granted_at > deadline:
                self.fail_visit(lease, f"the visit took more than {deadline:g} seconds", lease.connection)

    def _handle_absence(self, lease: VisitLease, now: float) -> None:
        """Skip the visit, count the lease, or stop the run, because the lease has run out.

        Raises:
            WorkError: The policy is `retry`, and this was the last lease.
        """
        m, lacks, lease.since = lease.visit.m, lease.why if lease.unable else "", now
        lease.tries, lease.unable, lease.granted_at = lease.tries + 1, None, 0.0
        if lease.server_visit is not None:
            self.note("expired", lease)
            self.roll_back(lease, "the lease has run out")
        if self.policy.away == "skip":
            self.absent[m] = f"client {m} has not come back"
            why = lacks or f"client {m} was away for {self.policy.lease:g} seconds"
            self.strike_absent(m, why, round=lease.visit.r, occurrence=lease.visit.i)
            self._skip(lease, why)
        elif self.policy.away == "retry" and lease.tries > self.policy.retries:
            what = f"client {m} {'cannot make its visit' if lacks else 'stays away'} in round {lease.visit.r}"
            hint = "Repair it or start it again; the same command continues from here."
            raise WorkError(what, value=lacks.rstrip(".") or None, hint=hint)

    def fail_visit(
        self, lease: VisitLease, why: str, connection: int | None, *, diverged: bool = False, numeric: bool = False
    ) -> None:
        """Roll back a visit that its client made wrongly or not at all, and lease it again later.

        Args:
            lease: The visit.
            why: The reason.
            connection: The connection on which to cancel the visit, or None if the client knows that it has failed.
            diverged: A number overflowed.
            numeric: The visit ended because of an overflow or a number out of bounds. The weights at its start, and
                not its client, may be the reason.

        Raises:
            SpoiledDeposit: An earlier deposit is the reason.
            Diverged: The server's own visits overflow from these weights, too, and no deposit is the reason.
            VisitFailed: The visit failed too often, and the policy does not skip.
        """
        lease.connection_count, lease.granted_at = 0, 0.0
        self.note("failed", lease, why=why)
        self.roll_back(lease, why, None if connection is None else Cancel(lease.fence, why[: limits.TEXT]))
        finding = self.examine(lease.visit) if self.examine and (diverged or numeric) else Finding(is_sound=True)
        if finding.fault is not None:
            raise SpoiledDeposit(finding.fault)
        if not finding.is_sound:
            what = f"training diverged in round {lease.visit.r}, at client {lease.visit.m} and on the test images"
            raise Diverged(what, value=_strip_hint(why), hint=LOWER_ETA)
        if diverged:
            self.diverged_in = lease.visit.r
            self._check_divergence(lease, why)
        self.record_failure(lease, why, at_once=self.policy.away == "skip", diverged=diverged)
        lease.after = time.monotonic() + self.connections.timeouts.compute_pause(len(lease.failures))

    def drop_deposit(self, visit: Visit[Any]) -> None:
        """Take back a deposit that makes later visits overflow, and count it as a strike of its writer.

        Raises:
            Diverged: The deposit was dropped too often, or most clients wrote one. The run itself diverges then.
        """
        r, i, m = visit.r, visit.i, visit.m
        why = f"the deposit of client {m} in round {r} makes later visits overflow"
        self.journal.drop(visit)
        self.journal.note("dropped", client=m, round=r, occurrence=i, why=why)
        self.quarantine.strike(m, why, round=r, occurrence=i)
        self.dropped[r, i, m] += 1
        self.at_fault.add(m)
        M = self.connections.context.clients
        if len(self.at_fault) > max(M // 2, 1) or M == 1:
            raise Diverged(f"the deposits of {len(self.at_fault)} clients overflow", value=why, hint=LOWER_ETA)
        if self.policy.away == "skip":
            self.journal.skip(visit, why)
            self.journal.note("skipped", client=m, round=r, occurrence=i, fence=0, why=why)
        elif self.dropped[r, i, m] > self.policy.retries:
            limit = f"at most {self.policy.retries} failures"
            raise Diverged(why, value=f"{self.dropped[r, i, m]} times", limit=limit, hint=RETUNE)

    def check_last_round(self, R: int) -> None:
        """Raise Diverged if overflows prevented all visits of the last round. The run would end as if it were fine."""
        if self.diverged_in == R - 1 != self.committed_in:
            raise Diverged("the last round was lost to visits that diverged", value=R - 1, hint=RETUNE)

    def _check_divergence(self, lease: VisitLease, why: str) -> None:
        """Raise Diverged if visits may be skipped and every connected client diverged since the last commit.

        Skipping would then continue to the last round without training anything. One client alone cannot cause this,
        unless it is the only client of the run.
        """
        self.diverged.add(lease.visit.m)
        here = {m for m in self.connections.get_clients() if m < EVALUATOR_NUMBER}
        several = len(self.diverged) > 1 or self.connections.context.clients == 1
        if self.policy.away == "skip" and several and here <= self.diverged:
            what = f"the visits of all {len(self.diverged)} clients diverged, the last in round {lease.visit.r}"
            raise Diverged(what, value=_strip_hint(why), hint=RETUNE)

    def record_failure(self, lease: VisitLease, why: str, at_once: bool = False, diverged: bool = False) -> None:
        """Count a failure. After too many of them, or `at_once`, skip the visit or stop the run.

        Raises:
            VisitFailed: The policy does not skip; Diverged if the visit diverged.
        """
        lease.failures.append(why)
        self._strike(lease, why)
        if len(lease.failures) <= self.policy.retries and not at_once:
            return
        self.roll_back(lease, why)
        if self.policy.away == "skip":
            self._skip(lease, why)
            return
        if diverged:
            what = f"the visit of client {lease.visit.m} diverged in round {lease.visit.r}"
            limit = f"at most {self.policy.retries} failures"
            raise Diverged(what, value=_strip_hint(why), limit=limit, hint=RETUNE)
        where = f"client {lease.visit.m} failed {len(lease.failures)} times in round {lease.visit.r}"
        raise VisitFailed(where, value=why.rstrip("."), hint="Mend the client; the same command goes on from here.")

    def _strike(self, lease: VisitLease, why: str) -> None:
        """Count the first failure of a visit as a strike of its client."""
        if lease.has_strike:
            return
        lease.has_strike, visit = True, lease.visit
        if self.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i):
            self.roll_back(lease, why)
            if self.policy.away == "retry":
                self._check_quarantine([lease])

    def strike_absent(self, m: int, why: str, **facts: Any) -> None:
        """Count a lease that ran out as a strike, unless nobody is connected: then the server may be cut off."""
        if (
            any(other < EVALUATOR_NUMBER and other != m for other in self.connections.get_clients())
            or m in self.connections.get_clients()
        ):
            self.quarantine.strike(m, why, **facts)

    def _check_quarantine(self, leases: Iterable[VisitLease]) -> None:
        """Raise WorkError if the client of one of these visits is in quarantine: the run must not change silently."""
        for lease in leases:
            m = lease.visit.m
            if self.quarantine.is_held(m):
                what = f"client {m} is in quarantine in round {lease.visit.r}"
                hint = f"{self.quarantine.remedy(m)}. Then the same command goes on from here."
                raise WorkError(what, value=self.quarantine.clients[m].why, hint=hint)

    def handle_reconnect(self, lease: VisitLease, lasted: float) -> None:
        """Count a reconnect during a visit. Too many without progress fail the visit.

        Args:
            lease: The visit.
            lasted: Seconds that the connection before lasted. One that lasted longer than a lease does not count,
                because a client that trains a whole model sends nothing for a long time.
        """
        lease.connection_count = lease.connection_count + 1 if lasted <= self.policy.lease else 1
        lease.after = time.monotonic() + self.connections.timeouts.compute_pause(lease.connection_count)
        if lease.connection_count > self.connections.limits.connections_without_progress:
            self.fail_visit(lease, f"no step on {lease.connection_count} connections", lease.connection)

    def postpone_visit(self, lease: VisitLease, why: str) -> None:
        """Roll back a visit that its client cannot make yet, and lease it again later.

        The client has as much time for this as a client that is away.
        """
        now = time.monotonic()
        since = now if lease.unable is None else lease.unable
        if lease.unable is None:
            self.note("unable", lease, why=why)
        self.roll_back(lease, why)
        lease.unable = lease.since = since
        lease.granted_at = 0.0
        lease.why = why
        lease.after = now + self.connections.timeouts.compute_pause(max(int(now - since), 1))

    def _skip(self, lease: VisitLease, why: str) -> None:
        self.journal.skip(lease.visit, why)
        self.note("skipped", lease, why=why)
        self.end_visit(lease, Skipped(why))

    def roll_back(self, lease: VisitLease, why: str, message: Message | None = None) -> None:
        """Return both halves to the start of the visit. `message` is sent to the client if it is connected."""
        self.on_roll_back(lease)
        if lease.server_visit is None:
            return
        self.connections.release(lease.visit.m)
        if lease.connection is not None and message is not None:
            self.connections.send(lease.connection, message)
        self.server_visits.release(lease.server_visit)
        now = time.monotonic()
        lease.absent_since = lease.absent_since if lease.connection is None else now
        lease.server_visit, lease.fence, lease.connection, lease.since = None, 0, None, now

    def end_visit(self, lease: VisitLease, outcome: Outcome[Any]) -> None:
        """Remove the lease, and keep the outcome for the algorithm."""
        if lease.server_visit is not None:
            self.server_visits.release(lease.server_visit)
        self.outcomes[lease.index] = outcome
        del self.leases[lease.visit.m]

    def note(self, event: str, lease: VisitLease, **facts: Any) -> None:
        """Record an event of a visit."""
        visit = lease.visit
        self.journal.note(event, client=visit.m, round=visit.r, occurrence=visit.i, fence=lease.fence, **facts)


def _strip_hint(why: str) -> str:
    """Return a reason without the hint that the client may have added."""
    return why.rstrip(". ").removesuffix(LOWER_ETA.rstrip(".")).rstrip(". ")
