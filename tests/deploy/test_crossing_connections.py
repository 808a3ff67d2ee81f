"""Links that cross: a client comes back before the server has heard that it left. Is anything said that may not be?"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitrelay.algorithms.base import Step, Visit
from splitrelay.deploy.direct_handover import DirectHandover
from splitrelay.deploy.remote_clients import Handover, RemoteClients
from splitrelay.deploy.server_visit import CutVisit, Policy, VisitLease
from splitrelay.errors import WorkError
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Accept, Cancel, Chunk, Fail, HandoverReport, Lease, Message, Ready
from splitrelay.network.protocol import State
from splitrelay.network.shared_event_loop import ClientConnected
from tests.support.bare_server import lease, run_bare_server, wait_until
from tests.support.error_fields import expect_error


class Quiet:
    """A journal that nobody reads."""

    def note(self, *_: Any, **__: Any) -> None:
        pass


def remote_of(
    here: Any, make_handover: Callable[[RemoteClients], Handover] = lambda clients: Handover()
) -> RemoteClients:
    return RemoteClients(here.hub, Any, Quiet(), Policy(), threading.Event(), make_handover=make_handover)  # type: ignore[arg-type]


def heard(here: Any, *, links: int) -> None:
    """The thread that trains hears of so many arrivals."""
    seen = 0
    while seen < links:
        seen += isinstance(here.hub.inbox.get(timeout=60), ClientConnected)


def test_nobody_is_ready_before_its_arrival_was_heard_of() -> None:
    """A client that is leased a visit on a link of which nothing is known yet may be holding another one."""
    with run_bare_server() as here:
        here.joined(0)
        assert 0 in here.hub.get_clients() and 0 not in here.hub.get_announced_clients()
        heard(here, links=1)
        assert here.hub.get_announced_clients() == here.hub.get_clients()
        here.joined(0)
        assert 0 not in here.hub.get_announced_clients()  # it came once more, over another link
        heard(here, links=1)
        assert here.hub.get_announced_clients() == here.hub.get_clients()


def test_a_visit_that_is_over_is_taken_back_from_who_goes_on_with_it() -> None:
    """It was told that it may go on, and then its lease ran out before the thread that trains heard of it."""
    with run_bare_server() as here:
        said: list[tuple[int, Message]] = []
        here.hub.send = lambda link, *words: said.extend((link, word) for word in words)  # type: ignore[method-assign]
        remote = remote_of(here)
        remote.scheduler.leases[0] = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 1), 0.0)
        remote.handle_event(ClientConnected(0, 7, Accept("h", "fast", "cpu", 5, fence=3, k=1), resumed=True))
        assert said == [(7, Cancel(3, "the visit is over"))]


def test_a_deposit_that_is_not_needed_any_more_is_not_taken_back() -> None:
    with run_bare_server() as here:
        said: list[Any] = []
        here.hub.send = lambda *words: said.append(words)  # type: ignore[method-assign]
        remote = remote_of(here, DirectHandover)
        assert isinstance(remote.handover, DirectHandover)
        remote.handover.covered[0] = 3
        remote.handle_event(ClientConnected(0, 7, Accept("h", "fast", "cpu", 5, fence=3, k=1), resumed=True))
        assert not said and remote.is_busy(0)


def test_a_half_is_handed_on_once_over_a_link() -> None:
    with run_bare_server() as here:
        handover = remote_of(here, DirectHandover).handover
        assert isinstance(handover, DirectHandover)
        pending = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 1), 0.0)
        pending.start(Finished(), 1, 5, 0.0)
        handover.handle_handed(pending, HandoverReport(1, 0, b"", "nobody is there"))
        with expect_error(BadMessage, value=1):
            handover.handle_handed(pending, HandoverReport(1, 0, b"", "nobody is there"))
        pending.resume(6, 1.0)
        handover.handle_handed(pending, HandoverReport(1, 0, b"", "nobody is there"))


class Finished(CutVisit):
    """A turn whose steps are all made."""

    def __init__(self) -> None:
        self.is_finished = True

    def get_top(self) -> torch.Tensor:
        return torch.zeros(1)


def test_a_word_of_ours_that_has_no_place_ends_the_link_and_is_recorded() -> None:
    """Better another link than one on which nothing more is said."""
    with run_bare_server() as here:
        link = here.leased(0)
        wait_until(lambda: here.hub.handler.clients[0].conversation.state is State.STEPPING)
        here.say(0, lease(9))  # in the middle of a visit
        wait_until(lambda: [event for event, facts in here.noted if event == "misspoke"])
        wait_until(lambda: 0 not in here.hub.get_clients())
        with pytest.raises(WorkError):
            while True:
                assert not isinstance(link.receive(60), Lease)


def test_what_is_left_of_a_half_is_not_said_to_who_gave_it_up() -> None:
    """A client fails its visit while the half is on its way: the link goes on, and the next visit too."""
    with run_bare_server() as here:
        link = here.joined(0)
        caller = here.hub.handler.clients[0]
        here.say(0, lease(1))
        assert isinstance(link.receive(60), Lease)
        link.send(Fail(1, "no"))
        wait_until(lambda: caller.conversation.state is State.IDLE)
        here.say(0, Chunk(1, 0, b"late"), lease(2))
        assert isinstance(link.receive(60), Lease)
        assert not [event for event, _ in here.noted if event == "misspoke"] and not caller.queued_chunks


def test_ready_is_said_when_the_half_has_come() -> None:
    with run_bare_server() as here:
        here.joined(0)
        caller = here.hub.handler.clients[0]
        caller.conversation.state, caller.conversation.fence, caller.queued_chunks = State.LEASED, 1, 1
        with expect_error(BadMessage, what="ready", value=1, limit=True):
            here.hub.handler.handle_message(caller, Ready(1))
