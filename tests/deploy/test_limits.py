"""Past every limit the peer gets an error, and the server goes on with the others: over real sockets."""

import asyncio
import resource
import socket
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from splitrelay.errors import OutOfRange, WorkError
from splitrelay.network import connection_handler, limits, server
from splitrelay.network.client_session import Connection
from splitrelay.network.codec import HEADER, VERSION, Bounds, encode
from splitrelay.network.grpc_channel import SERVICE, ConnectionLost, ServerRefused, open_channel
from splitrelay.network.limits import Limits
from splitrelay.network.messages import Cancel, Chunk, Deposit, Finish, Heartbeat, Hello, Reply, Step, Terms
from splitrelay.network.server import NetworkServer, get_connection_limit
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.status_rpc import collect_handler, fetch_model, fetch_status, status_handler
from splitrelay.network.tensor_transfer import Assembly, compute_sha256
from splitrelay.security.authority import create_authority
from splitrelay.security.certificates import parse_peer
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity
from tests.support.bare_server import QUIET, TERMS, BareServer, is_closed, lease, run_bare_server, step, wait_until
from tests.support.clock import Clock
from tests.support.error_fields import expect_error


def alive(here: BareServer, connection: Connection) -> bool:
    """Whether this client's steps are still answered."""
    asked = connection.conversation.answered
    connection.send(step(k=asked))
    while not is_step(here.network.connections.inbox.get(timeout=300), asked):
        pass
    here.say(0, Reply(1, asked, step().h, (), 0.5))
    return isinstance(connection.receive(300), Reply)


def is_step(event: Any, k: int) -> bool:
    said = getattr(event, "message", None)
    return isinstance(said, Step) and said.k == k


def test_a_message_longer_than_any_of_this_run_ends_its_stream(tmp_path: Path) -> None:
    with run_bare_server() as here:
        good, bad = here.leased(), here.call()
        bad.stream.put(b"x" * (here.network.context.largest + 1))
        with expect_error(
            ConnectionLost, value=(str(here.network.context.largest), str(here.network.context.largest + 1))
        ):
            bad.receive(300)
        assert alive(here, good)


@pytest.mark.parametrize(
    ("bounds", "largest"),
    [
        (Bounds(batch=20, h=(256,), dtype="float32", look=500), 64 + limits.CHUNK),
        (Bounds(batch=2000, h=(16, 16, 64), dtype="float32", look=500), limits.MESSAGE),
        (Bounds(batch=200, h=(16, 16, 64), dtype="float32", look=100), 64 + 200 * (16 * 16 * 64 * 4 + 4) + 8),
        (Bounds(), limits.MESSAGE),
    ],
)
def test_the_longest_message_is_that_of_the_spec(bounds: Bounds, largest: int) -> None:
    assert ServerContext(TERMS, bounds, 0, 1).largest == largest


def test_words_that_nobody_has_answered_are_counted() -> None:
    """A step may be asked again; asked again and again it would fill the memory."""
    with run_bare_server() as here:
        connection = here.leased()
        assert alive(here, connection)
        for _ in range(Limits.unanswered + 1):
            connection.stream.put(encode(step()))
        with expect_error(ServerRefused, what=f"<= {Limits.unanswered}"):
            connection.receive(300)


def test_heartbeats_without_end_are_refused() -> None:
    beats = Limits.idle_messages + 3000  # more than may come while they are sent
    with run_bare_server() as here, open_channel(f"127.0.0.1:{here.port}", None) as line:
        good, words = here.leased(), SimpleQueue[bytes | None]()
        deaf: Any = line.stream_stream(f"/{SERVICE}/Join")(iter(words.get, None))
        words.put(encode(Hello(VERSION, 1)))
        for _ in range(beats):
            words.put(encode(Heartbeat(1)))
        wait_until(lambda: any(event == "refused" for event, _ in here.noted))
        assert alive(here, good)
        words.put(None)
        deaf.cancel()


def test_a_word_that_is_late_is_noted_once_for_each_visit() -> None:
    with run_bare_server() as here:
        connection = here.leased()
        here.say(0, Cancel(1, "enough"))
        for k in range(50):
            connection.stream.put(encode(Chunk(1, k, b"x")))
        connection.stream.put(encode(Hello(VERSION, 0)))  # out of place: the connection ends after the late ones
        wait_until(lambda: any(event == "refused" for event, _ in here.noted))
        assert sum(event == "stale" for event, _ in here.noted) == 1


