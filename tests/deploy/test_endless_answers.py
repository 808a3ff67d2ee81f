"""Peers that answer for ever: each transfer, visit and evaluation has an end, whatever is said meanwhile."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms.base import Step as LocalStep
from splitrelay.algorithms.base import Visit
from splitrelay.deploy import evaluation_requests
from splitrelay.deploy.client_program import ClientProgram
from splitrelay.deploy.client_visit import VisitRunner, receive_half
from splitrelay.deploy.evaluation_requests import PartyRequest
from splitrelay.deploy.half_disputes import HalfDisputes
from splitrelay.deploy.journal import Fences
from splitrelay.deploy.lease_limits import UsedVisits, derive_allowed_visits
from splitrelay.deploy.remote_evaluator import RemoteEvaluator
from splitrelay.deploy.server_visit import Policy, VisitLease
from splitrelay.errors import WorkError
from splitrelay.evaluation import SLICE
from splitrelay.network import limits
from splitrelay.network.client_session import HeldVisit, Session
from splitrelay.network.codec import BadMessage
from splitrelay.network.connection_handler import ConnectionHandler
from splitrelay.network.grpc_channel import AnswerLost, ClientStopped, ConnectionLost, VisitCancelled, open_channel
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Accept, Chunk, Heartbeat, Lease, Message, Predict, Ready, Score, UsageReport
from splitrelay.network.protocol import State
from splitrelay.network.server_connection import ServerConnection, ServerContext
from splitrelay.network.shared_event_loop import MessageReceived
from tests.support.bare_server import BOUNDS, TERMS, BareServer, lease, run_bare_server, step, wait_until
from tests.support.deployment import small_spec

# A server that does not stop


def test_a_half_that_comes_in_tiny_pieces_has_an_end() -> None:
    """Every piece comes in time, and all of them together take days."""
    clock, pieces = [0.0], iter(range(10**6))

    def hear(timeout: float) -> Message:
        clock[0] += Timeouts.step - 1
        return Chunk(1, next(pieces), b"x" * limits.LEAST)

    with pytest.raises(BadMessage):
        receive_half(SimpleNamespace(receive=hear, timeouts=Timeouts(), limits=Limits()), 10**7, b"", lambda: clock[0])  # type: ignore[arg-type]
    assert next(pieces) < 10


@pytest.mark.parametrize("error", [BadMessage("a half did not come whole"), None])
def test_only_a_request_that_is_completed_ends_the_pauses_between_connections(error: Exception | None) -> None:
    """Otherwise a server that sends a damaged half with every lease lets its clients connect without a pause."""

    def execute(request: Lease) -> None:
        if error is not None:
            raise error

    session = SimpleNamespace(fruitless=3, holding=None)
    client = SimpleNamespace(session=session, _wait_for_request=lambda: lease(1), _execute_request=execute)
    with nullcontext() if error is None else pytest.raises(BadMessage):
        ClientProgram._handle_request(client)  # type: ignore[arg-type]
    assert session.fruitless == (0 if error is None else 3)


def test_a_deposit_whose_answer_was_lost_may_be_the_last_one() -> None:
    """A server that is killed between a commit and its message finds the visit, and never speaks of it again."""
    session = Session(0, lambda: None, lambda terms: None)  # type: ignore[arg-type, return-value]
    session._pause = lambda tries: None  # type: ignore[method-assign]
    sent = list[Message]()

    def lose(timeout: float | None = None) -> Message:
        raise ConnectionLost("the server hung up")

    connection = SimpleNamespace(close=lambda: None, send=sent.append, receive=lose, stream=SimpleNamespace(flush=int))
    session.connect = lambda: False  # type: ignore[method-assign]
    for held, kind in ((connection, AnswerLost), (None, VisitCancelled)):
        session.connection = held  # type: ignore[assignment]
        with pytest.raises(VisitCancelled) as caught:
            session.exchange([Ready(1)], 1.0, fence=1)
        assert type(caught.value) is kind
    assert len(sent) == 1


@pytest.mark.parametrize("error, is_complete", [(AnswerLost("lost"), True), (VisitCancelled("refused"), False)])
def test_a_client_is_done_after_such_a_deposit_in_the_last_round(
    error: VisitCancelled, is_complete: bool, tmp_path: Path
) -> None:
    spec = small_spec(tmp_path, "placement=whole", "algorithm=fedavg", "R=1")
    used = UsedVisits(derive_allowed_visits(spec, 0), None, 0)

    def exchange(words: Any, timeout: float) -> Message:
        raise error

    session = SimpleNamespace(
        exchange=exchange, send=lambda message: None, timeouts=Timeouts(tick=1000.0), limits=Limits(), holding=None
    )
    x, step = np.zeros(3, np.float32), used.allowed.step
    runner = SimpleNamespace(
        used=used, largest_half=100, seals=None, whole=True, usage=None, _receive_start=lambda *given: b"",
        _unpack=lambda blob: (x, None), engine=SimpleNamespace(train_whole=lambda visit: (x, 0.0)),
    )  # fmt: skip
    asked = Lease(1, 1, 0, 0, 0, used.allowed.K, step.eta, step.weight_decay)
    with pytest.raises(VisitCancelled):
        VisitRunner._make_visit(runner, session, asked)  # type: ignore[arg-type]
    assert used.is_complete(spec) is is_complete


def test_a_visit_in_which_connection_after_connection_is_lost_has_an_end() -> None:
    session = Session(0, lambda: None, lambda terms: None)  # type: ignore[arg-type, return-value]
    session.holding, session._pause = HeldVisit(5), lambda tries: None  # type: ignore[method-assign]

    def send(message: Message) -> None:
        raise ConnectionLost("the server hung up")

    def connect() -> bool:
        session.connection = SimpleNamespace(close=lambda: None, send=send)  # type: ignore[assignment]
        return True

    session.connect = connect  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost):
        session.exchange([Heartbeat()], 1.0)
    assert session.holding.losses == Limits.connections_without_progress + 1


# A client that does not stop


def test_a_client_that_begins_afresh_gets_no_more_time_for_its_visit() -> None:
    pending = VisitLease(0, Visit(0, 0, 0, None, LocalStep(0.1), 5), 0.0)
    pending.start(SimpleNamespace(), 1, 1, 10.0)  # type: ignore[arg-type]
    pending.start(SimpleNamespace(), 2, 2, 99.0)  # type: ignore[arg-type]
    assert pending.granted_at == 10.0


def test_a_peer_may_take_as_long_for_a_half_as_the_sender_waits() -> None:
    assert Timeouts().compute_peer_time(5 * 2**20) == Timeouts.peer + 5


# An evaluator, or a fed server, that does not stop


class Evaluated:
    """A server with one party, on as many connections as wanted."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.stop, self.connection, self.events = policy, threading.Event(), 0, list[Any]()
        self.connections: Any = self
        self.inbox: Any = self
        self.journal: Any = SimpleNamespace(note=lambda *words, **facts: None)
        self.scheduler: Any = SimpleNamespace(seen={3})
        self.limits, self.timeouts = Limits(), Timeouts(first_retry=0.0)

    def get_announced_clients(self) -> dict[int, int]:
        return {3: self.connection}

    get_clients = get_announced_clients

    def is_busy(self, m: int) -> bool:
        return False

    def get(self, timeout: float) -> Any:
        return self.events.pop(0)

    def send(self, *words: Any) -> None: ...

    def send_half(self, *words: Any) -> None: ...

    def get_transferred(self, connection: int) -> tuple[int, int]:
        return 0, 0

    def handle_event(self, event: Any) -> None: ...

    def run_periodic_checks(self, now: float) -> None: ...


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Callable[[], float]:
    clock = [1000.0]

    def tick() -> float:
        clock[0] += seconds
        return clock[0]

    monkeypatch.setattr(evaluation_requests.time, "monotonic", tick)
    return tick


