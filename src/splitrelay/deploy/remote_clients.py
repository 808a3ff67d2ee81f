"""Clients on other hosts, as an algorithm sees them. A visit is a transaction: leased, stepped, then committed or void.

Parts
    - `RemoteClients` reads the events of the connections and makes visits.
    - `VisitScheduler` holds the leases: timeouts, failures, skips.
    - `Handover` says how the client half gets from one visit to the next: through the server (`Handover` itself),
      from client to client (`direct_handover`), or by way of a fed server (`fed_averaging`).
    - `HalfDisputes` decides who is to blame for a sealed half that somebody cannot open.

Threads
    - One thread trains. It calls `run` and `run_all`, and computes everything: torch runs on no other thread.
    - The event loop of network/ reads and writes the connections. It puts events into `connections.inbox`.
    - While the training thread waits in `connections.inbox.get`, it runs the loop itself. The loop then calls
      `answer_immediately` on that same thread, so that a short step needs no change of threads.
    - Other threads may only read: `list_waits`, and the leases for the status report.

Order
    - A lease is granted to a connection only after its arrival was read from the inbox (`get_announced_clients`).
    - A message counts only if it has the fence of the present lease. All others are dropped.
    - The journal has a commit before the client learns of it. A restarted server therefore never repeats a visit
      that a client believes to be done.
    - A reply is sent before the update of its step is applied (`ServerVisit.apply_early`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from splitrelay.algorithms.base import Done, Outcome, Skipped, Visit
from splitrelay.deploy.deposit_bound import DepositOutOfBounds
from splitrelay.deploy.server_visit import ServerVisit, VisitLease
from splitrelay.deploy.stalls import Wait
from splitrelay.deploy.state_probe import SpoiledDeposit
from splitrelay.deploy.visit_scheduler import VisitContext, VisitScheduler
from splitrelay.errors import Diverged, SplitrelayError
from splitrelay.network import limits, messages
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Cancel, Commit, Deposit, Fail, Lease
from splitrelay.network.shared_event_loop import Answer, ClientConnected, ClientDisconnected, MessageReceived

if TYPE_CHECKING:
    from splitrelay.deploy.half_disputes import HalfDisputes


class Handover:
    """How the client half gets from one visit to the next. This one passes it through the server, which can read it.

    `RemoteClients` calls each method at the moment that the method names, on the training thread. Methods that return
    a bool return True if nothing else is to be done.
    """

    disputes: HalfDisputes | None = None  # None: the server can read the halves

    def prepare(self, visits: list[Visit[Any]]) -> list[Visit[Any]]:
        """Return the visits that are to be made."""
        return visits

    def complete(self, x: Any) -> Any:
        """Return x with both halves present. Wait for a half that is still elsewhere."""
        return x

    def run(self, make_visit: Callable[[], Outcome[Any]]) -> Outcome[Any]:
        """Make one visit, after others that have to be repeated."""
        return make_visit()

    def is_busy(self, m: int) -> bool:
        """Return whether client m cannot be asked for anything yet."""
        return False

    def can_lease(self, lease: VisitLease) -> bool:
        """Return whether the visit can start now."""
        return True

    def adapt_grant(self, lease: VisitLease, grant: Lease, blob: bytes) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and the half that follows it."""
        return grant, blob

    def handle_arrival(self, event: ClientConnected, now: float) -> bool:
        """Handle a new connection."""
        return False

    def handle_departure(self, event: ClientDisconnected, now: float) -> bool:
        """Handle the end of a connection."""
        return False

    def handle_message(self, event: MessageReceived, now: float) -> bool:
        """Handle a message that may be of a visit that has ended."""
        return False

    def handle_visit_message(self, lease: VisitLease, event: MessageReceived) -> bool:
        """Handle a message of a visit in progress."""
        return False

    def handle_failure(self, lease: VisitLease, message: Fail) -> bool:
        """Handle the message of a client that cannot make its visit."""
        return False

    def prepare_commit(self, lease: VisitLease, done: Done[Any]) -> None:
        """Get ready for the commit of a visit."""

    def prepare_roll_back(self, lease: VisitLease) -> None:
        """Get ready for the roll-back of a visit."""

    def check_timeouts(self, now: float) -> None:
        """Check the timeouts of transfers that do not belong to a visit in progress."""

    def list_waits(self, now: float) -> list[Wait]:
        """List further waits of the run."""
        return []