def test_more_clients_than_the_limit_are_refused_at_the_start() -> None:
    with expect_error(OutOfRange, value=limits.CLIENTS + 1, limit=f"<= {limits.CLIENTS}", hint=("ulimit -n", "M")):
        NetworkServer(ServerContext(TERMS, Bounds(), 0, limits.CLIENTS + 1)).start("127.0.0.1:0")


def test_connections_have_a_limit() -> None:
    with run_bare_server(limits=Limits(connections=5)) as here:
        good = here.leased()
        lines = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(10)]
        assert is_closed(lines[-1])
        assert alive(here, good)
        for line in lines:
            line.close()


def test_connections_leave_some_files_to_the_server() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        assert get_connection_limit() == 500 - Limits.spare_files
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_streams_of_one_connection_have_a_limit() -> None:
    with run_bare_server(limits=Limits(streams=3)) as here:
        line = open_channel(f"127.0.0.1:{here.port}", None)
        connections = [Connection(line, QUIET) for _ in range(4)]
        wait_until(lambda: len(here.network.connections.by_number) == 3)
        for connection in connections:
            connection.send(Hello(VERSION, 0))
        answered = set[int]()
        wait_until(
            lambda: (
                answered.update(j for j, connection in enumerate(connections) if connection.wait_for_message(0.01))
                or len(answered) >= 3
            )
        )
        assert len(answered) == 3 and len(here.network.connections.by_number) == 3
        for connection in connections:
            connection.close()


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def headers() -> bytes:
    """A call of Join, every name and value spelled out."""
    word = {name: bytes([len(name)]) + name for name in (b"/splitrelay.Relay/Join", b"application/grpc", b"te", b"x")}
    path, kind = word[b"/splitrelay.Relay/Join"], word[b"application/grpc"]
    return b"\x83\x86\x04" + path + b"\x01" + word[b"x"] + b"\x0f\x10" + kind + b"\x00" + word[b"te"] + b"\x08trailers"


def test_who_opens_more_streams_than_it_may_gets_an_error_for_each() -> None:
    wanted = 3 * Limits.streams
    with run_bare_server() as here, socket.create_connection(("127.0.0.1", here.port), timeout=300) as line:
        good = here.leased()
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        line.sendall(b"".join(frame(1, 4, 2 * number + 1, headers()) for number in range(wanted)))
        with line.makefile("rb") as stream:
            refused = 0
            while refused < wanted - Limits.streams:
                head = stream.read(9)
                stream.read(int.from_bytes(head[:3], "big"))
                refused += head[3] == 3  # RST_STREAM
        wait_until(lambda: len(here.network.connections.by_number) == Limits.streams + 1)
        assert alive(here, good)


def test_handshakes_have_a_limit_and_who_is_turned_away_may_come_again() -> None:
    with run_bare_server(limits=Limits(handshakes=3)) as here:
        good = here.leased()
        young = [here.call() for _ in range(3)]
        wait_until(lambda: len(here.network.connections.by_number) == 4)
        with expect_error(ConnectionLost, value="<= 3"):
            here.call().receive(300)
        assert alive(here, good)
        young[0].close()
        wait_until(lambda: len(here.network.connections.by_number) == 3)
        here.joined(1)
        assert [facts["why"] for event, facts in here.noted if event == "busy"]


@pytest.mark.parametrize("word", [None, Hello(VERSION, 1)])
def test_who_does_not_end_its_handshake_is_cut(word: Hello | None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, server, connection_handler)
    with run_bare_server(timeouts=replace(QUIET, handshake=1000.0)) as here:
        good, slow = here.leased(), here.call()
        if word is not None:
            slow.send(word)
            assert isinstance(slow.receive(300), Terms)
        wait_until(lambda: len(here.network.connections.by_number) == 2)
        clock.advance(1001.0)
        with expect_error(ConnectionLost):
            slow.receive(300)
        assert alive(here, good)


def test_who_came_for_a_check_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, server, connection_handler)
    with run_bare_server(timeouts=replace(QUIET, handshake=1000.0)) as here:
        connection = here.joined(check=True)
        assert here.network.connections.get_clients() == {}
        clock.advance(1001.0)
        with expect_error(ConnectionLost):
            connection.receive(300)


