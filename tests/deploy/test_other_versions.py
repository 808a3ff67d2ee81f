"""Programs of other versions, and servers that TLS does not trust: said in one line, and not tried for ever."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from splitrelay import __version__
from splitrelay.deploy.status_client import ask_status
from splitrelay.network.client_session import Session
from splitrelay.network.codec import VERSION, OtherVersion, encode, rewrite_version
from splitrelay.network.grpc_channel import SERVICE, ServerNotFound, ServerRefused, UntrustedServer, open_channel
from splitrelay.network.messages import Accept, Refuse
from splitrelay.network.status_rpc import status_handler
from splitrelay.security import identity
from splitrelay.security.authority import create_authority
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity
from tests.support.bare_server import TERMS, run_bare_server

OLDER = VERSION - 1
JOIN = """
import sys
from splitrelay.network import codec
codec.VERSION = int(sys.argv.pop(1))
from splitrelay.cli.main import run
run()
"""
SERVE = """
import sys
from splitrelay.network import codec
codec.VERSION = int(sys.argv[1])
from splitrelay.network.messages import Terms
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.server import NetworkServer
terms = Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=60.0)
network = NetworkServer(ServerContext(terms, codec.Bounds(), 10_000, 4))
print(network.start("127.0.0.1:0"), flush=True)
sys.stdin.read()
network.close("enough", again=False)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "own.npz"
    np.savez(file, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)
    return file


def joined(version: int, port: int, data: Path) -> subprocess.CompletedProcess[str]:
    """`splitrelay join` as a program with another version of the protocol runs it."""
    words = ["join", f"127.0.0.1:{port}", "--insecure", "--client", "0", "--data", str(data)]
    command = [sys.executable, "-c", JOIN, str(version), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def session(port: int, host: str = "127.0.0.1", keys: Path | None = None, patience: float = 0.0) -> Session:
    address = f"{host}:{port}"
    credentials = None if keys is None else build_channel_credentials(load_identity(keys))
    accept = Accept(TERMS.spec_hash, TERMS.engine, TERMS.cpu, 5)
    return Session(
        0, lambda: open_channel(address, credentials), lambda terms: accept, patience=patience, address=address
    )


@pytest.mark.parametrize("version", [OLDER, VERSION + 1])
def test_a_client_of_another_version_is_told_what_to_install(version: int, data: Path) -> None:
    with run_bare_server() as here:
        ended = joined(version, here.port, data)
        refused = [facts["why"] for event, facts in here.noted if event == "refused"]
    assert ended.returncode == 2
    said = ended.stderr.splitlines()[-1]
    for part in (f"splitrelay {__version__}", f"version {VERSION}", f"version {version}", "Install"):
        assert part in said
    assert len(refused) == 1 and f"version {version}" in refused[0]


@pytest.mark.parametrize("version", [OLDER, VERSION + 1])
def test_a_server_of_another_version_refuses_for_good(version: int) -> None:
    command = [sys.executable, "-c", SERVE, str(version)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        with pytest.raises(ServerRefused) as caught:
            session(int(process.stdout.readline())).connect()
        process.stdin.close()
    assert caught.value.final and caught.value.exit_code == 2
    assert f"version {version}" in str(caught.value) and f"version {VERSION}" in str(caught.value)


@contextmanager
def old_server(*frames: bytes) -> Iterator[int]:
    """A server of a version that answered in its own frames."""
    server: Any = grpc.server(ThreadPoolExecutor(2))
    methods = {"Join": grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(frames))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = int(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def test_a_server_that_answers_in_its_own_version_is_not_tried_again() -> None:
    answer = rewrite_version(encode(Refuse("not a message of this protocol")), OLDER)
    with old_server(answer) as port, pytest.raises(OtherVersion) as caught:
        session(port).connect()
    assert caught.value.version == OLDER and caught.value.exit_code == 2
    assert caught.value.said == Refuse("not a message of this protocol")
    assert f"version {VERSION}" in str(caught.value.limit) and __version__ in str(caught.value.hint)


# TLS


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, past = tmp_path_factory.mktemp("keys"), datetime.now(UTC) - timedelta(days=400)
    authority = create_authority(place / "authority", "tests", now=past)
    authority.issue_server("elsewhere", ["s.example.org"])
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_server("expired", ["127.0.0.1"], days=30, now=past)
    authority.issue_client("client-0", 0)
    others = create_authority(place / "others" / "authority", "others")
    others.issue_server("server", ["127.0.0.1"])
    return place


DISTRUSTED = {
    "host": ("elsewhere", "127.0.0.1", "--host 127.0.0.1"),
    "name": ("server", "localhost", "--host localhost"),
    "authority": ("others/server", "127.0.0.1", "consortium"),
    "date": ("expired", "127.0.0.1", "keys renew"),
}


@pytest.mark.parametrize("case", DISTRUSTED)
def test_a_server_that_tls_refuses_is_not_tried_again(case: str, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, host, hint = DISTRUSTED[case]
    monkeypatch.setattr(identity, "_check_dates", lambda *_: None)  # a server that does not look at its own keys
    with run_bare_server(build_server_credentials(load_identity(keys / folder))) as here:
        client = session(here.port, host, keys / "client-0")
        with pytest.raises(UntrustedServer) as caught:
            client.connect()
        assert client.connection_count == 1
    assert caught.value.exit_code == 2
    assert host in caught.value.what and hint in str(caught.value.hint)


def test_a_server_without_tls_is_not_tried_again(keys: Path) -> None:
    with run_bare_server() as here, pytest.raises(UntrustedServer):
        session(here.port, keys=keys / "client-0").connect()


def test_a_port_that_nobody_listens_on_is_tried_again(keys: Path) -> None:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        client = session(line.getsockname()[1], keys=keys / "client-0", patience=0.5)
        with pytest.raises(ServerNotFound):
            client.connect()
    assert client.connection_count > 1


def test_a_server_that_was_trusted_before_is_tried_again(keys: Path) -> None:
    client = session(1, keys=keys / "client-0", patience=0.3)
    client.welcomed = True
    with run_bare_server(build_server_credentials(load_identity(keys / "elsewhere"))) as here:
        client.dial = session(here.port, keys=keys / "client-0").dial
        with pytest.raises(ServerNotFound):
            client.connect()
    assert client.connection_count > 1


def test_a_question_to_a_wrong_host_is_an_error_of_the_user(keys: Path) -> None:
    with run_bare_server(build_server_credentials(load_identity(keys / "elsewhere"))) as here:
        here.network.add_method("Status", status_handler(lambda: "{}", lambda context: None))
        with pytest.raises(UntrustedServer) as caught:
            ask_status(f"127.0.0.1:{here.port}", keys / "client-0", insecure=False)
    assert caught.value.exit_code == 2 and "127.0.0.1" in caught.value.what
