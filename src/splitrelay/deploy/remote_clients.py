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
from splitrelay.deploy.server_visit import Policy, ServerVisit, ServerVisits, VisitLease
from splitrelay.deploy.stalls import StallReporter
from splitrelay.deploy.state_probe import SpoiledDeposit
from splitrelay.deploy.visit_scheduler import VisitScheduler
from splitrelay.errors import Diverged, SplitrelayError
from splitrelay.network import limits, messages, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, Lease
from splitrelay.network.server import NetworkServer
from splitrelay.network.shared_event_loop import Answer, ClientConnected, ClientDisconnected, MessageReceived


class RemoteClients(VisitScheduler):
    """M clients behind a hub. All torch work is done here, in the thread that trains."""

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
        super().__init__(hub, server_visits, journal, policy, stop, quarantine, stalls)
        self.visits = 0
        self.arrived: Callable[[ClientConnected], None] = lambda event: None
        self.excluded: frozenset[int] = frozenset()  # clients whose visits are skipped from now on
        self.brief = False  # whether a step takes so little time that the links may wait for it
        hub.inbox.answer_inline = self.at_once

    def is_busy(self, m: int) -> bool:
        """Whether nothing can be asked of client m yet."""
        return False

    def handle_event(self, event: ClientConnected | ClientDisconnected | MessageReceived) -> None:
        """Whatever comes in, also while no visit is going on."""
        now = time.monotonic()
        if isinstance(event, ClientConnected):
            self.absent.pop(event.m, None)
            self.seen.add(event.m)
            self._handle_arrival(event, now)
        elif isinstance(event, ClientDisconnected):
            if event.final:
                self.absent[event.m] = event.why
            self._handle_departure(event, now)
        else:
            self._handle_message(event, now)

    def at_once(self, event: MessageReceived) -> Answer | None:
        """A step of a visit that is going on, answered where it was read; nothing else is that urgent."""
        lease, said = self.leases.get(event.m), event.message
        if not (self.brief and isinstance(said, messages.Step)) or lease is None or lease.fence != said.fence:
            return None
        assert lease.server_visit is not None  # as it has a fence
        server_visit = lease.server_visit
        lease.record_message(said, time.monotonic())
        try:
            reply = self._handle_step(lease, server_visit, said)
        except (BadMessage, Diverged) as error:
            self._fail_for_error(lease, error, event.link)
            return None  # nobody will look at a word of a visit that is void
        return Answer(
            reply, lambda: server_visit.apply_early() if lease.server_visit is server_visit else None
        )  # else its net is another's

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
                self.outcomes[index] = self._skip_excluded(visit)
            elif before is None:
                waiting.append((index, visit))
            else:
                self.journal.note("found", client=visit.m, round=visit.r, occurrence=visit.i)
                self.committed_in = visit.r if isinstance(before, Done) else self.committed_in
                self.outcomes[index] = before
        try:
            self._run_visits(waiting)
        except SpoiledDeposit as error:
            for lease in list(self.leases.values()):
                self._roll_back(lease, error.what, Cancel(lease.fence, error.what))
            raise
        finally:
            for lease in list(self.leases.values()):
                self._roll_back(lease, "the server stops")
            self.leases = {}
        return iter([self.outcomes[index] for index in range(len(asked))])

    def _skip_excluded(self, visit: Visit[Any]) -> Skipped:
        """Skip the visit of a client that is excluded."""
        why = f"client {visit.m} is excluded (serve --without)"
        self.journal.skip(visit, why)
        self.journal.note("skipped", client=visit.m, round=visit.r, occurrence=visit.i, fence=0, why=why)
        return Skipped(why)

    def whole(self, x: Any) -> Any:
        """x with all that belongs to it, which it always has, unless clients hand to each other or others average."""
        return x

    def _run_visits(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        while waiting or self.leases:
            self._process_event(waiting)

    def _process_event(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """Lease what can be leased; then one event, or none for a while."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        self._begin(waiting)
        if self._skip_absent():
            return
        with suppress(Empty):
            self.handle_event(self.hub.inbox.get(timeout=self.hub.timeouts.server_tick))
        now = time.monotonic()
        self._check_timeouts(now)
        self.run_periodic_checks(now)

    def _begin(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """A client drawn twice makes its second visit after the first."""
        for _ in range(len(waiting)):
            index, visit = waiting.popleft()
            if visit.m in self.leases:
                waiting.append((index, visit))
            else:
                self.leases[visit.m] = VisitLease(index, visit, time.monotonic())
        now = time.monotonic()
        free = [
            lease
            for lease in self.leases.values()
            if lease.server_visit is None and now >= lease.after and not self.quarantine.is_held(lease.visit.m)
        ]
        here = self.hub.get_announced_clients() if free else {}
        for lease in free:
            if lease.visit.m in here:
                self._grant_lease(lease, here[lease.visit.m])

    def _grant_lease(self, lease: VisitLease, link: int) -> None:
        lease.start(self.server_visits(lease.visit), self.journal.fences.next(), link, time.monotonic())
        self.visits += 1
        grant, blob = self._build_lease(lease)
        self.hub.grant(lease.visit.m, lease.fence)
        self.hub.send(link, grant, *tensor_transfer.split_into_chunks(lease.fence, blob, self.hub.limits.piece))
        self._note("leased", lease)

    def _build_lease(self, lease: VisitLease) -> tuple[Lease, bytes]:
        """What grants the visit, and the half that goes with it."""
        assert lease.server_visit is not None
        return lease.server_visit.build_lease(lease.fence, self.visits)

    def _handle_arrival(self, event: ClientConnected, now: float) -> None:
        self.arrived(event)
        lease = self.leases.get(event.m)
        if lease is None or lease.server_visit is None or (event.resumed and lease.fence != event.accept.fence):
            if event.resumed:  # what it goes on with has been taken back, or counts, since it was told that it may
                self.hub.send(event.link, Cancel(event.accept.fence, "the visit is over"))
        elif event.resumed:
            self._resume_visit(lease, event, now)
        else:
            self._note("restarted", lease)
            lasted = lease.since - lease.on
            self._roll_back(lease, "the client began afresh")
            self._handle_reconnect(lease, lasted)

    def _resume_visit(self, lease: VisitLease, event: ClientConnected, now: float) -> None:
        lasted = lease.since - lease.on
        lease.resume(event.link, now)
        self._note("resumed", lease, step=event.accept.k)
        self._handle_reconnect(lease, lasted)

    def _handle_departure(self, event: ClientDisconnected, now: float) -> None:
        lease = self.leases.get(event.m)
        if lease is None or lease.link != event.link:
            self.journal.note("gone", client=event.m, why=event.why)
            return
        lease.link, lease.since, lease.absent_since = None, now, now
        self._note("lost", lease, why=event.why)
        if event.refused and not event.final:  # what it said, it will say again
            self._record_failure(lease, event.why)

    def _handle_message(self, event: MessageReceived, now: float) -> None:
        lease = self.leases.get(event.m)
        if lease is None or lease.server_visit is None or messages.get_fence(event.message) != lease.fence:
            return
        lease.record_message(event.message, now)
        if isinstance(event.message, Fail):
            self._handle_failure(lease, event.message)
            return
        try:
            self._answer(lease, lease.server_visit, event)
        except (BadMessage, Diverged) as error:
            self._fail_for_error(lease, error, event.link)
        except ArithmeticError as error:  # of sums with the client's numbers; StorageError and others are no such
            what = Diverged("the numbers of the visit overflow", value=str(error))
            self._fail_for_error(lease, what, event.link)

    def _answer(self, lease: VisitLease, server_visit: ServerVisit, event: MessageReceived) -> None:
        said = event.message
        if isinstance(said, messages.Step):
            self.hub.send(event.link, self._handle_step(lease, server_visit, said))
            server_visit.apply_early()
        elif isinstance(said, messages.Finish):
            server_visit.finish(said)
        elif isinstance(said, Deposit):
            self._commit(lease, server_visit.read_deposit(said, event.half, lease.fence), event.link)

    def _handle_failure(self, lease: VisitLease, said: Fail) -> None:
        """Take a visit back that its client cannot make now, or failed to make."""
        if said.later:
            self._postpone_visit(lease, said.why)
        else:
            self._fail_visit(lease, said.why, None, diverged=said.diverged)

    def _fail_for_error(self, lease: VisitLease, error: BadMessage | Diverged, link: int) -> None:
        """Fail the visit for an error that a message of its client has caused."""
        diverged, numeric = isinstance(error, Diverged), isinstance(error, DepositOutOfBounds)
        self._fail_visit(lease, error.what if diverged else str(error), link, diverged=diverged, numeric=numeric)

    def _handle_step(self, lease: VisitLease, server_visit: ServerVisit, said: messages.Step) -> messages.Reply:
        """The answer to a step, and how long it took."""
        before, began = server_visit.applied, time.monotonic()
        reply = self._compute_step(server_visit, said)
        self.brief = time.monotonic() - began < self.hub.timeouts.standstill / 2
        if server_visit.applied == before:  # asked once more, and answered with the same bytes
            self._note("repeated", lease, step=said.k)
        self.hub.grant(lease.visit.m, lease.fence, said.k + 1)
        return reply

    def _compute_step(self, server_visit: ServerVisit, said: messages.Step) -> messages.Reply:
        """Compute a step. What the layers refuse is the message's fault, as only its data are new."""
        try:
            return server_visit.step(said)
        except (BadMessage, Diverged):
            raise
        except (SplitrelayError, ValueError, RuntimeError, ArithmeticError) as error:
            raise BadMessage("the server's half refuses the smashed data", value=str(error)[: limits.TEXT]) from error

    def _commit(self, lease: VisitLease, done: Done[Any], link: int) -> None:
        self.journal.commit(lease.visit, lease.fence, done)
        self.diverged.clear()
        self.committed_in = lease.visit.r
        self.quarantine.commit(lease.visit.m)
        self.hub.release(lease.visit.m)
        self.hub.send(link, Commit(lease.fence))
        steps = lease.server_visit.applied if lease.server_visit else 0
        self._note("committed", lease, steps=steps, loss=done.cost.loss)
        self._end_visit(lease, done)
