"""Does every visit come to an end, whatever its client says again and again?"""

import itertools
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitrelay.algorithms.base import Step, Visit
from splitrelay.deploy import client_visit, remote_clients, visit_scheduler
from splitrelay.deploy.backend_torch import compute_shape
from splitrelay.deploy.deployed_run import build_size_partition
from splitrelay.deploy.direct_handover import DeliveredHalf, DirectHandover
from splitrelay.deploy.server_visit import Policy, ServerVisits, VisitLease, get_stage
from splitrelay.errors import Diverged, OutputError, VisitFailed
from splitrelay.network import client_session, limits, messages
from splitrelay.network.codec import VERSION, BadMessage, decode, encode
from splitrelay.network.grpc_channel import VisitCancelled
from splitrelay.network.limits import Limits
from splitrelay.network.messages import (
    Accept,
    Deposit,
    Fail,
    Finish,
    HalfRequest,
    HandoverReport,
    Hello,
    Ready,
    Terms,
    Welcome,
)
from splitrelay.network.shared_event_loop import MessageReceived
from splitrelay.network.tensor_transfer import compute_sha256
from tests.support.bare_server import BareServer, lease, make_remote_clients, run_bare_server, step, wait_until
from tests.support.clock import Clock
from tests.support.deployment import LocalDeployment, small_spec


def pending(K: int = 5) -> VisitLease:
    made = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), K), 0.0)
    made.start(object(), 1, 1, 0.0)  # type: ignore[arg-type]
    return made


# What is progress


def test_the_words_of_a_visit_are_one_after_another() -> None:
    words = [Fail(1), Ready(1), *(step(1, k) for k in range(3)), Finish(1, 3, 0.0), HandoverReport(1, 0, b"")]
    assert [get_stage(word, 3) for word in [*words, Deposit(1, 0, b"")]] == list(range(8))


def test_a_word_that_was_said_before_is_no_progress() -> None:
    visit = pending()
    for now, word in enumerate([Ready(1), step(1, 0), step(1, 0), step(1, 1), step(1, 0), HalfRequest(1)], start=1):
        visit.record_message(word, float(now))
    assert visit.progress_at == 4.0


def test_time_without_a_link_is_not_the_clients() -> None:
    visit = pending()
    visit.record_message(step(1, 0), 10.0)
    visit.connection, visit.since = None, 12.0
    visit.resume(2, 40.0)
    assert (visit.progress_at, visit.connection) == (38.0, 2)


def test_a_half_counts_only_where_it_grows_by_a_piece() -> None:
    visit, heard = pending(), []
    for now, carried in enumerate([(0, 100), (0, 100), (10, 100), (4, 100), (19, 100), (20, 100)], start=1):
        visit.record_transfer(carried, float(now), piece=10)
        heard.append(visit.progress_at)
    assert heard == [1.0, 1.0, 3.0, 3.0, 3.0, 6.0]


def test_who_says_not_yet_again_and_again_has_the_time_of_one_that_is_away() -> None:
    """Its clock runs on from the first time, also where it begins the visit each time before it says so."""
    visit = pending()
    visit.record_message(Ready(1), 1.0)
    visit.unable = 2.0
    visit.start(object(), 2, 1, 3.0)  # type: ignore[arg-type]
    visit.record_message(Ready(2), 4.0)
    assert visit.unable == 2.0
    visit.record_message(step(2, 0), 5.0)
    assert visit.unable is None


@pytest.mark.parametrize(("after", "is_here", "is_kept"), [(50.0, False, True), (0.0, True, True), (0.0, False, False)])
def test_only_a_client_that_is_not_connected_is_away(after: float, is_here: bool, is_kept: bool) -> None:
    """It may wait for us: after a failure, for the half of a visit, or until we have read that it came back."""
    with run_bare_server() as here:
        if is_here:
            here.joined(0)
        remote = make_remote_clients(here, Policy("skip", lease=1.0))
        remote.scheduler.leases[0] = visit = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 5), 0.0)
        visit.after = after
        remote.scheduler.check_timeouts(40.0)
        assert (0 in remote.scheduler.leases) is is_kept
        assert visit.since == (40.0 if is_here or not is_kept else 0.0)  # when it leaves, it has a whole lease


