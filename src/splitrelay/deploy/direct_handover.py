"""Peer to peer, clients that reach each other: the half goes directly to the next client, and its deposit follows.

The next visit starts before the server has the half of this one. Until then the server waits for a *pending deposit*.
It is complete when the deposit comes, or when the next visit is committed, because that visit started from the half. If
the half is lost with the client that made it and the next client does not have it either, the visit is repeated: from
the same start it gives the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from splitrelay.algorithms.base import Done, Outcome, Visit, enumerate_visits
from splitrelay.deploy.half_disputes import HalfDisputes
from splitrelay.deploy.remote_clients import Handover, RemoteClients
from splitrelay.deploy.sealed_state import SealedState, make_first_state
from splitrelay.deploy.server_visit import CutVisit, VisitLease
from splitrelay.deploy.stalls import Wait, describe_absence
from splitrelay.errors import WorkError
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, HalfRequest, HandoverReport, Lease
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected, MessageReceived


class LostHalf(WorkError):
    """The half of a visit is lost; the visit is repeated."""


@dataclass
class PendingDeposit:
    """A visit whose half the next client has, and the server not yet."""

    lease: VisitLease
    done: Done[Any]  # the outcome that the algorithm got, without the half
    report: HandoverReport  # the client's message about the handover
    is_lost: bool = False  # the client that made the half does not have it any more


@dataclass(frozen=True)
class DeliveredHalf:
    """Client m has the half that the message names."""

    m: int
    report: HandoverReport


def is_missing(x: SealedState) -> bool:
    """Return whether the server does not have the half."""
    return x.visit > 0 and not len(x.blob)


class DirectHandover(Handover):
    """Clients hand the half to each other."""

    disputes: HalfDisputes

    def __init__(
        self, clients: RemoteClients, order: Callable[[int], Sequence[int]] = lambda r: (), R: int = 0
    ) -> None:
        """Start without a pending deposit.

        Args:
            clients: The clients.
            order: The clients of each round, in their order.
            R: The number of rounds.
        """
        self.clients, self.order, self.R = clients, order, R
        self.connections, self.journal, self.scheduler = clients.connections, clients.journal, clients.scheduler
        self.disputes = HalfDisputes(clients, on_reject=self._drop_deposit)
        self.pending: PendingDeposit | None = None
        self.delivered: DeliveredHalf | None = None
        self.reported: tuple[VisitLease, HandoverReport] | None = None  # while another deposit is pending
        self.half_request: VisitLease | None = None  # the visit whose client has asked the server for the half
        self.is_repeating = False  # a visit is repeated: its half is waited for
        self.covered_fences: dict[int, int] = {}  # client: fence of a visit whose deposit is not needed any more

    def find_next_client(self, visit: Visit[Any]) -> int | None:
        """Return the client after this one, or None if there is none or it is the same."""
        named = list(enumerate_visits(self.order(visit.r)))
        if (visit.i, visit.m) not in named:
            return None
        later = [m for _, m in named[named.index((visit.i, visit.m)) + 1 :]]
        later += self.order(visit.r + 1) if visit.r + 1 < self.R else []
        later = [m for m in later if m not in self.clients.excluded]
        return later[0] if later and later[0] != visit.m else None

    def run(self, make_visit: Callable[[], Outcome[Any]]) -> Outcome[Any]:
        """Make one visit. If the half that it starts from is lost, repeat the visit before it first."""
        while True:
            try:
                return make_visit()
            except LostHalf as error:
                self.repeat_visit(str(error))

    def complete(self, x: SealedState) -> SealedState:
        """Return x once no deposit is pending."""
        while self.pending is not None:
            try:
                self._require_deposit()
                self.clients.process_event(deque())
            except LostHalf as error:
                self.repeat_visit(str(error))
        return x

    def repeat_visit(self, why: str) -> None:
        """Repeat the visit whose half is lost, and give its half to the x that the algorithm has."""
        pending, self.pending, self.delivered = self.pending, None, None
        assert pending is not None
        self.scheduler.note("undone", pending.lease, why=why)
        visit, self.is_repeating = pending.lease.visit, True
        try:
            outcome = next(self.clients.run_all([replace(visit)]))
        finally:
            self.is_repeating = False
        if isinstance(outcome, Done):
            pending.done.x.fill(outcome.x)
            return
        # The visit is skipped after all. The algorithm has its x already, which becomes what it was before the visit.
        pending.done.x.top = visit.x.top
        pending.done.x.fill(visit.x)

    # A visit is leased

    def is_busy(self, m: int) -> bool:
        """Return whether client m does not know yet that its visit counts: it cannot be asked for anything else."""
        return m in self.covered_fences

    def can_lease(self, lease: VisitLease) -> bool:
        """Return whether the half of the visit is here or at its client."""
        if self.is_busy(lease.visit.m):
            return False
        if is_missing(lease.visit.x) and self._find_delivered(lease) is None:
            self._require_deposit()
            return False
        return True

    def adapt_grant(self, lease: VisitLease, grant: Lease, blob: bytes) -> tuple[Lease, bytes]:
        """Name the next client in the grant. Leave the half out if the client has it."""
        next_client = self.find_next_client(lease.visit)
        grant = replace(grant, heir="" if next_client is None else self.connections.get_address(next_client))
        delivered = self._find_delivered(lease)
        if delivered is None:
            return grant, blob
        return replace(grant, direct=True, bytes=delivered.report.bytes, sha256=delivered.report.sha256), b""

    def _find_delivered(self, lease: VisitLease) -> DeliveredHalf | None:
        """Return the half that was delivered to the client of this visit for this visit."""
        delivered, visit = self.delivered, lease.visit
        if delivered is None or (delivered.m, delivered.report.fence) != (visit.m, visit.x.fence):
            return None
        return delivered

    def prepare_roll_back(self, lease: VisitLease) -> None:
        """Forget the delivery: a client that starts again may have lost the half, so the server sends it next time."""
        if self._find_delivered(lease) is not None and lease.server_visit is not None:
            self.delivered = None
        if self.half_request is lease:
            self.half_request = None
        if self.reported is not None and self.reported[0] is lease:
            self.reported = None

    # Messages

    def handle_failure(self, lease: VisitLease, message: Fail) -> bool:
        """Send the half from the server next time to a client that cannot open what another client handed it."""
        is_direct = self._find_delivered(lease) is not None
        if not is_direct or message.later or message.diverged or lease.stage:
            return False
        self.scheduler.note("unopened", lease, why=message.why)
        self.scheduler.roll_back(lease, message.why)
        return True

    def handle_visit_message(self, lease: VisitLease, event: MessageReceived) -> bool:
        """Handle a request for the half, and a report of a handover."""
        if isinstance(event.message, HalfRequest):
            self.handle_half_request(lease)
        elif isinstance(event.message, HandoverReport):
            self.handle_handover_report(lease, event.message)
        else:
            return False
        return True

    def handle_half_request(self, lease: VisitLease) -> None:
        """Send the half to a client that did not get it directly, as soon as the server has it."""
        if lease.is_half_requested or self._find_delivered(lease) is None:
            raise BadMessage("the half was asked for twice, or was sent with the lease")
        self.scheduler.note("wanted", lease)
        lease.is_half_requested, self.half_request = True, lease
        self._send_requested_half()

    def handle_handover_report(self, lease: VisitLease, report: HandoverReport) -> None:
        """Let the next visit start, if the handover succeeded and no earlier deposit is pending."""
        server_visit, next_client = lease.server_visit, self.find_next_client(lease.visit)
        assert isinstance(server_visit, CutVisit)
        server_visit.get_top()  # raises Diverged here, so that it fails this visit and no other
        if lease.handover_connection == lease.connection:
            raise BadMessage("a half was handed on twice over one connection", value=report.fence)
        lease.handover_connection = lease.connection
        if report.why or next_client is None:
            self.scheduler.note("unreached", lease, why=report.why or "there is no next client")
            return
        self.scheduler.note("handed", lease, to=next_client, bytes=report.bytes)
        self.reported = lease, report
        if self.pending is None and not self.is_repeating:
            self._await_deposit()

    def _await_deposit(self) -> None:
        """End the visit for the algorithm, so that the next one can start, and wait for its deposit."""
        assert self.reported is not None
        (lease, report), self.reported = self.reported, None
        server_visit, next_client = lease.server_visit, self.find_next_client(lease.visit)
        assert isinstance(server_visit, CutVisit) and next_client is not None
        x = replace(make_first_state(server_visit.get_top()), visit=lease.visit.x.visit + 1, fence=lease.fence)
        done = server_visit.build_outcome(x)
        self.delivered, self.pending = DeliveredHalf(next_client, report), PendingDeposit(lease, done, report)
        self.scheduler.end_visit(lease, done)

    def prepare_commit(self, lease: VisitLease, done: Done[Any]) -> None:
        """Commit the visit before this one, too: its half is in this one, so its deposit is not needed.

        The journal gets the later visit first. Without the earlier one it does not count, and both are repeated.
        """
        if self.reported is not None and self.reported[0] is lease:
            next_client, (_, report), self.reported = self.find_next_client(lease.visit), self.reported, None
            self.delivered = None if next_client is None else DeliveredHalf(next_client, report)
        if self.pending is not None:
            before = self.pending.lease
            self.journal.commit(lease.visit, lease.fence, done)
            if not self.pending.is_lost:  # else its client has left that visit
                self.covered_fences[before.visit.m] = before.fence
            self._commit_pending(self.pending)

    def handle_message(self, event: MessageReceived, now: float) -> bool:
        """Handle messages of the client whose deposit is pending, or is not needed any more."""
        fence, pending = event.message.fence, self.pending
        if pending is not None and (event.m, fence) == (pending.lease.visit.m, pending.lease.fence):
            pending.lease.record_message(event.message, now)
            if isinstance(event.message, Fail):
                self._lose_deposit(pending, event.message.why, strike=True)
            elif isinstance(event.message, Deposit):
                self._handle_deposit(pending, event.message, event)
        elif self.covered_fences.get(event.m) == fence and isinstance(event.message, Deposit):
            del self.covered_fences[event.m]
            self.connections.release(event.m)
            self.connections.send(event.connection, Commit(fence))
        else:
            return False
        return True

    def _handle_deposit(self, pending: PendingDeposit, message: Deposit, event: MessageReceived) -> None:
        """Complete the pending deposit, if it is the half that was handed on."""
        try:
            if message.sha256 != pending.report.sha256:
                raise BadMessage("another half was deposited than was handed on")
            server_visit = pending.lease.server_visit
            assert isinstance(server_visit, CutVisit)
            pending.done.x.fill(server_visit.half.read_deposit(event.half, pending.lease.fence, pending.done.x.top))
        except BadMessage as error:
            self.connections.send(event.connection, Cancel(pending.lease.fence, str(error)[: limits.TEXT]))
            self._lose_deposit(pending, str(error), strike=True)
            return
        self._commit_pending(pending)
        self.connections.release(event.m)
        self.connections.send(event.connection, Commit(pending.lease.fence))
        self._send_requested_half()
        if self.reported is not None:
            self._await_deposit()

    def _commit_pending(self, pending: PendingDeposit) -> None:
        """Commit the visit of the pending deposit."""
        self.journal.commit(pending.lease.visit, pending.lease.fence, pending.done)
        server_visit = pending.lease.server_visit
        steps = server_visit.applied if server_visit else 0
        self.scheduler.note("committed", pending.lease, steps=steps, loss=pending.done.cost.loss)
        self.scheduler.diverged.clear()
        self.scheduler.quarantine.commit(pending.lease.visit.m)
        self.disputes.count_sound(pending.lease.visit.m)
        self.pending = None

    def _send_requested_half(self) -> None:
        """Send the half to the client that asked for it, if the server has it."""
        lease = self.half_request
        if lease is None or lease.connection is None:
            return
        if is_missing(lease.visit.x):
            self._require_deposit()
            return
        self.half_request = None
        half, piece = lease.visit.x.bytes(), self.connections.limits.piece
        self.connections.send(lease.connection, *tensor_transfer.split_into_chunks(lease.fence, half, piece))

    # The client whose deposit is pending

    def handle_arrival(self, event: ClientConnected, now: float) -> bool:
        """Handle the reconnect of a client whose deposit is pending, or is not needed any more."""
        pending = self.pending
        if not event.resumed and self.covered_fences.pop(event.m, None) is not None:
            self.connections.release(event.m)  # the client starts again, and its visit counts all the same
        if event.resumed and self.covered_fences.get(event.m) == event.accept.fence:
            return True  # its deposit may still come, and gets a reply
        if pending is None or event.m != pending.lease.visit.m:
            return False
        if event.resumed:
            pending.lease.resume(event.connection, now)
            self.scheduler.note("resumed", pending.lease, step=event.accept.k)
        else:
            self._lose_deposit(pending, "the client began afresh")
        return True

    def handle_departure(self, event: ClientDisconnected, now: float) -> bool:
        """Note that the client whose deposit is pending has lost its connection."""
        pending = self.pending
        if pending is None or pending.lease.connection != event.connection:
            return False
        pending.lease.connection, pending.lease.since, pending.lease.absent_since = None, now, now
        self.scheduler.note("lost", pending.lease, why=event.why)
        return True

    def check_timeouts(self, now: float) -> None:
        """Stop waiting for a deposit that makes no progress."""
        pending, policy = self.pending, self.clients.policy
        if pending is None or pending.is_lost:
            return
        lease = pending.lease
        if lease.connection is not None:
            lease.record_transfer(
                self.connections.get_transferred(lease.connection), now, self.connections.limits.piece
            )
        is_away = lease.connection is None and now - lease.since > policy.lease
        if is_away or now - lease.progress_at > max(policy.step, policy.lease):
            if lease.connection is not None:
                self.connections.send(lease.connection, Cancel(lease.fence, "the deposit did not come in time"))
            self._lose_deposit(pending, "the deposit did not come in time", strike=lease.connection is not None)

    def list_waits(self, now: float) -> list[Wait]:
        """Return the wait for a pending deposit, if there is one."""
        pending, policy = self.pending, self.clients.policy
        if pending is None or pending.is_lost:
            return []
        lease, m = pending.lease, pending.lease.visit.m
        if lease.connection is None and m not in self.connections.get_clients():
            return [describe_absence(m, lease.absent_since, True, policy)]
        if now - lease.progress_at < policy.stalled_after:
            return []
        why = f"its deposit of round {lease.visit.r} has not come"
        return [Wait(m, "no-deposit", lease.progress_at, why, "Read the client's log.")]

    def _drop_deposit(self, why: str) -> None:
        """Cancel the pending deposit, because a visit is rejected."""
        pending, self.pending = self.pending, None
        self.delivered = self.half_request = self.reported = None
        if pending is not None:
            self.connections.release(pending.lease.visit.m)
            if pending.lease.connection is not None:
                self.connections.send(pending.lease.connection, Cancel(pending.lease.fence, why[: limits.TEXT]))

    def _lose_deposit(self, pending: PendingDeposit, why: str, *, strike: bool = False) -> None:
        """Give the deposit up. The visit that has started from the half continues. It may be the client's fault."""
        if strike:
            visit = pending.lease.visit
            self.scheduler.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i)
        pending.is_lost = True
        self.connections.release(pending.lease.visit.m)
        self.scheduler.note("unpaid", pending.lease, why=why)
        self._send_requested_half()

    def _require_deposit(self) -> None:
        """Return if the half may still come. Otherwise roll all visits back.

        Raises:
            LostHalf: The half is lost, and its visit can be repeated.
            WorkError: The half is lost, and its visit is not known.
        """
        if self.pending is not None and not self.pending.is_lost:
            return
        self.clients.roll_back_all("", "the half that the visit began from is lost")
        if self.pending is None:
            hint = "Remove the run's relay/visits: the same command then goes on from the last checkpoint."
            raise WorkError("the half that a visit begins from is lost", hint=hint)
        visit = self.pending.lease.visit
        raise LostHalf(f"the half of round {visit.r} is lost with client {visit.m}")
