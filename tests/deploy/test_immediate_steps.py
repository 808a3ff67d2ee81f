"""Is a step answered where it is read, by the thread that trains, and only where nothing is kept waiting by it?"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from splitrelay.algorithms import Step as AlgorithmStep
from splitrelay.algorithms import Visit
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import VisitLease
from splitrelay.errors import Diverged
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Heartbeat, Reply, Step
from splitrelay.network.shared_event_loop import Answer, ClientDisconnected, MessageReceived
from tests.support.bare_server import BareServer, H, make_remote_clients, run_bare_server, step, wait_until
from tests.support.deployment import SERVER, LocalDeployment, simulate_run, small_spec


@pytest.fixture
def here() -> Iterator[BareServer]:
    with run_bare_server() as made:
        yield made


class Trainer:
    """A thread that waits for events, as the one that trains does."""

    def __init__(self, here: BareServer) -> None:
        self.inbox, self.answered, self.settled = here.network.connections.inbox, list[str](), list[int]()
        self.send = here.network.connections.send
        self.failure: Future[BaseException] = Future()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._waiting, name="trains", daemon=True)
        self.inbox.answer_inline = self.at_once
        self.thread.start()

    def at_once(self, heard: MessageReceived) -> Answer | None:
        word = heard.message
        if not isinstance(word, Step):
            return None
        self.answered.append(threading.current_thread().name)
        return Answer(Reply(word.fence, word.k, H, (), 0.5), lambda: self.settled.append(word.k))

    def end(self) -> None:
        self.over.set()
        self.thread.join(300)

    def _late(self, event: MessageReceived) -> None:
        answer = self.inbox.answer_inline(event)
        assert answer is not None
        self.send(event.connection, answer.message)
        answer.then()

    def _waiting(self) -> None:
        while not self.over.is_set():
            try:
                event = self.inbox.get(timeout=0.05)
                if isinstance(event, MessageReceived) and isinstance(event.message, Step):  # it came between two waits
                    self._late(event)
            except Empty:
                continue
            except BaseException as error:
                if not self.failure.done():  # the word is in the inbox, too
                    self.failure.set_result(error)


def test_who_waits_answers_and_settles_when_the_answer_has_left(here: BareServer) -> None:
    connection, trainer = here.leased(), Trainer(here)
    for k in range(3):
        connection.send(step(k=k))
        assert isinstance(connection.receive(300), Reply)
    trainer.end()
    assert trainer.answered == ["trains"] * 3 and trainer.settled == [0, 1, 2]


def test_who_computes_is_not_asked(here: BareServer) -> None:
    """The stand-in turns the loop then, and may not touch what is being trained."""
    connection, inbox, asked = here.leased(), here.network.connections.inbox, list[str]()
    inbox.answer_inline = lambda heard: asked.append(threading.current_thread().name)  # type: ignore[func-returns-value]
    while not isinstance(inbox.get(timeout=300), MessageReceived):
        pass  # up to the word that it is ready
    connection.send(step())
    wait_until(lambda: inbox._events)
    assert set(asked) <= {threading.current_thread().name}


def test_nobody_else_settles_when_the_training_thread_has_left(here: BareServer) -> None:
    """It computes on a net that may be another visit's by now, and with as many threads as it likes."""
    connection, inbox, settled, gone = here.leased(), here.network.connections.inbox, list[str](), threading.Event()

    def leaving(heard: MessageReceived) -> Answer | None:
        if not isinstance(heard.message, Step):
            return None
        inbox.put(ClientDisconnected(3, 3, "so that the thread that waits goes"))
        name = threading.current_thread().name
        return Answer(Reply(1, 0, H, (), 0.5), lambda: settled.append(f"{name}, by {threading.current_thread().name}"))

    def trains() -> None:
        while not isinstance(inbox.get(timeout=300), ClientDisconnected):
            pass
        gone.set()

    inbox.answer_inline = leaving
    thread = threading.Thread(target=trains, name="trains", daemon=True)
    while not isinstance(inbox.get(timeout=300), MessageReceived):
        pass  # up to the word that it is ready
    thread.start()
    wait_until(lambda: here.network._loop._waiting)
    connection.send(step())
    assert isinstance(connection.receive(300), Reply) and gone.wait(300)
    connection.send(step(k=1))
    wait_until(lambda: inbox._events)  # the next word is read, so the answer has left
    assert settled in ([], ["trains, by trains"])