@pytest.mark.parametrize(("lasted", "connections"), [(0.5, 4), (100.0, 1)])
def test_connection_that_has_lasted_is_not_counted(lasted: float, connections: int) -> None:
    with run_bare_server() as here:
        remote = make_remote_clients(here, Policy(lease=60.0))
        visit = pending()
        visit.connection_count = 3
        remote.scheduler.handle_reconnect(visit, lasted)
        assert visit.connection_count == connections


# Clients that repeat the same message


def test_a_step_that_is_only_repeated_runs_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, remote_clients, visit_scheduler)

    class Repeating(client_visit.RemoteServerHalf):
        """Send the first step again and again. The time for a step passes after the third time."""

        def step(self, k: int, h: Any, labels: Any, norm2: float, /, *_: Any) -> messages.Reply:
            super().step(k, h, labels, norm2)
            connection = self.session.connection
            assert connection is not None
            for number in itertools.count(1):
                connection.stream.put(encode(messages.Step(self.fence, k, h, labels.astype(np.int32), norm2)))
                message = decode(connection.stream.read(time.monotonic() + 300))
                if isinstance(message, messages.Cancel):
                    connection.conversation.record_received(message)
                    raise VisitCancelled(message.why)
                if number == 3:
                    clock.advance(1001.0)
            raise AssertionError

    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9"), tmp_path, policy=Policy("skip", step=1000.0))
    monkeypatch.setattr(client_visit, "RemoteServerHalf", Repeating)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert len(stage.events("failed")) == len(stage.events("skipped")) == 4 and not stage.events("committed")


