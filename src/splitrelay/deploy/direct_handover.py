"""Peer to peer, clients that reach each other: the half goes straight to the next one, its deposit follows.

The next visit begins before the half of this one is here: until then it is *owed*. What is owed is made good by its
deposit, or by that of the next visit, which has come out of it. If it is lost with the client that made it and the next
client does not have it either, the visit is made again: from the same start it comes to the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from splitrelay.algorithms.base import Done, Outcome, Visit, enumerate_visits
from splitrelay.deploy.half_disputes import SealedClients
from splitrelay.deploy.pending_deposit import DeliveredHalf, LostHalf, PendingDeposit, missing
from splitrelay.deploy.sealed_state import SealedState, make_first_state
from splitrelay.deploy.server_visit import CutVisit, ServerVisit, VisitLease
from splitrelay.deploy.stalls import Wait, absence
from splitrelay.errors import WorkError
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, HalfRequest, HandoverReport, Lease, get_fence
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected, MessageReceived


class DirectHandover(SealedClients):
    """Clients of which one hands to the next; `order` and `R` say who that is."""

    order: Callable[[int], Sequence[int]] = staticmethod(lambda r: ())
    R = 0

    owed: PendingDeposit | None = None
    given: DeliveredHalf | None = None
    said: tuple[VisitLease, HandoverReport] | None = None  # handed on while the visit before was still owed
    wanting: VisitLease | None = None  # the next client does not have the half after all
    again = False  # a visit is made again: now its half is waited for

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.covered: dict[int, int] = {}  # client: fence of a visit whose deposit is not needed any more

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """One visit; the one before it too, if it has to be made again."""
        while True:
            try:
                return super().run(visit)
            except LostHalf as error:
                self._repeat_visit(str(error))

    def whole(self, x: SealedState) -> SealedState:
        """x when nothing is owed any more."""
        while self.owed is not None:
            try:
                self._require_deposit()
                self._process_event(deque())
            except LostHalf as error:
                self._repeat_visit(str(error))
        return x

    def find_next_client(self, visit: Visit[Any]) -> int | None:
        """The client after this one, if it is another."""
        named = list(enumerate_visits(self.order(visit.r)))
        if (visit.i, visit.m) not in named:
            return None
        later = [m for _, m in named[named.index((visit.i, visit.m)) + 1 :]]
        later += self.order(visit.r + 1) if visit.r + 1 < self.R else []
        later = [m for m in later if m not in self.excluded]
        return later[0] if later and later[0] != visit.m else None

    # A visit is leased

    def is_busy(self, m: int) -> bool:
        """Whether client m has still to hear that a visit of its own counts: nothing else can be asked of it."""
        return m in self.covered

    def _grant_lease(self, lease: VisitLease, link: int) -> None:
        """Only what is here, or at this client, can be begun from."""
        if self.is_busy(lease.visit.m):
            return
        if missing(lease.visit.x) and self._find_delivered(lease) is None:
            self._require_deposit()
        else:
            super()._grant_lease(lease, link)

    def _build_lease(self, lease: VisitLease) -> tuple[Lease, bytes]:
        grant, blob = super()._build_lease(lease)
        heir = self.find_next_client(lease.visit)
        grant = replace(grant, heir="" if heir is None else self.hub.handler.address(heir))
        given = self._find_delivered(lease)
        if given is None:
            return grant, blob
        return replace(grant, direct=True, bytes=given.word.bytes, sha256=given.word.sha256), b""

    def _find_delivered(self, lease: VisitLease) -> DeliveredHalf | None:
        given, visit = self.given, lease.visit
        return given if given is not None and (given.m, given.word.fence) == (visit.m, visit.x.fence) else None

    def _roll_back(self, lease: VisitLease, why: str, word: Any = None) -> None:
        """Whoever begins again may have lost what it was given: next time the server sends it."""
        if self._find_delivered(lease) is not None and lease.server_visit is not None:
            self.given = None
        if self.wanting is lease:
            self.wanting = None
        if self.said is not None and self.said[0] is lease:
            self.said = None
        super()._roll_back(lease, why, word)

    # What clients say

    def _handle_failure(self, lease: VisitLease, said: Fail) -> None:
        """A client that cannot open what another one handed it gets the half from the server, and may say so again."""
        is_direct = self._find_delivered(lease) is not None
        if is_direct and not (said.later or said.diverged or lease.stage):
            self._note("unopened", lease, why=said.why)
            self._roll_back(lease, said.why)
        else:
            super()._handle_failure(lease, said)

    def _answer(self, lease: VisitLease, server_visit: ServerVisit, event: MessageReceived) -> None:
        if isinstance(event.message, HalfRequest):
            self._handle_want(lease)
        elif isinstance(event.message, HandoverReport):
            self._handle_handed(lease, event.message)
        else:
            super()._answer(lease, server_visit, event)

    def _handle_want(self, lease: VisitLease) -> None:
        if lease.is_half_requested or self._find_delivered(lease) is None:
            raise BadMessage("the half was asked for twice, or was sent with the lease")
        self._note("wanted", lease)
        lease.is_half_requested, self.wanting = True, lease
        self._send_wanted()

    def _handle_handed(self, lease: VisitLease, word: HandoverReport) -> None:
        server_visit, heir = lease.server_visit, self.find_next_client(lease.visit)
        assert isinstance(server_visit, CutVisit)
        server_visit.get_top()  # Diverged is raised here, where it fails this visit and no other
        if lease.handover_link == lease.link:
            raise BadMessage("a half was handed on twice")
        lease.handover_link = lease.link
        if word.why or heir is None:
            self._note("unreached", lease, why=word.why or "there is no next client")
            return
        self._note("handed", lease, to=heir, bytes=word.bytes)
        self.said = lease, word
        if self.owed is None and not self.again:
            self._await_deposit()

    def _await_deposit(self) -> None:
        """The next visit may begin."""
        assert self.said is not None
        (lease, word), self.said = self.said, None
        server_visit, heir = lease.server_visit, self.find_next_client(lease.visit)
        assert isinstance(server_visit, CutVisit) and heir is not None
        x = replace(make_first_state(server_visit.get_top()), visit=lease.visit.x.visit + 1, fence=lease.fence)
        done = server_visit.build_outcome(x)
        self.given, self.owed = DeliveredHalf(heir, word), PendingDeposit(lease, done, word)
        self._end_visit(lease, done)

    def _commit(self, lease: VisitLease, done: Done[Any], link: int) -> None:
        """What is owed of the visit before has gone into this one, and need not come any more.

        The later one is written first: without the earlier one it does not count, and both are made again.
        """
        if self.said is not None and self.said[0] is lease:
            heir, (_, word), self.said = self.find_next_client(lease.visit), self.said, None
            self.given = None if heir is None else DeliveredHalf(heir, word)
        if self.owed is not None:
            before = self.owed.lease
            self.journal.commit(lease.visit, lease.fence, done)
            if not self.owed.lost:  # else it has left that visit already
                self.covered[before.visit.m] = before.fence
            self._commit_pending(self.owed)
        super()._commit(lease, done, link)

    def _handle_message(self, event: MessageReceived, now: float) -> None:
        fence, owed = get_fence(event.message), self.owed
        if owed is not None and (event.m, fence) == (owed.lease.visit.m, owed.lease.fence):
            owed.lease.record_message(event.message, now)
            self._handle_deposit(owed, event)
        elif self.covered.get(event.m) == fence and isinstance(event.message, Deposit):
            del self.covered[event.m]
            self.hub.release(event.m)
            self.hub.send(event.link, Commit(fence))
        else:
            super()._handle_message(event, now)

    def _handle_deposit(self, owed: PendingDeposit, event: MessageReceived) -> None:
        """The deposit that was owed, if it is that."""
        said = event.message
        if isinstance(said, Fail):
            self._lose_deposit(owed, said.why, strike=True)
        if not isinstance(said, Deposit):
            return
        try:
            if said.sha256 != owed.word.sha256:
                raise BadMessage("another half was deposited than was handed on")
            server_visit = owed.lease.server_visit
            assert isinstance(server_visit, CutVisit)
            owed.done.x.fill(server_visit.half.read_deposit(event.half, owed.lease.fence, owed.done.x.top))
        except BadMessage as error:
            self.hub.send(event.link, Cancel(owed.lease.fence, str(error)[: limits.TEXT]))
            self._lose_deposit(owed, str(error), strike=True)
            return
        self._commit_pending(owed)
        self.hub.release(event.m)
        self.hub.send(event.link, Commit(owed.lease.fence))
        self._send_wanted()
        if self.said is not None:
            self._await_deposit()

    def _commit_pending(self, owed: PendingDeposit) -> None:
        """The visit counts, and nothing is owed."""
        self.journal.commit(owed.lease.visit, owed.lease.fence, owed.done)
        server_visit = owed.lease.server_visit
        self._note("committed", owed.lease, steps=server_visit.applied if server_visit else 0, loss=owed.done.cost.loss)
        self.diverged.clear()
        self.quarantine.commit(owed.lease.visit.m)
        self._count_sound(owed.lease.visit.m)
        self.owed = None

    def _send_wanted(self) -> None:
        """To a client that does not have what it was given; as soon as it is here."""
        lease = self.wanting
        if lease is None or lease.link is None:
            return
        if missing(lease.visit.x):
            self._require_deposit()
            return
        self.wanting = None
        half, piece = lease.visit.x.bytes(), self.hub.limits.piece
        self.hub.send(lease.link, *tensor_transfer.split_into_chunks(lease.fence, half, piece))

    # What happens to the client that owes

    def _handle_arrival(self, event: ClientConnected, now: float) -> None:
        owed = self.owed
        if not event.resumed and self.covered.pop(event.m, None) is not None:
            self.hub.release(event.m)  # it begins afresh, and its visit counts all the same
        if event.resumed and self.covered.get(event.m) == event.accept.fence:
            self.arrived(event)  # its deposit may still come, and is thanked for
            return
        if owed is None or event.m != owed.lease.visit.m:
            super()._handle_arrival(event, now)
            return
        self.arrived(event)
        if event.resumed:
            owed.lease.resume(event.link, now)
            self._note("resumed", owed.lease, step=event.accept.k)
        else:
            self._lose_deposit(owed, "the client began afresh")

    def _handle_departure(self, event: ClientDisconnected, now: float) -> None:
        owed = self.owed
        if owed is None or owed.lease.link != event.link:
            super()._handle_departure(event, now)
            return
        owed.lease.link, owed.lease.since, owed.lease.absent_since = None, now, now
        self._note("lost", owed.lease, why=event.why)

    def _check_timeouts(self, now: float) -> None:
        super()._check_timeouts(now)
        if self.owed is not None and not self.owed.lost:
            lease, policy = self.owed.lease, self.policy
            if lease.link is not None:
                lease.record_transfer(self.hub.get_transferred(lease.link), now, self.hub.limits.piece)
            away = lease.link is None and now - lease.since > policy.lease
            if away or now - lease.progress_at > max(policy.step, policy.lease):
                if lease.link is not None:
                    self.hub.send(lease.link, Cancel(lease.fence, "the deposit did not come in time"))
                self._lose_deposit(self.owed, "the deposit did not come in time", strike=lease.link is not None)

    def list_waits(self, now: float) -> list[Wait]:
        """Return whom the run waits for: perhaps also for a deposit that is owed."""
        found, owed, here = super().list_waits(now), self.owed, self.hub.get_clients()
        if owed is None or owed.lost:
            return found
        lease, m = owed.lease, owed.lease.visit.m
        if lease.link is None and m not in here:
            return [*found, absence(m, lease.absent_since, True, self.policy)]
        if now - lease.progress_at < self.policy.stalled_after:
            return found
        why = f"its deposit of round {lease.visit.r} has not come"
        return [*found, Wait(m, "no-deposit", lease.progress_at, why, "Read the client's log.")]

    def reject(self, x: Any, why: str, *, strike: bool = True) -> None:
        """Reject the visit that left the half of x, also where the half is still owed. Always raises."""
        owed, self.owed = self.owed, None
        self.given = self.wanting = self.said = None
        if owed is not None:
            self.hub.release(owed.lease.visit.m)
            if owed.lease.link is not None:
                self.hub.send(owed.lease.link, Cancel(owed.lease.fence, why[: limits.TEXT]))
        super().reject(x, why, strike=strike)

    def _lose_deposit(self, owed: PendingDeposit, why: str, *, strike: bool = False) -> None:
        """Nobody else may have the half; the visit that has begun from it goes on. It may be the client's fault."""
        if strike:
            visit = owed.lease.visit
            self.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i)
        owed.lost = True
        self.hub.release(owed.lease.visit.m)
        self._note("unpaid", owed.lease, why=why)
        self._send_wanted()

    def _require_deposit(self) -> None:
        """Somebody asks for the half that is owed: wait for it, or, if it is lost, have it made again."""
        if self.owed is not None and not self.owed.lost:
            return
        for lease in list(self.leases.values()):
            self._roll_back(lease, "", Cancel(lease.fence, "the half that the visit began from is lost"))
        if self.owed is None:
            hint = "Remove the run's relay/visits: the same command then goes on from the last checkpoint."
            raise WorkError("the half that a visit begins from is lost", hint=hint)
        raise LostHalf(f"the half of round {self.owed.lease.visit.r} is lost with client {self.owed.lease.visit.m}")

    def _repeat_visit(self, why: str) -> None:
        owed, self.owed, self.given = self.owed, None, None
        assert owed is not None
        self._note("undone", owed.lease, why=why)
        visit, self.again = owed.lease.visit, True
        try:
            outcome = super().run(replace(visit))
        finally:
            self.again = False
        if isinstance(outcome, Done):
            owed.done.x.fill(outcome.x)
            return
        # The visit is skipped after all. The algorithm has its x already, which becomes what it was before the visit.
        owed.done.x.top = visit.x.top
        owed.done.x.fill(visit.x)