def test_words_that_came_before_are_read_before(here: BareServer) -> None:
    """Nothing overtakes an event that waits."""
    inbox, asked = here.network.connections.inbox, list[MessageReceived]()
    inbox.answer_inline = lambda heard: asked.append(heard)  # type: ignore[func-returns-value]
    with here.network._loop:
        inbox.put(MessageReceived(0, 1, step()))
        inbox._loop._waiting = threading.get_ident()
        assert inbox.answer(MessageReceived(0, 1, step(k=1))) is None and asked == []
        inbox._loop._waiting = 0


def test_what_goes_wrong_is_the_training_threads_and_the_link_stays(here: BareServer) -> None:
    connection, trainer = here.leased(), Trainer(here)

    def diverged(heard: MessageReceived) -> Answer | None:
        if isinstance(heard.message, Step):
            raise Diverged("the loss became nan")
        return None

    trainer.inbox.answer_inline = diverged
    connection.send(step())
    assert isinstance(trainer.failure.result(300), Diverged)
    here.say(0, Reply(1, 0, H, (), 0.5))
    assert isinstance(connection.receive(300), Reply)
    trainer.end()


def test_an_answer_waits_for_the_pen(here: BareServer) -> None:
    """gRPC falls over two words that are written to one stream at once."""
    connection, trainer = here.leased(), Trainer(here)
    for k in range(200):
        connection.send(Heartbeat(2 * k))
        connection.send(step(k=k))
        connection.send(Heartbeat(2 * k + 1))
        reply = connection.receive(300)
        assert isinstance(reply, Reply) and reply.k == k
    trainer.end()
    assert ("refused" not in dict(here.noted)) and len(trainer.settled) == 200


class Once:
    """A turn that answers, and notes when it is settled."""

    def __init__(self) -> None:
        self.applied, self.settled = 0, False

    def step(self, said: Step) -> Reply:
        self.applied += 1
        return Reply(said.fence, said.k, H, (), 0.5)

    def apply_early(self) -> None:
        self.settled = True


@pytest.mark.parametrize("void", [False, True])
def test_a_visit_that_is_void_is_not_settled(void: bool, here: BareServer) -> None:
    """Its net may be at work for another visit by then."""
    remote, turn = make_remote_clients(here), Once()
    visit: Visit[Any] = Visit(0, 0, 0, None, AlgorithmStep(0.1), 4)
    remote.scheduler.leases[0] = VisitLease(0, visit, 0.0, server_visit=turn, fence=1)  # type: ignore[arg-type]
    remote.is_brief = True
    answer = remote.answer_immediately(MessageReceived(0, 1, step()))
    assert answer is not None
    remote.scheduler.leases[0].server_visit = None if void else remote.scheduler.leases[0].server_visit
    answer.then()
    assert turn.settled is not void


@pytest.mark.parametrize(("standstill", "some"), [(Timeouts.standstill, True), (0.0, False)])
def test_only_short_steps_are_answered_so_and_the_weights_are_the_same(
    standstill: float, some: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop must run during a long step, because all connections would wait otherwise."""
    answers = list[bool]()
    at_once = RemoteClients.answer_immediately

    def noted(self: RemoteClients, heard: MessageReceived) -> Answer | None:
        answer = at_once(self, heard)
        answers.append(answer is not None)
        return answer

    monkeypatch.setattr(RemoteClients, "answer_immediately", noted)
    spec = small_spec(tmp_path, "algorithm=ssl", "clip=1", "K=4")
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path, timeouts=replace(SERVER, standstill=standstill))
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert any(answers) is some
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
