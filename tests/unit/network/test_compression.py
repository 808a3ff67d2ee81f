"""Compressed messages are not decompressed, by a server, by a client, or by a client that listens for others."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from splitrelay.network import tensor_transfer
from splitrelay.network.client_session import Connection
from splitrelay.network.codec import VERSION, BadMessage, decode, encode
from splitrelay.network.grpc_channel import SERVICE, open_channel
from splitrelay.network.messages import HandoverReport, Hello, Refuse, Terms
from splitrelay.network.peer_transfer import METHOD, HalfReceiver
from splitrelay.security.authority import create_authority
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity

BOMB = 200_000_000  # bytes; compressed it is shorter than any limit
FLAT = 50_000  # kB that the receiver may grow by
SERVER = """
import sys
from splitrelay.network.codec import Bounds
from splitrelay.network.messages import Terms
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.server import NetworkServer

terms = Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=60.0)
network = NetworkServer(ServerContext(terms, Bounds(batch=4, h=(3,), dtype="float32", look=4), 10_000, 4))
print(network.start("127.0.0.1:0"), flush=True)
sys.stdin.read()
network.close("enough", again=False)
"""


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """The process and the port of a server."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


def peak(process: int | str) -> int:
    """The most memory that a process has had, in kB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def sent(port: int, message: bytes) -> Any:
    """The first answer to a message that travels compressed."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_send_message_length", -1)]) as line:
        call: Any = line.stream_stream(f"/{SERVICE}/Join")
        return decode(next(call(iter([message]), compression=grpc.Compression.Gzip, timeout=300)))


def test_a_server_refuses_a_compressed_message(server: tuple[int, int]) -> None:
    assert isinstance(sent(server[1], encode(Hello(VERSION, 1))), Refuse)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_compressed_bomb_takes_no_memory(server: tuple[int, int]) -> None:
    process, port = server
    sent(port, encode(Hello(VERSION, 1)))
    before = peak(process)
    assert isinstance(sent(port, bytes(BOMB)), Refuse)
    assert peak(process) - before < FLAT


def test_a_client_refuses_a_compressed_message() -> None:
    def answers(requests: Any, context: Any) -> Iterator[bytes]:
        context.set_compression(grpc.Compression.Gzip)
        yield encode(Terms("x" * 2000, "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=60.0))

    hostile: Any = grpc.server(ThreadPoolExecutor(1), compression=grpc.Compression.Gzip)
    methods = {"Join": grpc.stream_stream_rpc_method_handler(answers)}
    hostile.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = hostile.add_insecure_port("127.0.0.1:0")
    hostile.start()
    connection = Connection(open_channel(f"127.0.0.1:{port}", None))
    try:
        connection.send(Hello(VERSION, 0))
        with pytest.raises(BadMessage):
            connection.receive(300)
    finally:
        connection.close()
        hostile.stop(None)


def test_a_client_that_listens_refuses_a_compressed_message(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "authority", "tests")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0)
    box = HalfReceiver(lambda context: None)
    port = box.listen("127.0.0.1:0", build_server_credentials(load_identity(tmp_path / "server")))
    mine = build_channel_credentials(load_identity(tmp_path / "client-0"))
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", mine) as line, pytest.raises(grpc.RpcError) as caught:
            hand: Any = line.stream_unary(METHOD)
            hand(
                iter([encode(HandoverReport(1, 0, tensor_transfer.compute_sha256(b""), "x" * 900))]),
                compression=grpc.Compression.Gzip,
                timeout=300,
            )
        assert "not a message of this protocol" in str(caught.value)
    finally:
        box.close()