def ask_for_ever(remote: Evaluated, answers: Callable[[PartyRequest], Iterator[Any]]) -> PartyRequest:
    question = PartyRequest(remote, 3, lambda connection: 7)  # type: ignore[arg-type]
    for event in answers(question):
        remote.events.append(event)
        question.next()
        question.check_failures()
    return question


def predict(k: int, n: int = SLICE) -> Predict:
    return Predict(7, k, np.zeros((n, 1), np.float32))


def test_an_evaluator_that_only_reconnects_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 0.001)
    remote = Evaluated(Policy("wait", retries=2))

    def reconnect(question: PartyRequest) -> Iterator[Any]:
        for _ in range(1000):
            remote.connection += 1
            yield None

    with pytest.raises(WorkError) as found:
        ask_for_ever(remote, reconnect)
    assert "failed 3 times" in found.value.what and remote.connection < 4 * (Limits.connections_without_progress + 1)


@pytest.mark.parametrize("growing", [True, False], ids=["more slices", "the same slice"])
def test_an_evaluator_that_asks_for_ever_fails(growing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 1.0)
    remote = Evaluated(Policy("wait", step=10.0, retries=1))
    said = [0]

    def slices(question: PartyRequest) -> Iterator[Any]:
        for k in range(10_000):
            said[0] = k
            yield MessageReceived(3, 0, predict(k if growing else 0))
            yield None

    with pytest.raises(WorkError) as found:
        ask_for_ever(remote, slices)
    assert "failed 2 times" in found.value.what and said[0] < 1000


def test_a_stall_counts_from_the_first_request_however_often_the_peer_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick = ticking(monkeypatch, 1.0)
    remote = Evaluated(Policy("wait", lease=5.0))
    question = PartyRequest(remote, 3, lambda connection: 7)  # type: ignore[arg-type]
    for _ in range(10):
        remote.connection += 1
        remote.events.append(None)
        question.next()
    wait = question.wait(tick())
    assert wait is not None and wait.kind == "no-answer" and wait.since == question.since


