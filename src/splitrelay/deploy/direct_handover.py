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
from splitrelay.deploy.pending_deposit import Given, Owed, Undone, missing
from splitrelay.deploy.sealed_state import RelayTurn, Sealed, unmade
from splitrelay.deploy.server_visit import Turn, tensor
from splitrelay.deploy.stalls import Wait, absence
from splitrelay.deploy.visit_lease import Pending
from splitrelay.errors import WorkError
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, Handed, Lease, Want, fence_of
from splitrelay.network.shared_event_loop import Arrived, Gone, Heard


class Handing(SealedClients):
    """Clients of which one hands to the next; `order` and `R` say who that is."""

    order: Callable[[int], Sequence[int]] = staticmethod(lambda r: ())
    R = 0

    owed: Owed | None = None
    given: Given | None = None
    said: tuple[Pending, Handed] | None = None  # handed on while the visit before was still owed
    wanting: Pending | None = None  # the next client does not have the half after all
    again = False  # a visit is made again: now its half is waited for

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.covered: dict[int, int] = {}  # client: fence of a visit whose deposit is not needed any more

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """One visit; the one before it too, if it has to be made again."""
        while True:
            try:
                return super().run(visit)
            except Undone as error:
                self._make_again(str(error))

    def whole(self, x: Sealed) -> Sealed:
        """x when nothing is owed any more."""
        while self.owed is not None:
            try:
                self._need()
                self._once(deque())
            except Undone as error:
                self._make_again(str(error))
        return x

    def heir(self, visit: Visit[Any]) -> int | None:
        """The client after this one, if it is another."""
        named = list(enumerate_visits(self.order(visit.r)))
        if (visit.i, visit.m) not in named:
            return None
        later = [m for _, m in named[named.index((visit.i, visit.m)) + 1 :]]
        later += self.order(visit.r + 1) if visit.r + 1 < self.R else []
        later = [m for m in later if m not in self.excluded]
        return later[0] if later and later[0] != visit.m else None

    # A visit is leased

    def busy(self, m: int) -> bool:
        """Whether client m has still to hear that a visit of its own counts: nothing else can be asked of it."""
        return m in self.covered

    def _lease(self, pending: Pending, link: int) -> None:
        """Only what is here, or at this client, can be begun from."""
        if self.busy(pending.visit.m):
            return
        if missing(pending.visit.x) and self._given_to(pending) is None:
            self._need()
        else:
            super()._lease(pending, link)

    def _words(self, pending: Pending) -> tuple[Lease, bytes]:
        lease, blob = super()._words(pending)
        heir = self.heir(pending.visit)
        lease = replace(lease, heir="" if heir is None else self.hub.reception.address(heir))
        given = self._given_to(pending)
        if given is None:
            return lease, blob
        return replace(lease, direct=True, bytes=given.word.bytes, sha256=given.word.sha256), b""

    def _given_to(self, pending: Pending) -> Given | None:
        given, visit = self.given, pending.visit
        return given if given is not None and (given.m, given.word.fence) == (visit.m, visit.x.fence) else None

    def _void(self, pending: Pending, why: str, word: Any = None) -> None:
        """Whoever begins again may have lost what it was given: next time the server sends it."""
        if self._given_to(pending) is not None and pending.turn is not None:
            self.given = None
        if self.wanting is pending:
            self.wanting = None
        if self.said is not None and self.said[0] is pending:
            self.said = None
        super()._void(pending, why, word)

    # What clients say

    def _given_up_by_client(self, pending: Pending, said: Fail) -> None:
        """A client that cannot open what another one handed it gets the half from the server, and may say so again."""
        is_direct = self._given_to(pending) is not None
        if is_direct and not (said.later or said.diverged or pending.stage):
            self._note("unopened", pending, why=said.why)
            self._void(pending, said.why)
        else:
            super()._given_up_by_client(pending, said)

    def _answer(self, pending: Pending, turn: Turn, event: Heard) -> None:
        if isinstance(event.message, Want):
            self._wanted(pending)
        elif isinstance(event.message, Handed):
            self._handed(pending, event.message)
        else:
            super()._answer(pending, turn, event)

    def _wanted(self, pending: Pending) -> None:
        if pending.wanted or self._given_to(pending) is None:
            raise BadMessage("the half was asked for twice, or was sent with the lease")
        self._note("wanted", pending)
        pending.wanted, self.wanting = True, pending
        self._send_wanted()

    def _handed(self, pending: Pending, word: Handed) -> None:
        turn, heir = pending.turn, self.heir(pending.visit)
        assert isinstance(turn, RelayTurn)
        turn.finished_top()  # Diverged is raised here, where it fails this visit and no other
        if pending.handed == pending.link:
            raise BadMessage("a half was handed on twice")
        pending.handed = pending.link
        if word.why or heir is None:
            self._note("unreached", pending, why=word.why or "there is no next client")
            return
        self._note("handed", pending, to=heir, bytes=word.bytes)
        self.said = pending, word
        if self.owed is None and not self.again:
            self._owe()

    def _owe(self) -> None:
        """The next visit may begin."""
        assert self.said is not None
        (pending, word), self.said = self.said, None
        turn, heir = pending.turn, self.heir(pending.visit)
        assert isinstance(turn, RelayTurn) and heir is not None
        x = replace(unmade(tensor(turn.engine.get_x())), visit=turn.x.visit + 1, fence=pending.fence)
        done: Done[Any] = Done(x, turn.cost())
        self.given, self.owed = Given(heir, word), Owed(pending, done, word)
        self._settle(pending, done)

    def _commit(self, pending: Pending, done: Done[Any], link: int) -> None:
        """What is owed of the visit before has gone into this one, and need not come any more.

        The later one is written first: without the earlier one it does not count, and both are made again.
        """
        if self.said is not None and self.said[0] is pending:
            heir, (_, word), self.said = self.heir(pending.visit), self.said, None
            self.given = None if heir is None else Given(heir, word)
        if self.owed is not None:
            before = self.owed.pending
            self.journal.commit(pending.visit, pending.fence, done)
            if not self.owed.lost:  # else it has left that visit already
                self.covered[before.visit.m] = before.fence
            self._count(self.owed)
        super()._commit(pending, done, link)

    def _heard(self, event: Heard, now: float) -> None:
        fence, owed = fence_of(event.message), self.owed
        if owed is not None and (event.m, fence) == (owed.pending.visit.m, owed.pending.fence):
            owed.pending.reach(event.message, now)
            self._paid(owed, event)
        elif self.covered.get(event.m) == fence and isinstance(event.message, Deposit):
            del self.covered[event.m]
            self.hub.release(event.m)
            self.hub.send(event.link, Commit(fence))
        else:
            super()._heard(event, now)

    def _paid(self, owed: Owed, event: Heard) -> None:
        """The deposit that was owed, if it is that."""
        said = event.message
        if isinstance(said, Fail):
            self._lose(owed, said.why, strike=True)
        if not isinstance(said, Deposit):
            return
        try:
            if said.sha256 != owed.word.sha256:
                raise BadMessage("another half was deposited than was handed on")
            turn = owed.pending.turn
            assert isinstance(turn, RelayTurn)
            owed.done.x.fill(turn.read_deposit(event.half, owed.pending.fence, owed.done.x.top))
        except BadMessage as error:
            self.hub.send(event.link, Cancel(owed.pending.fence, str(error)[: limits.TEXT]))
            self._lose(owed, str(error), strike=True)
            return
        self._count(owed)
        self.hub.release(event.m)
        self.hub.send(event.link, Commit(owed.pending.fence))
        self._send_wanted()
        if self.said is not None:
            self._owe()

    def _count(self, owed: Owed) -> None:
        """The visit counts, and nothing is owed."""
        self.journal.commit(owed.pending.visit, owed.pending.fence, owed.done)
        turn = owed.pending.turn
        self._note("committed", owed.pending, steps=turn.applied if turn else 0, loss=owed.done.cost.loss)
        self.diverged.clear()
        self.quarantine.commit(owed.pending.visit.m)
        self.owed = None

    def _send_wanted(self) -> None:
        """To a client that does not have what it was given; as soon as it is here."""
        pending = self.wanting
        if pending is None or pending.link is None:
            return
        if missing(pending.visit.x):
            self._need()
            return
        self.wanting = None
        self.hub.send(pending.link, *tensor_transfer.chunks(pending.fence, pending.visit.x.bytes()))

    # What happens to the client that owes

    def _arrived(self, event: Arrived, now: float) -> None:
        owed = self.owed
        if not event.resumed and self.covered.pop(event.m, None) is not None:
            self.hub.release(event.m)  # it begins afresh, and its visit counts all the same
        if event.resumed and self.covered.get(event.m) == event.accept.fence:
            self.arrived(event)  # its deposit may still come, and is thanked for
            return
        if owed is None or event.m != owed.pending.visit.m:
            super()._arrived(event, now)
            return
        self.arrived(event)
        if event.resumed:
            owed.pending.resume(event.link, now)
            self._note("resumed", owed.pending, step=event.accept.k)
        else:
            self._lose(owed, "the client began afresh")

    def _gone(self, event: Gone, now: float) -> None:
        owed = self.owed
        if owed is None or owed.pending.link != event.link:
            super()._gone(event, now)
            return
        owed.pending.link, owed.pending.since, owed.pending.missed = None, now, now
        self._note("lost", owed.pending, why=event.why)

    def _expire(self, now: float) -> None:
        super()._expire(now)
        if self.owed is not None and not self.owed.lost:
            pending, policy = self.owed.pending, self.policy
            if pending.link is not None:
                pending.move(self.hub.carrying(pending.link), now)
            away = pending.link is None and now - pending.since > policy.lease
            if away or now - pending.heard > max(policy.step, policy.lease):
                if pending.link is not None:
                    self.hub.send(pending.link, Cancel(pending.fence, "the deposit did not come in time"))
                self._lose(self.owed, "the deposit did not come in time", strike=pending.link is not None)

    def waits(self, now: float) -> list[Wait]:
        """Return whom the run waits for: perhaps also for a deposit that is owed."""
        found, owed, here = super().waits(now), self.owed, self.hub.here()
        if owed is None or owed.lost:
            return found
        pending, m = owed.pending, owed.pending.visit.m
        if pending.link is None and m not in here:
            return [*found, absence(m, pending.missed, True, self.policy)]
        if now - pending.heard < self.policy.stalled_after:
            return found
        why = f"its deposit of round {pending.visit.r} has not come"
        return [*found, Wait(m, "no-deposit", pending.heard, why, "Read the client's log.")]

    def _lose(self, owed: Owed, why: str, *, strike: bool = False) -> None:
        """Nobody else may have the half; the visit that has begun from it goes on. It may be the client's fault."""
        if strike:
            visit = owed.pending.visit
            self.quarantine.strike(visit.m, why, round=visit.r, occurrence=visit.i)
        owed.lost = True
        self.hub.release(owed.pending.visit.m)
        self._note("unpaid", owed.pending, why=why)
        self._send_wanted()

    def _need(self) -> None:
        """Somebody asks for the half that is owed: wait for it, or, if it is lost, have it made again."""
        if self.owed is not None and not self.owed.lost:
            return
        for pending in list(self.pending.values()):
            self._void(pending, "", Cancel(pending.fence, "the half that the visit began from is lost"))
        if self.owed is None:
            hint = "Remove the run's relay/visits: the same command then goes on from the last checkpoint."
            raise WorkError("the half that a visit begins from is lost", hint=hint)
        raise Undone(f"the half of round {self.owed.pending.visit.r} is lost with client {self.owed.pending.visit.m}")

    def _make_again(self, why: str) -> None:
        owed, self.owed, self.given = self.owed, None, None
        assert owed is not None
        self._note("undone", owed.pending, why=why)
        visit, self.again = owed.pending.visit, True
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
