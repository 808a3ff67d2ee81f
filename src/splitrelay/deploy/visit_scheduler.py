"""How long a visit may take, and what becomes of one that takes longer, fails, or whose client stays away."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from threading import Event
from typing import Any

from splitrelay.algorithms.base import Outcome, Skipped, Visit
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.server_visit import Policy, ServerVisits, VisitLease
from splitrelay.deploy.stalls import StallReporter, Wait, Waiting, visit_wait
from splitrelay.deploy.state_probe import Finding, SpoiledDeposit
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged, VisitFailed, WorkError
from splitrelay.network import limits
from splitrelay.network.connection_handler import EVALUATOR_NUMBER
from splitrelay.network.messages import Cancel, Message
from splitrelay.network.server import NetworkServer

RETUNE = f"{LOWER_ETA} If only this client diverges, repair it or run with --away skip."


class VisitScheduler:
    """The visits that are going on. Each ends: it is committed, skipped, or the run stops with the reason."""

    def __init__(
        self,
        hub: NetworkServer,
        server_visits: ServerVisits,
        journal: Journal,
        policy: Policy,
        stop: Event,
        quarantine: Quarantine | None = None,
        stalls: StallReporter | None = None,
    ) -> None:
        self.hub, self.server_visits, self.journal, self.policy, self.stop = hub, server_visits, journal, policy, stop
        self.quarantine = quarantine or Quarantine(policy, self._record)
        self.stalls = stalls or StallReporter(self._record, lambda text: None, policy.stalled_after)
        self.question: Waiting | None = None  # what the evaluator or the fed server is being asked
        self.seen = set(hub.get_clients())  # everybody who was here since the first round
        self.leases: dict[int, VisitLease] = {}  # by client
        self.outcomes: dict[int, Outcome[Any]] = {}
        self.absent: dict[int, str] = {}  # clients for whom nobody waits until they come, and why
        self.diverged = set[int]()  # clients whose visits diverged since the last commit
        self.diverged_in = self.committed_in = -1  # the last rounds in which visits diverged, and were committed
        self.examine: Callable[[Visit[Any]], Finding] | None = None  # finds the deposit that made a visit overflow
        self.dropped: Counter[tuple[int, int, int]] = Counter()  # visits whose deposits were dropped, and how often
        self.at_fault = set[int]()  # clients whose deposits were dropped since the last checkpoint

    def get_absence_reason(self, m: int) -> str | None:
        """Why client m is not waited for, if visits may be skipped and it may not come, or was waited for in vain.

        A server that no client reaches is perhaps itself the one that is away: it waits.
        """
        here = self.hub.get_clients()
        waited_for = self.policy.away != "skip" or m in here or not any(other < EVALUATOR_NUMBER for other in here)
        return None if waited_for else self.absent.get(m)

    def get_quarantine_reason(self, m: int) -> str | None:
        """Return why the visits of client m are skipped at once if it is in quarantine; None if they are not.

        They are skipped only while a client that is not in quarantine is here: otherwise nobody would be trained with.
        """
        if self.policy.away != "skip" or not self.quarantine.is_held(m):
            return None
        others = [
            other
            for other in self.hub.get_clients()
            if other < EVALUATOR_NUMBER and not self.quarantine.is_confined(other)
        ]
        return f"{get_client_name(m)} is in quarantine" if others else None

    def list_waits(self, now: float) -> list[Wait]:
        """Return whom the run waits for; also for other threads."""
        here, whole = self.hub.get_clients(), self.server_visits.whole
        found = []
        for lease in list(self.leases.values()):
            slow = self.policy.stalled_after * (lease.visit.K if whole else 1)
            m = lease.visit.m
            found.append(visit_wait(lease, m in here, m in self.seen, self.policy, self.quarantine, slow, now))
        if self.question is not None:
            found.append(self.question.wait(now))
        return [wait for wait in found if wait is not None]

    def run_periodic_checks(self, now: float) -> None:
        """Follow the operator's files, and report what the run waits for; both at most once a second."""
        self.quarantine.check_lifts(now)
        self.stalls.check(now, self.list_waits)

    def _skip_absent(self) -> bool:
        """Whether visits were skipped at once."""
        lost = [lease for lease in self.leases.values() if lease.link is None]
        why = {
            m: self.get_absence_reason(m) or self.get_quarantine_reason(m) for m in (lease.visit.m for lease in lost)
        }
        if self.policy.away == "retry":
            self._refuse_quarantined(lease for lease in lost if lease.server_visit is None)
        for lease in lost:
            reason = why[lease.visit.m]
            if reason is not None:
                self._roll_back(lease, reason)
                self._skip(lease, reason)
        return any(why.values())

    def _check_timeouts(self, now: float) -> None:
        for lease in list(self.leases.values()):
            if lease.link is None:
                if lease.server_visit is None and self.quarantine.is_held(lease.visit.m):
                    continue
                if now - lease.since > self.policy.lease and now >= lease.after:  # till then it waits for us
                    self._handle_absence(lease, now)
                continue
            lease.record_transfer(self.hub.get_transferred(lease.link), now, self.hub.limits.piece)
            if now - lease.progress_at > self._get_step_timeout(lease):
                self._fail_visit(lease, f"no step for {self._get_step_timeout(lease):g} seconds", lease.link)
            elif now - lease.granted_at > self.policy.deadline(lease.visit.K):
                seconds = self.policy.deadline(lease.visit.K)
                self._fail_visit(lease, f"the visit took more than {seconds:g} seconds", lease.link)

    def _get_step_timeout(self, lease: VisitLease) -> float:
        return self.policy.step * (lease.visit.K if self.server_visits.whole else 1)

    def _handle_absence(self, lease: VisitLease, now: float) -> None:
        """The lease has run out."""
        m, lacks, lease.since = lease.visit.m, lease.why if lease.unable else "", now
        lease.tries, lease.unable, lease.granted_at = lease.tries + 1, None, 0.0
        if lease.server_visit is not None:
            self._note("expired", lease)
            self._roll_back(lease, "the lease has run out")
        if self.policy.away == "skip":
            self.absent[m] = f"client {m} has not come back"
            why = lacks or f"client {m} was away for {self.policy.lease:g} seconds"
            self.strike_absent(m, why, round=lease.visit.r, occurrence=lease.visit.i)
            self._skip(lease, why)
        elif self.policy.away == "retry" and lease.tries > self.policy.retries:
            what = f"client {m} {'cannot make its visit' if lacks else 'stays away'} in round {lease.visit.r}"
            hint = "Mend or bring it back; the same command goes on from here."
            raise WorkError(what, value=lacks.rstrip(".") or None, hint=hint)

    def _fail_visit(
        self, lease: VisitLease, why: str, link: int | None, *, diverged: bool = False, numeric: bool = False
    ) -> None:
        """The client did something wrong in its visit, or could not do it: it is taken back, and asked for again.

        `diverged` says that a number overflowed, `numeric` that this or weights out of bounds ended the visit. Then
        the weights that it began from may be the reason, and not its client.

        Raises:
            SpoiledDeposit: an earlier deposit is the reason.
            Diverged: the server's own visits overflow from these weights, too, and no deposit is the reason.
        """
        lease.links, lease.granted_at = 0, 0.0
        self._note("failed", lease, why=why)
        self._roll_back(lease, why, None if link is None else Cancel(lease.fence, why[: limits.TEXT]))
        finding = self.examine(lease.visit) if self.examine and (diverged or numeric) else Finding(is_sound=True)
        if finding.fault is not None:
            raise SpoiledDeposit(finding.fault)
        if not finding.is_sound:
            what = f"training diverged in round {lease.visit.r}, at client {lease.visit.m} and on the test images"
            raise Diverged(what, value=_reason(why), hint=LOWER_ETA)
        if diverged:
            self.diverged_in = lease.visit.r
            self._check_divergence(lease, why)
        self._record_failure(lease, why, at_once=self.policy.away == "skip", diverged=diverged)
        lease.after = time.monotonic() + self.hub.timeouts.compute_pause(len(lease.failures))

    def drop_deposit(self, visit: Visit[Any]) -> None:
        """Take back a deposit that makes later visits overflow, and count it as a strike of its writer.

        Raises:
            Diverged: the deposit was dropped too often, or most clients wrote one. The run itself diverges then.
        """
        r, i, m = visit.r, visit.i, visit.m
        why = f"the deposit of client {m} in round {r} makes later visits overflow"
        self.journal.drop(visit)
        self.journal.note("dropped", client=m, round=r, occurrence=i, why=why)
        self.quarantine.strike(m, why, round=r, occurrence=i)
        self.dropped[r, i, m] += 1
        self.at_fault.add(m)
        M = self.hub.context.clients
        if len(self.at_fault) > max(M // 2, 1) or M == 1:
            raise Diverged(f"the deposits of {len(self.at_fault)} clients overflow", value=why, hint=LOWER_ETA)
        if self.policy.away == "skip":
            self.journal.skip(visit, why)
            self.journal.note("skipped", client=m, round=r, occurrence=i, fence=0, why=why)
        elif self.dropped[r, i, m] > self.policy.retries:
            limit = f"at most {self.policy.retries} failures"
            raise Diverged(why, value=f"{self.dropped[r, i, m]} times", limit=limit, hint=RETUNE)

    def check_last_round(self, R: int) -> None:
        """Raise Diverged if the last of R rounds was lost to overflows: it would end as if all were well."""
        if self.diverged_in == R - 1 != self.committed_in:
            raise Diverged("the last round was lost to visits that diverged", value=R - 1, hint=RETUNE)

    def _check_divergence(self, lease: VisitLease, why: str) -> None:
        """Raise Diverged if visits may be skipped and every client that is here diverged since the last commit.

        Skipping would then go on to the last round without training anything. One client alone cannot cause this,
        unless it is the only client of the run.
        """
        self.diverged.add(lease.visit.m)
        here = {m for m in self.hub.get_clients() if m < EVALUATOR_NUMBER}
        several = len(self.diverged) > 1 or self.hub.context.clients == 1
        if self.policy.away == "skip" and several and here <= self.diverged:
            what = f"the visits of all {len(self.diverged)} clients diverged, the last in round {lease.visit.r}"
            raise Diverged(what, value=_reason(why), hint=RETUNE)

    def _record_failure(self, lease: VisitLease, why: str, at_once: bool = False, diverged: bool = False) -> None:
        """One failure more: after so many the visit is skipped, or the run stops."""
        lease.failures.append(why)
        self._strike(lease, why)
        if len(lease.failures) <= self.policy.retries and not at_once:
            return
        self._roll_back(lease, why)
        if self.policy.away == "skip":
            self._skip(lease, why)
            return
        if diverged:
            what = f"the visit of client {lease.visit.m} diverged in round {lease.visit.r}"
            limit = f"at most {self.policy.retries} failures"
            raise Diverged(what, value=_reason(why), limit=limit, hint=RETUNE)
        where = f"client {lease.visit.m} failed {len(lease.failures)} times in round {lease.visit.r}"
        raise VisitFailed(where, value=why.rstrip("."), hint="Mend the client; the same command goes on from here.")

    def _strike(self, lease: VisitLease, why: str) -> None:
        """Count the first failure of a visit as a strike of its client."""
        if lease.has_strike:
            return
        lease.has_strike, visit = True, lease.visit
        if self.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i):
            self._roll_back(lease, why)
            if self.policy.away == "retry":
                self._refuse_quarantined([lease])

    def strike_absent(self, m: int, why: str, **facts: Any) -> None:
        """Count a lease that was waited out in vain, unless nobody is here: then the server may be the one away."""
        if (
            any(other < EVALUATOR_NUMBER and other != m for other in self.hub.get_clients())
            or m in self.hub.get_clients()
        ):
            self.quarantine.strike(m, why, **facts)

    def _refuse_quarantined(self, visits: Iterable[VisitLease]) -> None:
        """Raise WorkError if the client of one of these visits is in quarantine: nobody may change the run silently."""
        for lease in visits:
            m = lease.visit.m
            if self.quarantine.is_held(m):
                what = f"client {m} is in quarantine in round {lease.visit.r}"
                hint = f"{self.quarantine.remedy(m)}. Then the same command goes on from here."
                raise WorkError(what, value=self.quarantine.clients[m].why, hint=hint)

    def _handle_reconnect(self, lease: VisitLease, lasted: float) -> None:
        """The client is here once more, in the middle of its visit or at its start: not for ever without a step.

        A link that has lasted is none of those that count: whoever trains a whole model needs only time.
        """
        lease.links = lease.links + 1 if lasted <= self.policy.lease else 1
        lease.after = time.monotonic() + self.hub.timeouts.compute_pause(lease.links)
        if lease.links > self.hub.limits.connections_without_progress:
            self._fail_visit(lease, f"no step on {lease.links} links", lease.link)

    def _postpone_visit(self, lease: VisitLease, why: str) -> None:
        """The client cannot make its visit yet: it is asked again and again, for as long as one that is away."""
        now = time.monotonic()
        since = now if lease.unable is None else lease.unable
        if lease.unable is None:
            self._note("unable", lease, why=why)
        self._roll_back(lease, why)
        lease.unable = lease.since = since
        lease.granted_at = 0.0
        lease.why = why
        lease.after = now + self.hub.timeouts.compute_pause(max(int(now - since), 1))

    def _skip(self, lease: VisitLease, why: str) -> None:
        self.journal.skip(lease.visit, why)
        self._note("skipped", lease, why=why)
        self._end_visit(lease, Skipped(why))

    def _roll_back(self, lease: VisitLease, why: str, word: Message | None = None) -> None:
        """Both halves roll back: whatever was made of the visit is forgotten."""
        if lease.server_visit is None:
            return
        self.hub.release(lease.visit.m)
        if lease.link is not None and word is not None:
            self.hub.send(lease.link, word)
        self.server_visits.release(lease.server_visit)
        now = time.monotonic()
        lease.absent_since = lease.absent_since if lease.link is None else now
        lease.server_visit, lease.fence, lease.link, lease.since = None, 0, None, now

    def _end_visit(self, lease: VisitLease, outcome: Outcome[Any]) -> None:
        if lease.server_visit is not None:
            self.server_visits.release(lease.server_visit)
        self.outcomes[lease.index] = outcome
        del self.leases[lease.visit.m]

    def _note(self, event: str, lease: VisitLease, **facts: Any) -> None:
        visit = lease.visit
        self.journal.note(event, client=visit.m, round=visit.r, occurrence=visit.i, fence=lease.fence, **facts)

    def _record(self, event: str, **facts: Any) -> None:
        self.journal.note(event, **facts)


def _reason(why: str) -> str:
    """Return a reason without the hint that the client may have added."""
    return why.rstrip(". ").removesuffix(LOWER_ETA.rstrip(".")).rstrip(". ")
