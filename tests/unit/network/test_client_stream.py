"""Does a client's stream give up when it should, and only then, for every reader?"""

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import grpc
import pytest

from splitrelay.errors import InputError
from splitrelay.network.client_session import Connection, Session, Stream
from splitrelay.network.codec import decode, encode
from splitrelay.network.grpc_channel import (
    AnswerTimeout,
    ClientStopped,
    ServerRefused,
    SilenceTimeout,
    UnknownHost,
    check_address,
    open_channel,
)
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Heartbeat
from tests.support.error_fields import expect_error


class Far:
    """The other end of a call: it says what it is told to, until somebody cancels."""

    def __init__(self) -> None:
        self.says: SimpleQueue[bytes | None] = SimpleQueue()
        self.heard: SimpleQueue[bytes] = SimpleQueue()
        self.over = threading.Event()
        self.then: Callable[[], None] = lambda: None

    def __call__(self, requests: Iterator[bytes]) -> "Far":
        threading.Thread(target=lambda: [self.heard.put(frame) for frame in requests], daemon=True).start()
        return self

    def __next__(self) -> bytes:
        said = self.says.get()
        if said is None:
            raise ValueError("cancelled")
        return said

    def cancel(self) -> None:
        self.says.put(None)
        self.over.set()
        self.then()

    def is_active(self) -> bool:
        return not self.over.is_set()

    def add_callback(self, then: Callable[[], None]) -> bool:
        self.then = then
        return True


def make_stream(far: Far, **timeouts: float) -> Stream:
    """Return a stream that checks its timeouts often and sends no heartbeat unless told otherwise."""
    return Stream(
        far, lambda number: encode(Heartbeat(number)), Timeouts(**{"tick": 0.01, "heartbeat": 60.0, **timeouts})
    )


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def near(far: Far) -> Iterator[Stream]:
    made = make_stream(far)
    yield made
    made.close()


@pytest.mark.parametrize("idle", [False, True])
def test_frames_come_in_order_whoever_reads(near: Stream, far: Far, idle: bool) -> None:
    for frame in (b"1", b"2", b"3"):
        far.says.put(frame)
    found = []
    for _ in range(3):
        assert not idle or near.wait_for_frame(300)
        found.append(near.read())
    assert found == [b"1", b"2", b"3"]


@pytest.mark.parametrize("idle", [False, True])
def test_no_answer_in_time_is_a_lost_link(near: Stream, idle: bool) -> None:
    assert not idle or not near.wait_for_frame(0.0)
    with expect_error(AnswerTimeout):
        near.read(time.monotonic() + 0.05)


@pytest.mark.parametrize("idle", [False, True])
def test_silence_is_a_lost_link(far: Far, idle: bool) -> None:
    near = make_stream(far, silence=0.05)
    with expect_error(SilenceTimeout):
        while idle:
            near.wait_for_frame(0.02)
        near.read()


def test_computing_for_long_is_no_silence(near: Stream, far: Far) -> None:
    near._heard -= 1000  # nobody has read for a while
    far.says.put(b"answer")
    assert near.read() == b"answer"


def test_what_comes_while_idle_is_there_when_it_is_read(near: Stream, far: Far) -> None:
    assert not near.wait_for_frame(0.0)
    far.says.put(b"lease")
    far.says.put(b"chunk")
    assert near.wait_for_frame(300) and near.wait_for_frame(300)
    assert [near.read(), near.read()] == [b"lease", b"chunk"]


def test_heartbeats_go_out_while_nobody_reads(far: Far) -> None:
    near = make_stream(far, heartbeat=0.01)
    assert [decode(far.heard.get(timeout=300)) for _ in range(2)] == [Heartbeat(1), Heartbeat(2)]
    near.close()


def test_a_server_that_beats_and_does_not_answer_is_given_up(far: Far) -> None:
    """Neither its heartbeats nor ours are an answer."""
    near = make_stream(far, heartbeat=0.01)
    near.put(b"a step")
    near.flush()
    while far.heard.qsize() < 5:
        far.over.wait(0.01)
    left = near.left
    while far.heard.qsize() < 15:
        far.over.wait(0.01)
    assert near.left == left  # when the step left, not the heartbeats behind it
    near.close()


def test_a_name_that_nobody_knows_is_said_to_be_one() -> None:
    connection = Connection(open_channel("nobody.invalid:7443", None))
    with expect_error(UnknownHost, value="nobody.invalid:7443"):
        connection.receive(300)
    connection.close()


def test_unknown_host_is_warned_about_once() -> None:
    noted, warned = list[str](), list[str]()
    answers = iter([UnknownHost("unknown"), UnknownHost("unknown"), ServerRefused("no", final=True)])

    def dial() -> grpc.Channel:
        raise next(answers)

    timeouts = Timeouts(first_retry=0.001, longest_retry=0.002)
    session = Session(0, dial, pytest.fail, timeouts=timeouts, note=noted.append, warn=warned.append)
    with pytest.raises(ServerRefused):
        session.connect()
    assert [len(warned), len(noted)] == [1, 1] and "unknown; trying again" in warned[0]


@pytest.mark.parametrize("address", ["host", "host:", "host:port", ":7443", "host:99999", "host:-1", "::1:7443", ""])
def test_what_is_no_address_is_refused_before_anybody_listens_or_calls(address: str) -> None:
    for listen in (False, True):
        with pytest.raises(InputError):
            check_address(address, listen=listen)


def test_any_free_port_is_for_listening_only() -> None:
    for address in ("0.0.0.0:0", "[::1]:0"):
        check_address(address, listen=True)
        with expect_error(InputError, what=address, value="0", limit="1 to 65535"):
            check_address(address)
    check_address("[::1]:7443")


def test_client_without_server_stops_on_request() -> None:
    stop = threading.Event()
    session = Session(
        0,
        lambda: open_channel("127.0.0.1:1", None),
        lambda terms: pytest.fail("nobody is there"),
        stop=stop,
        note=lambda text: stop.set(),
    )
    with pytest.raises(ClientStopped):
        session.connect()


def test_client_reconnects_with_pause_after_fruitless_connection() -> None:
    """Without the pause, two programs with the same keys would replace each other in a loop."""
    dialled: list[int] = []

    def dial() -> grpc.Channel:
        dialled.append(1)
        raise ServerRefused("the client came back on another connection", final=True)

    session = Session(0, dial, lambda terms: pytest.fail("nobody is there"), stop=threading.Event())
    with pytest.raises(ServerRefused):
        session.reconnect()  # the first reconnection has no pause
    session.stop.set()
    with pytest.raises(ClientStopped):
        session.reconnect()  # it waits, and is told to stop meanwhile
    assert len(dialled) == 1


def test_what_is_to_be_done_meanwhile_waits_until_the_frame_has_left(far: Far) -> None:
    near = make_stream(far, tick=10.0)
    near.put(b"a step")
    near.flush()
    assert far.heard.get_nowait() == b"a step"


def test_who_waits_for_a_frame_to_leave_does_not_wait_on_a_stream_that_is_over(far: Far) -> None:
    near = make_stream(far, tick=1000.0)
    near.put(b"the last that was taken")
    near.flush()
    near._sent.clear()  # as if one more were on its way
    waiting = threading.Thread(target=near.flush, daemon=True)
    waiting.start()
    far.cancel()  # it ends meanwhile
    waiting.join(300)
    assert not waiting.is_alive()
    near._sent.clear()
    waiting = threading.Thread(target=near.flush, daemon=True)  # it has ended
    waiting.start()
    waiting.join(300)
    assert not waiting.is_alive()