def test_who_falls_silent_is_cut_and_who_says_that_it_is_here_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, server, connection_handler)
    with run_bare_server(timeouts=replace(QUIET, silence=3000.0)) as here:
        good, mute = here.leased(), here.joined(1)
        connections = here.network.connections.clients
        wait_until(lambda: all(connections[m].counted for m in (0, 1)))  # the bytes of the handshakes
        clock.advance(2000.0)
        before = connections[0].messages
        good.send(Heartbeat())
        wait_until(lambda: connections[0].messages > before)
        clock.advance(2000.0)
        wait_until(lambda: set(here.network.connections.get_clients()) == {0})
        with expect_error(ConnectionLost):
            mute.receive(300)
        assert [facts["client"] for event, facts in here.noted if event == "silent"] == [1]
        assert alive(here, good)


def test_a_connection_without_a_link_is_closed_and_one_that_has_one_stays() -> None:
    with run_bare_server(timeouts=replace(QUIET, idle=0.5)) as here:
        good, line = here.leased(), socket.create_connection(("127.0.0.1", here.port), timeout=300)
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        assert is_closed(line)
        assert alive(here, good)


def test_no_half_is_longer_than_the_format_allows() -> None:
    assert Assembly(2 * limits.HALF).limit == limits.HALF and Assembly(10).limit == 10


def test_a_half_longer_than_that_of_the_spec_is_refused() -> None:
    most = 10_000
    with run_bare_server() as here:
        good, bad, fits = here.leased(), here.leased(1), here.leased(2)
        for connection, length in ((fits, most), (bad, most + 1)):
            fence = 3 if connection is fits else 2
            connection.send(Finish(fence, 0, 0.0))
            connection.send(Chunk(fence, 0, bytes(1000)))
            connection.send(Chunk(fence, 1, bytes(length - 1000)))
        with expect_error(ServerRefused, what=f"<= {most}"):
            bad.receive(300)
        wait_until(
            lambda: here.network.connections.clients[2].half and here.network.connections.clients[2].half.length == most
        )
        assert alive(here, good)


def test_a_half_that_is_said_to_be_longer_than_any_is_refused() -> None:
    with run_bare_server() as here:
        good, bad = here.leased(), here.leased(1)
        for word in (Finish(2, 0, 0.0), Chunk(2, 0, b"half"), Deposit(2, limits.HALF + 1, compute_sha256(b"half"))):
            bad.send(word)
        with expect_error(ServerRefused, what=("deposit", str(limits.HALF + 1))):
            bad.receive(300)
        assert alive(here, good)


def long_greeting(length: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A first word whose control message has this length, by somebody who does not mind the limit."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CONTROL", 2**30)  # of the sender only: a constant of the format
        spare = len(encode(Hello(VERSION, 1, "x" * 100_000))) - 100_000  # the head, and how protobuf writes the lengths
        return encode(Hello(VERSION, 1, "x" * (length + HEADER.size - spare)))


