"""Links that cross: a client comes back before the server has heard that it left. Is anything said that may not be?"""

from typing import Any

import pytest
import torch

from splitrelay.algorithms.base import Step, Visit
from splitrelay.deploy.direct_handover import DirectHandover
from splitrelay.deploy.server_visit import CutVisit, VisitLease
from splitrelay.errors import WorkError
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import (
    Accept,
    Bye,
    Cancel,
    Chunk,
    Fail,
    HandoverReport,
    Heartbeat,
    Lease,
    Message,
    Ready,
)
from splitrelay.network.protocol import OVER, State
from splitrelay.network.shared_event_loop import ClientConnected
from tests.support.bare_server import lease, make_remote_clients, run_bare_server, wait_until
from tests.support.error_fields import expect_error


def heard(here: Any, *, connections: int) -> None:
    """The thread that trains hears of so many arrivals."""
    seen = 0
    while seen < connections:
        seen += isinstance(here.network.connections.inbox.get(timeout=300), ClientConnected)


def test_nobody_is_ready_before_its_arrival_was_heard_of() -> None:
    """A client may hold another visit when it gets a lease on a connection that is not announced yet."""
    with run_bare_server() as here:
        here.joined(0)
        assert 0 in here.network.connections.get_clients() and 0 not in here.network.connections.get_announced_clients()
        heard(here, connections=1)
        assert here.network.connections.get_announced_clients() == here.network.connections.get_clients()
        here.joined(0)
        assert 0 not in here.network.connections.get_announced_clients()  # it came once more, over another connection
        heard(here, connections=1)
        assert here.network.connections.get_announced_clients() == here.network.connections.get_clients()


def test_a_visit_that_is_over_is_taken_back_from_who_goes_on_with_it() -> None:
    """It was told that it may go on, and then its lease ran out before the thread that trains heard of it."""
    with run_bare_server() as here:
        said: list[tuple[int, Message]] = []
        here.network.connections.send = lambda connection, *words: said.extend((connection, word) for word in words)  # type: ignore[method-assign]
        remote = make_remote_clients(here)
        remote.scheduler.leases[0] = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 1), 0.0)
        remote.handle_event(ClientConnected(0, 7, Accept("h", "fast", "cpu", 5, fence=3, k=1), resumed=True))
        assert said == [(7, Cancel(3, "the visit is over"))]


def test_a_deposit_that_is_not_needed_any_more_is_not_taken_back() -> None:
    with run_bare_server() as here:
        said: list[Any] = []
        here.network.connections.send = lambda *words: said.append(words)  # type: ignore[method-assign]
        remote = make_remote_clients(here, make_handover=DirectHandover)
        assert isinstance(remote.handover, DirectHandover)
        remote.handover.covered_fences[0] = 3
        remote.handle_event(ClientConnected(0, 7, Accept("h", "fast", "cpu", 5, fence=3, k=1), resumed=True))
        assert not said and remote.is_busy(0)


def test_a_half_is_handed_on_once_over_a_link() -> None:
    with run_bare_server() as here:
        handover = make_remote_clients(here, make_handover=DirectHandover).handover
        assert isinstance(handover, DirectHandover)
        pending = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 1), 0.0)
        pending.start(Finished(), 1, 5, 0.0)
        handover.handle_handover_report(pending, HandoverReport(1, 0, b"", "nobody is there"))
        with expect_error(BadMessage, value=1):
            handover.handle_handover_report(pending, HandoverReport(1, 0, b"", "nobody is there"))
        pending.resume(6, 1.0)
        handover.handle_handover_report(pending, HandoverReport(1, 0, b"", "nobody is there"))


class Finished(CutVisit):
    """A turn whose steps are all made."""

    def __init__(self) -> None:
        self.is_finished = True

    def get_top(self) -> torch.Tensor:
        return torch.zeros(1)


def test_a_word_of_ours_that_has_no_place_ends_the_link_and_is_recorded() -> None:
    """The connection ends rather than stay open without messages."""
    with run_bare_server() as here:
        connection = here.leased(0)
        wait_until(lambda: here.network.connections.clients[0].conversation.state is State.STEPPING)
        here.say(0, lease(9))  # in the middle of a visit
        wait_until(lambda: [event for event, facts in here.noted if event == "misspoke"])
        wait_until(lambda: 0 not in here.network.connections.get_clients())
        with pytest.raises(WorkError):
            while True:
                assert not isinstance(connection.receive(300), Lease)


def test_what_is_left_of_a_half_is_not_said_to_who_gave_it_up() -> None:
    """A client fails its visit while the half is being sent: the connection stays, and the next visit succeeds."""
    with run_bare_server() as here:
        connection = here.joined(0)
        caller = here.network.connections.clients[0]
        here.say(0, lease(1))
        assert isinstance(connection.receive(300), Lease)
        connection.send(Fail(1, "no"))
        wait_until(lambda: caller.conversation.state is State.IDLE)
        here.say(0, Chunk(1, 0, b"late"), lease(2))
        assert isinstance(connection.receive(300), Lease)
        assert not [event for event, _ in here.noted if event == "misspoke"] and not caller.queued_chunks


def test_a_message_that_crosses_our_goodbye_is_no_fault_of_the_client() -> None:
    with run_bare_server() as here:
        connection = here.joined(0)
        caller = here.network.connections.clients[0]
        here.say(0, Bye("all rounds are done"))
        wait_until(lambda: caller.conversation.state in OVER)
        connection.send(Heartbeat())
        wait_until(lambda: 0 not in here.network.connections.get_clients())
        assert not [event for event, _ in here.noted if event == "refused"]


def test_ready_is_said_when_the_half_has_come() -> None:
    with run_bare_server() as here:
        here.joined(0)
        caller = here.network.connections.clients[0]
        caller.conversation.state, caller.conversation.fence, caller.queued_chunks = State.LEASED, 1, 1
        with expect_error(BadMessage, what="ready", value=1, limit=True):
            here.network.connections.handle_message(caller, Ready(1))