class RemoteClients:
    """M clients on other hosts; see the top of this file."""

    def __init__(
        self,
        context: VisitContext,
        *,
        make_handover: Callable[[RemoteClients], Handover] = lambda clients: Handover(),
        excluded: frozenset[int] = frozenset(),
        on_arrival: Callable[[ClientConnected], None] = lambda event: None,
    ) -> None:
        """Build the scheduler and the handover.

        Args:
            context: The parts of the server that make visits.
            make_handover: Makes the handover of these clients.
            excluded: Clients whose visits are skipped.
            on_arrival: Gets each new connection.
        """
        self.connections, self.server_visits = context.connections, context.server_visits
        self.journal, self.policy, self.stop = context.journal, context.policy, context.stop
        self.excluded, self.on_arrival = excluded, on_arrival
        self.scheduler = VisitScheduler(
            context,
            on_roll_back=lambda lease: self.handover.prepare_roll_back(lease),
            take_absence=lambda lease, now: self.disputes is not None and self.disputes.take_absence(lease, now),
        )
        self.handover = make_handover(self)
        self.disputes = self.handover.disputes
        self.visits = 0  # leases so far
        self._next_checks = 0.0  # when timeouts are checked next
        self.is_brief = False  # whether a step is so short that the connections may wait for it
        self.connections.inbox.answer_inline = self.answer_immediately

    # What an algorithm calls

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """Make one visit."""
        return self.handover.run(lambda: next(self.run_all([visit])))

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Make all visits, those of different clients at the same time. The outcomes are in the order of the visits."""
        asked = self.handover.prepare(list(visits))
        scheduler = self.scheduler
        outcomes = scheduler.outcomes = {}
        if self.disputes is not None:
            self.disputes.start_visits(asked)
        waiting: deque[tuple[int, Visit[Any]]] = deque()
        for index, visit in enumerate(asked):
            before = self.journal.find(visit)
            if before is None and visit.m in self.excluded:
                outcomes[index] = self._skip_excluded(visit)
            elif before is None:
                waiting.append((index, visit))
            else:
                self.journal.note("found", client=visit.m, round=visit.r, occurrence=visit.i)
                scheduler.committed_in = visit.r if isinstance(before, Done) else scheduler.committed_in
                outcomes[index] = before
        try:
            while waiting or scheduler.leases:
                self.process_event(waiting)
        except SpoiledDeposit as error:
            self.roll_back_all(error.what, error.what)
            raise
        finally:
            self.roll_back_all("the server stops")
            scheduler.leases = {}
        found = [outcomes[index] for index in range(len(asked))]
        if self.disputes is not None:
            self.disputes.record_outcomes(asked, found)
        return iter(found)

    def complete(self, x: Any) -> Any:
        """Return x with both halves present."""
        return self.handover.complete(x)

    # What the rest of the server calls

    def list_waits(self, now: float) -> list[Wait]:
        """List what the run waits for. Other threads may call this."""
        return [*self.scheduler.list_waits(now), *self.handover.list_waits(now)]

    def is_busy(self, m: int) -> bool:
        """Return whether client m cannot be asked for anything yet."""
        return self.handover.is_busy(m)

    def run_periodic_checks(self, now: float) -> None:
        """Read the operator's files and report waits, both at most once a second."""
        self.scheduler.quarantine.check_lifts(now)
        self.scheduler.stalls.check(now, self.list_waits)

    def roll_back_all(self, why: str, cancel: str | None = None) -> None:
        """Roll back all visits in progress, and cancel them at the clients for the reason `cancel`, if given."""
        for lease in list(self.scheduler.leases.values()):
            self.scheduler.roll_back(lease, why, None if cancel is None else Cancel(lease.fence, cancel))

    def process_event(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """Grant the leases that can be granted, then handle one event, or none after `server_tick` seconds.

        Timeouts are checked as often as that, not at each message.
        """
        if self.stop.is_set():
            raise KeyboardInterrupt
        self._grant_leases(waiting)
        is_absent = any(lease.connection is None for lease in self.scheduler.leases.values())
        if not (is_absent and self.scheduler.skip_absent()):
            with suppress(Empty):
                self.handle_event(self.connections.inbox.get(timeout=self.connections.timeouts.server_tick))
            now = time.monotonic()
            if now >= self._next_checks:
                self._next_checks = now + self.connections.timeouts.server_tick
                self.scheduler.check_timeouts(now)
                self.handover.check_timeouts(now)
                self.run_periodic_checks(now)
        if self.disputes is not None:
            self.disputes.decide_complaints()

    def handle_event(self, event: ClientConnected | ClientDisconnected | MessageReceived) -> None:
        """Handle an event, also while no visit is in progress."""
        now = time.monotonic()
        if isinstance(event, ClientConnected):
            self.scheduler.absent.pop(event.m, None)
            self.scheduler.seen.add(event.m)
            self.on_arrival(event)
            if not self.handover.handle_arrival(event, now):
                self._handle_arrival(event, now)
        elif isinstance(event, ClientDisconnected):
            if event.final:
                self.scheduler.absent[event.m] = event.why
            if not self.handover.handle_departure(event, now):
                self._handle_departure(event, now)
        elif not self.handover.handle_message(event, now):
            self._handle_message(event, now)

    def answer_immediately(self, event: MessageReceived) -> Answer | None:
        """Answer a short step where it was read. Return None for all other messages: they go through the inbox."""
        lease, message = self.scheduler.leases.get(event.m), event.message
        if not (self.is_brief and isinstance(message, messages.Step)) or lease is None or lease.fence != message.fence:
            return None
        assert lease.server_visit is not None  # as it has a fence
        server_visit = lease.server_visit
        lease.record_message(message, time.monotonic())
        try:
            reply = self.compute_reply(lease, server_visit, message)
        except (BadMessage, Diverged) as error:
            self._fail_for_error(lease, error, event.connection)
            return None  # the fence is void now: the message in the inbox is dropped
        # If the visit has ended before the reply has left, another visit may use its engine.
        return Answer(reply, lambda: server_visit.apply_early() if lease.server_visit is server_visit else None)

    # Leases

    def _skip_excluded(self, visit: Visit[Any]) -> Skipped:
        why = f"client {visit.m} is excluded (serve --without)"
        self.journal.skip(visit, why)
        self.journal.note("skipped", client=visit.m, round=visit.r, occurrence=visit.i, fence=0, why=why)
        return Skipped(why)

    def _grant_leases(self, waiting: deque[tuple[int, Visit[Any]]]) -> None:
        """Lease the visits whose clients are ready. The second visit of a client waits for its first."""
        leases, quarantine = self.scheduler.leases, self.scheduler.quarantine
        for _ in range(len(waiting)):
            index, visit = waiting.popleft()
            if visit.m in leases:
                waiting.append((index, visit))
            else:
                leases[visit.m] = VisitLease(index, visit, time.monotonic())
        now = time.monotonic()
        free = [
            lease
            for lease in leases.values()
            if lease.server_visit is None and now >= lease.after and not quarantine.is_held(lease.visit.m)
        ]
        ready = self.connections.get_announced_clients() if free else {}
        for lease in free:
            if lease.visit.m in ready and self.handover.can_lease(lease):
                self._grant_lease(lease, ready[lease.visit.m])

    def _grant_lease(self, lease: VisitLease, connection: int) -> None:
        server_visit = self.server_visits(lease.visit)
        lease.start(server_visit, self.journal.fences.next(), connection, time.monotonic())
        self.visits += 1
        grant, blob = self.handover.adapt_grant(lease, *server_visit.build_lease(lease.fence, self.visits))
        self.connections.grant(lease.visit.m, lease.fence)
        self.connections.send_half(connection, grant, blob)
        self.scheduler.note("leased", lease)

    # Events

    def _handle_arrival(self, event: ClientConnected, now: float) -> None:
        lease = self.scheduler.leases.get(event.m)
        if lease is None or lease.server_visit is None or (event.resumed and lease.fence != event.accept.fence):
            if event.resumed:  # its visit was rolled back or committed since the handshake allowed it to continue
                self.connections.send(event.connection, Cancel(event.accept.fence, "the visit is over"))
            return
        lasted = lease.since - lease.on
        if event.resumed:
            lease.resume(event.connection, now)
            self.scheduler.note("resumed", lease, step=event.accept.k)
        else:
            self.scheduler.note("restarted", lease)
            self.scheduler.roll_back(lease, "the client began afresh")
        self.scheduler.handle_reconnect(lease, lasted)

    def _handle_departure(self, event: ClientDisconnected, now: float) -> None:
        lease = self.scheduler.leases.get(event.m)
        if lease is None or lease.connection != event.connection:
            self.journal.note("gone", client=event.m, why=event.why)
            return
        lease.connection, lease.since, lease.absent_since = None, now, now
        self.scheduler.note("lost", lease, why=event.why)
        if event.refused and not event.final:  # the client would send the refused message again
            self.scheduler.record_failure(lease, event.why)

    def _handle_message(self, event: MessageReceived, now: float) -> None:
        lease, message = self.scheduler.leases.get(event.m), event.message
        if lease is None or lease.server_visit is None or message.fence != lease.fence:
            return
        lease.record_message(message, now)
        if isinstance(message, Fail):
            self._handle_failure(lease, message)
            return
        try:
            self._handle_visit_message(lease, lease.server_visit, event)
        except (BadMessage, Diverged) as error:
            self._fail_for_error(lease, error, event.connection)
        except ArithmeticError as error:  # sums with the client's numbers
            overflow = Diverged("the numbers of the visit overflow", value=str(error))
            self._fail_for_error(lease, overflow, event.connection)

    def _handle_failure(self, lease: VisitLease, message: Fail) -> None:
        """Roll back a visit that its client cannot make now, or failed to make."""
        if self.handover.handle_failure(lease, message):
            return
        if self.disputes is not None and self.disputes.handle_failure(lease, message):
            return
        if message.later:
            why = message.why if self.disputes is None else self.disputes.add_writer(lease, message.why)
            self.scheduler.postpone_visit(lease, why)
        else:
            self._fail_visit(lease, message.why, None, diverged=message.diverged)

    def _handle_visit_message(self, lease: VisitLease, server_visit: ServerVisit, event: MessageReceived) -> None:
        message = event.message
        if self.handover.handle_visit_message(lease, event):
            return
        if isinstance(message, messages.Ready) and self.disputes is not None:
            self.disputes.record_opening(lease.visit.x, event.m)
        elif isinstance(message, messages.Step):
            self.connections.send(event.connection, self.compute_reply(lease, server_visit, message))
            server_visit.apply_early()
        elif isinstance(message, messages.Finish):
            server_visit.finish(message)
        elif isinstance(message, Deposit):
            self._commit(lease, server_visit.read_deposit(message, event.half, lease.fence), event.connection)

    def _fail_visit(
        self, lease: VisitLease, why: str, connection: int | None, *, diverged: bool = False, numeric: bool = False
    ) -> None:
        """Fail the visit. If its half is sealed and numbers overflow, the writer of the half may be to blame."""
        fail = self.scheduler.fail_visit if self.disputes is None else self.disputes.fail_visit
        fail(lease, why, connection, diverged=diverged, numeric=numeric)

    def _fail_for_error(self, lease: VisitLease, error: BadMessage | Diverged, connection: int) -> None:
        """Fail the visit for an error that a message of its client has caused."""
        diverged, numeric = isinstance(error, Diverged), isinstance(error, DepositOutOfBounds)
        why = error.what if diverged else str(error)
        self._fail_visit(lease, why, connection, diverged=diverged, numeric=numeric)

    def compute_reply(self, lease: VisitLease, server_visit: ServerVisit, step: messages.Step) -> messages.Reply:
        """Compute a step.

        Raises:
            BadMessage: The layers refuse the smashed data. This is the client's fault: only its data are new.
            Diverged: A number overflowed.
        """
        before, started = server_visit.applied, time.monotonic()
        try:
            reply = server_visit.step(step)
        except (BadMessage, Diverged):
            raise
        except (SplitrelayError, ValueError, RuntimeError, ArithmeticError) as error:
            raise BadMessage("the server's half refuses the smashed data", value=str(error)[: limits.TEXT]) from error
        self.is_brief = time.monotonic() - started < self.connections.timeouts.standstill / 2
        if server_visit.applied == before:
            self.scheduler.note("repeated", lease, step=step.k)
        self.connections.grant(lease.visit.m, lease.fence, step.k + 1)
        return reply

    def _commit(self, lease: VisitLease, done: Done[Any], connection: int) -> None:
        self.handover.prepare_commit(lease, done)
        scheduler = self.scheduler
        self.journal.commit(lease.visit, lease.fence, done)
        scheduler.diverged.clear()
        scheduler.committed_in = lease.visit.r
        scheduler.quarantine.commit(lease.visit.m)
        self.connections.release(lease.visit.m)
        self.connections.send(connection, Commit(lease.fence))
        steps = lease.server_visit.applied if lease.server_visit else 0
        scheduler.note("committed", lease, steps=steps, loss=done.cost.loss)
        scheduler.end_visit(lease, done)
        if self.disputes is not None:
            self.disputes.count_sound(lease.visit.m)
