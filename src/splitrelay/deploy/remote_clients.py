"""Clients on other hosts, as an algorithm sees them. A visit is a transaction: leased, stepped, committed or void."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty
from threading import Event
from typing import Any

from splitrelay.algorithms.base import Done, Outcome, Skipped, Visit
from splitrelay.deploy.deposit_bound import DepositOutOfBounds
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.server_visit import Tops, Turn
from splitrelay.deploy.stalls import StallReporter
from splitrelay.deploy.state_probe import SpoiledDeposit
from splitrelay.deploy.visit_lease import Pending, Policy
from splitrelay.deploy.visit_scheduler import Patience
from splitrelay.errors import Diverged, SplitrelayError
from splitrelay.network import limits, messages, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, Lease
from splitrelay.network.server import Hub
from splitrelay.network.shared_event_loop import Answer, Arrived, Gone, Heard

TICK = 0.5  # seconds between two looks at the clock


class Remote(Patience):
    """M clients behind a hub. All torch work is done here, in the thread that trains."""

    def __init__(
        self,
        hub: Hub,
        tops: Tops,
        journal: Journal,
        policy: Policy,
        stop: Event,
        quarantine: Quarantine | None = None,
        stalls: StallReporter | None = None,
    ) -> None:
        super().__init__(hub, tops, journal, policy, stop, quarantine, stalls)
        self.visits = 0
        self.arrived: Callable[[Arrived], None] = lambda event: None
        self.excluded: frozenset[int] = frozenset()  # clients whose visits are skipped from now on
        self.brief = False  # whether a step takes so little time that the links may wait for it
        hub.inbox.at_once = self.at_once

    def busy(self, m: int) -> bool:
        """Whether nothing can be asked of client m yet."""
        return False

    def overhear(self, event: Arrived | Gone | Heard) -> None:
        """Whatever comes in, also while no visit is going on."""
        now = time.monotonic()
        if isinstance(event, Arrived):
            self.absent.pop(event.m, None)
            self.seen.add(event.m)
            self._arrived(event, now)
        elif isinstance(event, Gone):
            if event.final:
                self.absent[event.m] = event.why
            self._gone(event, now)
        else:
            self._heard(event, now)

    def at_once(self, event: Heard) -> Answer | None:
        """A step of a visit that is going on, answered where it was read; nothing else is that urgent."""
        pending, said = self.pending.get(event.m), event.message
        if not (self.brief and isinstance(said, messages.Step)) or pending is None or pending.fence != said.fence:
            return None
        assert pending.turn is not None  # as it has a fence
        turn = pending.turn
        pending.reach(said, time.monotonic())
        try:
            reply = self._stepped(pending, turn, said)
        except (BadMessage, Diverged) as error:
            self._fail_for(pending, error, event.link)
            return None  # nobody will look at a word of a visit that is void
        return Answer(reply, lambda: turn.settle() if pending.turn is turn else None)  # else its net is another's

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """One visit."""
        return next(self.run_all([visit]))

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """All visits at once, as far as they are of different clients; answers in order."""
        asked = list(visits)
        self.outcomes = {}
        waiting: deque[tuple[int, Visit[Any]]] = deque()
        for index, visit in enumerate(asked):
            before = self.journal.find(visit)
            if before is None and visit.m in self.excluded:
                self.outcomes[index] = self._leave_out(visit)
            elif before is None:
                waiting.append((index, visit))
            else:
                self.journal.note("found", client=visit.m, round=visit.r, occurrence=visit.i)
                self.committed_in = visit.r if isinstance(before, Done) else self.committed_in
                self.outcomes[index] = before
        try:
            self._work(waiting)
        except SpoiledDeposit as error:
            for pending in list(self.pending.values()):
                self._void(pending, error.what, Cancel(pending.fence, error.what))
            raise
        finally:
            for pending in list(self.pending.values()):
                self._void(pending, "the server stops")
            self.pending = {}
        return iter([self.outcomes[index] for index in range(len(asked))])

    def _leave_out(self, visit: Visit[Any]) -> Skipped:
        """Skip the visit of a client that is excluded."""
        why = f"client {visit.m} is excluded (serve --without)"
        self.journal.skip(visit, why)
        self.journal.note("skipped", client=visit.m, round=visit.r, occurrence=visit.i, fence=0, why=why)
        return Skipped(why)

    def whole(self, x: Any) -> Any:
        """x with all that belongs to it, which it always has, unless clients hand to each other or others average."""
        return x

    def _work(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        while waiting or self.pending:
            self._once(waiting)

    def _once(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """Lease what can be leased; then one event, or none for a while."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        self._begin(waiting)
        if self._passed_over():
            return
        with suppress(Empty):
            self.overhear(self.hub.inbox.get(timeout=TICK))
        now = time.monotonic()
        self._expire(now)
        self.tend(now)

    def _begin(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """A client drawn twice makes its second visit after the first."""
        for _ in range(len(waiting)):
            index, visit = waiting.popleft()
            if visit.m in self.pending:
                waiting.append((index, visit))
            else:
                self.pending[visit.m] = Pending(index, visit, time.monotonic())
        now = time.monotonic()
        free = [
            pending
            for pending in self.pending.values()
            if pending.turn is None and now >= pending.after and not self.quarantine.is_held(pending.visit.m)
        ]
        here = self.hub.ready() if free else {}
        for pending in free:
            if pending.visit.m in here:
                self._lease(pending, here[pending.visit.m])

    def _lease(self, pending: Pending, link: int) -> None:
        pending.begin(self.tops(pending.visit), self.journal.fences.next(), link, time.monotonic())
        self.visits += 1
        lease, blob = self._words(pending)
        self.hub.grant(pending.visit.m, pending.fence)
        self.hub.send(link, lease, *tensor_transfer.chunks(pending.fence, blob))
        self._note("leased", pending)

    def _words(self, pending: Pending) -> tuple[Lease, bytes]:
        """What grants the visit, and the half that goes with it."""
        assert pending.turn is not None
        return pending.turn.lease(pending.fence, self.visits)

    def _arrived(self, event: Arrived, now: float) -> None:
        self.arrived(event)
        pending = self.pending.get(event.m)
        if pending is None or pending.turn is None or (event.resumed and pending.fence != event.accept.fence):
            if event.resumed:  # what it goes on with has been taken back, or counts, since it was told that it may
                self.hub.send(event.link, Cancel(event.accept.fence, "the visit is over"))
        elif event.resumed:
            self._resumed(pending, event, now)
        else:
            self._note("restarted", pending)
            lasted = pending.since - pending.on
            self._void(pending, "the client began afresh")
            self._again(pending, lasted)

    def _resumed(self, pending: Pending, event: Arrived, now: float) -> None:
        lasted = pending.since - pending.on
        pending.resume(event.link, now)
        self._note("resumed", pending, step=event.accept.k)
        self._again(pending, lasted)

    def _gone(self, event: Gone, now: float) -> None:
        pending = self.pending.get(event.m)
        if pending is None or pending.link != event.link:
            self.journal.note("gone", client=event.m, why=event.why)
            return
        pending.link, pending.since, pending.missed = None, now, now
        self._note("lost", pending, why=event.why)
        if event.refused and not event.final:  # what it said, it will say again
            self._blamed(pending, event.why)

    def _heard(self, event: Heard, now: float) -> None:
        pending = self.pending.get(event.m)
        if pending is None or pending.turn is None or messages.fence_of(event.message) != pending.fence:
            return
        pending.reach(event.message, now)
        if isinstance(event.message, Fail):
            self._given_up_by_client(pending, event.message)
            return
        try:
            self._answer(pending, pending.turn, event)
        except (BadMessage, Diverged) as error:
            self._fail_for(pending, error, event.link)
        except ArithmeticError as error:  # of sums with the client's numbers; StorageError and others are no such
            what = Diverged("the numbers of the visit overflow", value=str(error))
            self._fail_for(pending, what, event.link)

    def _answer(self, pending: Pending, turn: Turn, event: Heard) -> None:
        said = event.message
        if isinstance(said, messages.Step):
            self.hub.send(event.link, self._stepped(pending, turn, said))
            turn.settle()
        elif isinstance(said, messages.Finish):
            turn.finish(said)
        elif isinstance(said, Deposit):
            self._commit(pending, turn.done(said, event.half, pending.fence), event.link)

    def _given_up_by_client(self, pending: Pending, said: Fail) -> None:
        """Take a visit back that its client cannot make now, or failed to make."""
        if said.later:
            self._unable(pending, said.why)
        else:
            self._failed(pending, said.why, None, diverged=said.diverged)

    def _fail_for(self, pending: Pending, error: BadMessage | Diverged, link: int) -> None:
        """Fail the visit for an error that a message of its client has caused."""
        diverged, numeric = isinstance(error, Diverged), isinstance(error, DepositOutOfBounds)
        self._failed(pending, error.what if diverged else str(error), link, diverged=diverged, numeric=numeric)

    def _stepped(self, pending: Pending, turn: Turn, said: messages.Step) -> messages.Reply:
        """The answer to a step, and how long it took."""
        before, began = turn.applied, time.monotonic()
        reply = self._computed(turn, said)
        self.brief = time.monotonic() - began < limits.STANDSTILL / 2
        if turn.applied == before:  # asked once more, and answered with the same bytes
            self._note("repeated", pending, step=said.k)
        self.hub.grant(pending.visit.m, pending.fence, said.k + 1)
        return reply

    def _computed(self, turn: Turn, said: messages.Step) -> messages.Reply:
        """Compute a step. What the layers refuse is the message's fault, as only its data are new."""
        try:
            return turn.step(said)
        except (BadMessage, Diverged):
            raise
        except (SplitrelayError, ValueError, RuntimeError, ArithmeticError) as error:
            raise BadMessage("the server's half refuses the smashed data", value=str(error)[: limits.TEXT]) from error

    def _commit(self, pending: Pending, done: Done[Any], link: int) -> None:
        self.journal.commit(pending.visit, pending.fence, done)
        self.diverged.clear()
        self.committed_in = pending.visit.r
        self.quarantine.commit(pending.visit.m)
        self.hub.release(pending.visit.m)
        self.hub.send(link, Commit(pending.fence))
        steps = pending.turn.applied if pending.turn else 0
        self._note("committed", pending, steps=steps, loss=done.cost.loss)
        self._settle(pending, done)