@pytest.mark.parametrize(
    ("more", "names"), [(0, ("software", "hello")), (1, (f"<= {limits.CONTROL}", str(limits.CONTROL + 1)))]
)
def test_a_control_message_has_a_longest_length(
    more: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past it nobody looks what is inside."""
    with run_bare_server() as here:
        good, bad = here.leased(), here.call()
        bad.stream.put(long_greeting(limits.CONTROL + more, monkeypatch))
        with expect_error(ServerRefused, what=names):
            bad.receive(300)
        assert alive(here, good)


def test_nobody_sends_a_control_message_that_would_be_refused() -> None:
    with run_bare_server() as here, expect_error(WorkError, what="hello", value=True, limit=f"<= {limits.CONTROL}"):
        here.call().send(Hello(VERSION, 0, "x" * limits.CONTROL))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("keys")
    authority = create_authority(place / "authority", "tests")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0)
    authority.issue_client("client-1", 1)
    return place


def test_steps_go_on_while_fifty_strangers_stall_their_handshakes(keys: Path) -> None:
    hello = bytes.fromhex("160301020001fc0303")  # the first bytes of a TLS hello
    credentials = build_server_credentials(load_identity(keys / "server"))
    for handshake in (300.0, 0.3):  # no client could be sure to finish its handshake in the shorter time
        with run_bare_server(credentials, timeouts=replace(QUIET, handshake=handshake)) as here:
            lines = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(50)]
            for number, line in enumerate(lines):
                line.sendall(hello[: number % len(hello)])
            if handshake > 1:
                good = here.leased(0, build_channel_credentials(load_identity(keys / "client-0")))
                assert all(alive(here, good) for _ in range(50))
            else:
                assert all(is_closed(line) for line in lines)
        for line in lines:
            line.close()


def test_one_certificate_has_few_handshakes_at_once(keys: Path) -> None:
    with run_bare_server(build_server_credentials(load_identity(keys / "server"))) as here:
        mine = build_channel_credentials(load_identity(keys / "client-0"))
        for _ in range(Limits.handshakes_per_certificate):
            here.call(mine)
        wait_until(lambda: len(here.network.connections.by_number) == Limits.handshakes_per_certificate)
        with expect_error(ConnectionLost, value=f"<= {Limits.handshakes_per_certificate}"):
            here.call(mine).receive(300)
        here.joined(1, build_channel_credentials(load_identity(keys / "client-1")))


def asked(network: NetworkServer) -> Any:
    return open_channel(f"127.0.0.1:{network.start('127.0.0.1:0')}", None)


def test_the_model_goes_to_so_many_at_once_and_nobody_holds_it_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    times, timeout = list[asyncio.Timeout](), asyncio.timeout

    def keep_timeout(seconds: float) -> asyncio.Timeout:
        times.append(timeout(seconds))
        return times[-1]

    monkeypatch.setattr(asyncio, "timeout", keep_timeout)
    network = NetworkServer(ServerContext(TERMS, Bounds(), 0, 1))
    network.add_method("Collect", collect_handler(lambda: bytes(20_000_000), lambda context: None, most=1))
    line = asked(network)
    deaf = line.unary_stream("/splitrelay.Relay/Collect")(b"")
    next(deaf)
    with expect_error(WorkError, what="<= 1"):
        fetch_model(line)
    assert times[0].when() is not None
    network._loop._loop.call_soon_threadsafe(times[0].reschedule, 0.0)  # its time has passed
    wait_until(times[0].expired)
    assert len(fetch_model(line)) == 20_000_000
    deaf.cancel()
    line.close()
    network.close("enough", again=False)


def test_a_report_that_is_too_long_is_not_read() -> None:
    """As Python objects it would take 70 times its length."""
    reports = [" " * limits.REPORT, " " * (limits.REPORT + 1)]
    network = NetworkServer(ServerContext(TERMS, Bounds(), 0, 1))
    network.add_method("Status", status_handler(lambda: reports.pop(0), lambda context: None))
    line = asked(network)
    assert len(fetch_status(line)) == limits.REPORT
    with expect_error(WorkError, value=limits.REPORT + 1):
        fetch_status(line)
    line.close()
    network.close("enough", again=False)


def test_a_question_that_is_never_asked_is_ended() -> None:
    network, times = NetworkServer(ServerContext(TERMS, Bounds(), 0, 1)), SimpleNamespace(rpc=600.0, handshake=0.1)
    network.add_method("Status", status_handler(lambda: "{}", lambda context: None, times))  # type: ignore[arg-type]
    line = asked(network)
    silent = SimpleQueue[bytes | None]()
    stream = line.stream_stream(f"/{SERVICE}/Status")(iter(silent.get, None), timeout=300)
    with pytest.raises(grpc.RpcError) as error:
        next(stream)
    assert isinstance(error.value, grpc.Call) and error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    times.handshake = 60.0
    assert fetch_status(line) == "{}"
    silent.put(None)
    line.close()
    network.close("enough", again=False)


def test_a_link_that_is_lost_while_it_is_written_to_is_over() -> None:
    """Else a client that is gone counts as here for ever."""
    with run_bare_server() as here:
        connection = here.joined()
        here.say(0, lease(1), *[Chunk(1, k, bytes(limits.CHUNK)) for k in range(8)])  # more than fits on the way
        wait_until(lambda: here.network.connections.clients[0].sent > limits.CHUNK)
        connection.close()
        wait_until(lambda: here.network.connections.get_clients() == {})


def test_who_a_link_belongs_to_can_be_asked_after_its_end(issued_here: Path) -> None:
    """gRPC cannot be asked any more: it would take the server with it."""
    kept: list[Any] = []
    credentials = build_server_credentials(load_identity(issued_here / "server"))
    with run_bare_server(credentials, admit=lambda caller, hello: kept.append(caller)) as here:
        connection = here.joined(0, build_channel_credentials(load_identity(issued_here / "client-0")))
        connection.close()
        wait_until(lambda: here.network.connections.get_clients() == {})
        shown = kept[0].auth_context()["x509_pem_cert"]
    assert parse_peer(*shown).name == "client-0"


@pytest.fixture
def issued_here(tmp_path: Path) -> Path:
    authority = create_authority(tmp_path / "authority", "tests")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0)
    return tmp_path