@pytest.mark.parametrize("away", ["wait", "skip"])
def test_a_step_that_is_refused_again_and_again_ends_the_visit(
    away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not look at its own numbers goes on saying what is refused."""
    monkeypatch.setattr(client_session, "is_finite_array", lambda h: True)
    step = client_visit.RemoteServerHalf.step
    nan = np.float32("nan")
    monkeypatch.setattr(
        client_visit.RemoteServerHalf, "step", lambda calls, k, h, *words: step(calls, k, h * nan, *words)
    )
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=1"), tmp_path, policy=Policy(away))
    for m in stage.partition.clients:
        stage.join(m)
    if away == "wait":
        with pytest.raises(VisitFailed):
            stage.play()
    else:
        stage.play()
    refusals = {event["why"] for event in stage.events("refused")}
    failures = Counter(event["client"] for event in stage.events("lost") if event["why"] in refusals)
    skipped = [event["client"] for event in stage.events("skipped")]
    assert max(failures.values()) == stage.offer.policy.retries + 1
    assert sorted(skipped) == ([] if away == "wait" else [0, 1])
    assert all(failures[m] == stage.offer.policy.retries + 1 for m in skipped)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_half_that_overflows_stops_the_run_as_in_a_simulation(engine: str, tmp_path: Path) -> None:
    words = ("M=2", "C=9", "K=3", "eta=1e30", f"engine={engine}", "model=lenet-small")
    stage = LocalDeployment(small_spec(tmp_path, *words), tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    with pytest.raises(Diverged):
        stage.play()


def test_a_client_that_begins_again_and_again_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Limits(connections_without_progress=3)
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=1"), tmp_path, policy=Policy("skip"), limits=few)

    def falling(*_: Any, **__: Any) -> messages.Reply:
        raise BadMessage("as if the program had fallen")

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", falling)
    for m in stage.partition.clients:
        stage.join(m, limits=few)
    stage.play()
    assert [event["why"] for event in stage.events("skipped")] == ["no step on 4 connections"] * 2


def test_a_gradient_that_overflows_at_the_server_is_not_sent(tmp_path: Path) -> None:
    """The loss is a number and the gradient at the cut is none: the client could only refuse it, again and again."""
    spec = small_spec(tmp_path, "model=lenet-small", "engine=reference", "cut=flatten")
    shape = compute_shape(spec, (1, 8, 8), 10)
    tops = ServerVisits(spec, shape, (1, 8, 8), 10, 5)
    submodel = tops.engine().submodel
    low, high = (layer for layer in submodel.layers if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        low.weight.fill_(1e30)
        low.bias.fill_(1e-30)
        high.weight.copy_(torch.arange(10.0)[:, None].expand(10, 32) * 1e25)
    x = torch.cat([torch.zeros(shape.boundary), submodel.x.clone()])
    turn = tops(Visit(3, 0, 1, x, Step(0.1), 2))
    h, y = np.zeros((5, *shape.h), np.float32), np.arange(5, dtype=np.int32)
    with pytest.raises(Diverged):
        turn.step(messages.Step(1, 0, h, y, 0.0))


def test_links_on_which_nothing_happens_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Limits(connections_without_progress=3)
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=1"), tmp_path, policy=Policy("skip"), limits=few)
    step = client_visit.RemoteServerHalf.step

    def losing(calls: client_visit.RemoteServerHalf, k: int, *words: Any, **more: Any) -> messages.Reply:
        while k == 1 and not calls.session.stop.is_set():
            calls.session.disconnect()
            if not calls.session.connect():
                raise client_visit.Diverged("taken back")
        return step(calls, k, *words, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", losing)
    for m in stage.partition.clients:
        stage.join(m)
    with suppress(Diverged):  # the second client may say so before it is skipped
        stage.play()
    assert "no step on 4 connections" in {event["why"] for event in stage.events("failed")}


# What a client may bring, ask for, and leave behind


def test_a_client_cannot_bring_more_than_there_can_be() -> None:
    assert decode(encode(Accept("h", "fast", "cpu", limits.SAMPLES)))
    with pytest.raises(BadMessage) as found:
        decode(encode(Accept("h", "fast", "cpu", limits.SAMPLES + 1)))
    assert found.value.value == limits.SAMPLES + 1
    assert build_size_partition({0: limits.SAMPLES, 2: 3}, 3).sizes.tolist() == [limits.SAMPLES, 0, 3]


def test_a_half_is_asked_for_once() -> None:
    with run_bare_server() as here:
        remote = make_remote_clients(here, make_handover=DirectHandover)
        handover = remote.handover
        assert isinstance(handover, DirectHandover)
        visit = pending()
        visit.visit = Visit(0, 0, 0, Begun(), Step(0.1), 5)
        with pytest.raises(BadMessage):
            handover.handle_half_request(visit)
        handover.delivered = DeliveredHalf(0, HandoverReport(7, 0, b""))
        handover.handle_half_request(visit)
        with pytest.raises(BadMessage):
            handover.handle_half_request(visit)


class Begun:
    """x, of which only the fence is looked at, and the bytes."""

    fence, visit, blob = 7, 3, np.zeros(1)

    def bytes(self) -> bytes:
        return b""


def test_who_does_not_listen_is_not_answered_for_ever() -> None:
    """Replies wait for a client that reads nothing: not more of them than its words may."""
    with run_bare_server() as here:
        connection = here.leased(0)
        caller = here.network.connections.clients[0]
        for k in range(Limits.unanswered):
            caller.outgoing.put_nowait(messages.Cancel(99, str(k)))  # nobody has taken them yet
        heard = MessageReceived(0, caller.number, step(1, 0))
        with pytest.raises(BadMessage):
            here.network.connections._pass_on(caller, heard)
        assert connection


def test_who_comes_back_after_its_deposit_starts_afresh() -> None:
    """The deposit waits to be counted: nobody can go on with that visit."""
    with run_bare_server() as here:
        _deposited(here)
        connection = here.call()
        connection.send(Hello(VERSION, 0))
        assert isinstance(connection.receive(300), Terms)
        connection.send(Accept("h", "fast", "cpu", 5, fence=1, k=1))
        assert isinstance(connection.receive(300), Welcome)


def _deposited(here: BareServer) -> None:
    connection = here.joined(0)
    here.network.connections.grant(0, 1, 1)
    here.say(0, lease(1))
    assert isinstance(connection.receive(300), messages.Lease)
    connection.send(Ready(1))
    connection.send(Finish(1, 0, 0.0))
    connection.send(messages.Chunk(1, 0, b"half"))
    connection.send(Deposit(1, 4, compute_sha256(b"half")))
    wait_until(
        lambda: any(
            isinstance(getattr(event, "message", None), Deposit) for event in here.network.connections.inbox._events
        )
    )


def test_a_record_that_cannot_be_written_is_the_servers_failure_and_no_links() -> None:
    with run_bare_server() as here:
        connection = here.joined(0)
        wait_until(lambda: here.network.connections.inbox._events)
        here.network.connections.inbox.get(timeout=300)
        full = OutputError("cannot write events.jsonl")

        def fails(event: str, **facts: Any) -> None:
            raise full

        here.network.connections._record = fails
        here.network.connections.record("refused", client=3)
        with pytest.raises(OutputError) as found:
            here.network.connections.inbox.get(timeout=300)
        assert found.value is full
        here.network.connections._record = here._note
        wait_until(lambda: not here.network._watch_task.done() and connection.stream._frames.is_active())