def test_slices_that_are_not_full_end_an_evaluation() -> None:
    judged = RemoteEvaluator(SimpleNamespace(connections=None), SimpleNamespace(), 3)  # type: ignore[arg-type]
    refused = list[str]()
    question: Any = SimpleNamespace(cancel=refused.append)
    assert judged._is_in_order(predict(0), question) and judged._is_in_order(predict(1, 5), question)
    assert judged._is_in_order(predict(1, 5), question)  # asked again on another connection
    assert not judged._is_in_order(predict(2), question) and len(refused) == 1
    assert judged._is_in_order(predict(0), question)  # from the start


@pytest.mark.parametrize("moves", [True, False])
def test_a_witness_has_time_while_the_half_reaches_it(moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half of a large model takes longer than a lease over a slow connection."""
    ticking(monkeypatch, 1.0)
    remote, struck, carried = Evaluated(Policy("skip", lease=50.0)), list[int](), itertools.count()
    remote.journal = SimpleNamespace(
        note=lambda *words, **facts: None, events=Path("no-such-folder/events.jsonl"), fences=Fences(Path("unused"))
    )
    monkeypatch.setattr(Fences, "next", lambda fences: 7)
    remote.scheduler = SimpleNamespace(seen={3}, question=None, strike_absent=lambda m, why: struck.append(m))
    monkeypatch.setattr(
        remote, "get_transferred", lambda connection: (0, next(carried) * limits.PIECE if moves else 0), raising=False
    )
    remote.events = [None] * 100 + [MessageReceived(3, 0, Score(7, 0.0, 1.0))]
    half: Any = SimpleNamespace(bytes=lambda: b"half", visit=1, fence=1)
    answer = HalfDisputes(remote).ask_to_open(3, half, {})  # type: ignore[arg-type]
    assert (isinstance(answer, Score), struck) == ((True, []) if moves else (False, [3]))


# Messages without progress


def make_handler() -> tuple[ConnectionHandler, ServerConnection]:
    loop: Any = SimpleNamespace(wake=lambda: None, is_waiting=False)
    connection = ServerConnection(1, None, None, "peer", 0.0, 0.0)  # type: ignore[arg-type]
    connection.m, connection.conversation.state = 0, State.IDLE
    return ConnectionHandler(ServerContext(TERMS, BOUNDS, 100, 4), lambda *words, **facts: None, loop), connection


@pytest.mark.parametrize("kind", [Heartbeat(), UsageReport(1, 1, 0.0, 0.0, 1)], ids=["heartbeat", "paid"])
def test_messages_without_progress_are_limited(kind: Message) -> None:
    here, connection = make_handler()
    with pytest.raises(BadMessage):
        for _ in range(Limits.idle_messages + 2):
            here.handle_message(connection, kind)


def test_repeated_steps_are_limited() -> None:
    here, connection = make_handler()
    connection.conversation.state, connection.conversation.fence, connection.conversation.answered = (
        State.STEPPING,
        1,
        1,
    )
    here.inbox.count_unread = lambda connection: 0  # type: ignore[method-assign]
    with pytest.raises(BadMessage):
        for _ in range(Limits.idle_messages + 2):
            here.handle_message(connection, step(1, 0))


def test_heartbeats_in_time_are_not_limited() -> None:
    here, connection = make_handler()
    for n in range(3 * Limits.idle_messages):
        connection.received_at = n * limits.SHORTEST_HEARTBEAT
        here.handle_message(connection, Heartbeat(n))


# A client that is told to stop leaves soon, also if the server withholds what it waits for.
FAR = 300.0  # seconds
# A server that withholds a reply can still send heartbeats: silence does not end the connection.
TIMEOUTS = Timeouts(silence=600.0, grace=0.0)


def join(here: BareServer, stop: threading.Event) -> Session:
    """Join as client 0, and begin a visit."""
    session = Session(
        0,
        lambda: open_channel(f"127.0.0.1:{here.port}", None),
        lambda terms: Accept("h", "fast", "cpu", 5),
        stop=stop,
        timeouts=TIMEOUTS,
    )
    session.connect()
    wait_until(lambda: 0 in here.network.connections.get_clients())
    here.say(0, lease(1))
    assert isinstance(session.receive(FAR), Lease)
    session.holding = HeldVisit(1)
    session.send(Ready(1))
    return session


WAITS: list[Callable[[Session], object]] = [
    lambda session: session.exchange([step(1)], 300.0),
    lambda session: session.receive(300.0),
]


@pytest.mark.parametrize("wait", WAITS, ids=["reply", "half"])
def test_a_server_that_withholds_a_message_cannot_keep_a_client_that_is_told_to_stop(
    wait: Callable[[Session], object],
) -> None:
    with run_bare_server() as here:
        stop, ended = threading.Event(), list[BaseException]()
        session = join(here, stop)

        def visit() -> None:
            try:
                wait(session)
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=visit, daemon=True)
        thread.start()
        stop.set()
        thread.join(FAR)
        assert not thread.is_alive() and len(ended) == 1
        with pytest.raises(ClientStopped):
            session.connect()  # nor does it connect again
        session.disconnect()
