"""A peer that says the same thing thousands of times must not fill the disk: raw gRPC clients, over real sockets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from splitrelay.deploy import events
from splitrelay.deploy.authorization import authorize_by_certificate
from splitrelay.deploy.events import LINES, read_events
from splitrelay.deploy.journal import Journal
from splitrelay.network.codec import VERSION, encode
from splitrelay.network.grpc_channel import SERVICE
from splitrelay.network.messages import Accept, Heartbeat, Hello, Leave, Message
from splitrelay.security.authority import Authority, create_authority
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity
from splitrelay.security.revocation import Revocations
from tests.support.bare_server import TERMS, BareServer, run_bare_server, wait_until
from tests.support.clock import Clock

CALLS = 400  # well above what is kept


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    place = tmp_path_factory.mktemp("keys")
    made = create_authority(place / "authority", "tests")
    made.issue_server("server", ["127.0.0.1"])
    made.issue_client("client-0", 0)
    made.issue_client("client-1", 1)
    made.revoke("client-1")
    return made


@pytest.fixture(autouse=True)
def stop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a test happens in one minute, after which more lines would be written."""
    Clock(monkeypatch, events, is_stopped=True)


@contextmanager
def served(authority: Authority, tmp_path: Path) -> Iterator[tuple[BareServer, Path]]:
    """A server with keys whose events go into a real file."""
    identity = load_identity(authority.folder.parent / "server")
    authorizer = authorize_by_certificate(Revocations(identity.revocation_file, identity.ca), 4)
    journal = Journal(tmp_path / "relay")
    with run_bare_server(build_server_credentials(identity), admit=authorizer.join) as here:
        here.network.connections._record = journal.note
        yield here, journal.events


def flood(here: BareServer, keys: Path, *calls: list[Message]) -> None:
    """One stream per list of messages, as fast as they are answered."""
    credentials = build_channel_credentials(load_identity(keys))
    with grpc.secure_channel(f"127.0.0.1:{here.port}", credentials) as line:
        join: Any = line.stream_stream(f"/{SERVICE}/Join")
        for messages in calls:
            try:
                list(join(iter([encode(message) for message in messages]), timeout=300))
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED), error


@pytest.mark.parametrize("name", ["client-0", "client-1"])
def test_messages_before_the_greeting_leave_few_lines(authority: Authority, tmp_path: Path, name: str) -> None:
    with served(authority, tmp_path) as (here, file):
        words: list[list[Message]] = [[Leave(f"I leave for the {i}th time")] for i in range(CALLS)]
        flood(here, authority.folder.parent / name, *words, [Heartbeat()])
        wait_until(lambda: not here.network.connections.by_number)
    found = read_events(file)
    assert {event["event"] for event in found} <= {"refused", "busy"} and len(found) <= 2 * LINES


def test_numbers_that_a_peer_chooses_do_not_make_new_lines(authority: Authority, tmp_path: Path) -> None:
    """A refusal names the client's number, or the fence: it is another text each time."""
    with served(authority, tmp_path) as (here, file):
        flood(here, authority.folder.parent / "client-1", *([Hello(VERSION, i % 9000)] for i in range(CALLS)))
        flood(here, authority.folder.parent / "client-0", *([Hello(VERSION + 1 + i, 0)] for i in range(CALLS)))
        wait_until(lambda: not here.network.connections.by_number)
    refused = [event for event in read_events(file) if event["event"] == "refused"]
    assert LINES <= len(refused) <= 2 * LINES


def test_one_flood_does_not_silence_another_certificate(authority: Authority, tmp_path: Path) -> None:
    with served(authority, tmp_path) as (here, file):
        flood(here, authority.folder.parent / "client-1", *([Hello(VERSION, 1)] for _ in range(CALLS)))
        flood(here, authority.folder.parent / "client-0", [Hello(VERSION, 3)])
        wait_until(lambda: not here.network.connections.by_number)
    assert any("client-0" in event["why"] for event in read_events(file))


def test_a_client_that_comes_and_leaves_leaves_few_lines(authority: Authority, tmp_path: Path) -> None:
    accept = Accept(TERMS.spec_hash, TERMS.engine, TERMS.cpu, 5, check=True)
    with served(authority, tmp_path) as (here, file):
        for i in range(2 * LINES):
            connection = here.call(build_channel_credentials(load_identity(authority.folder.parent / "client-0")))
            for word in (Hello(VERSION, 0), accept):
                connection.send(word)
                connection.receive(300)
            connection.send(Leave(f"reason {i}"))
            connection.stream.finish()
            connection.close()
        wait_until(lambda: not here.network.connections.by_number)
    assert sum(event["event"] == "left" for event in read_events(file)) == LINES


def test_lines_stay_whole_json(authority: Authority, tmp_path: Path) -> None:
    with served(authority, tmp_path) as (here, file):
        flood(here, authority.folder.parent / "client-0", [Hello(VERSION, 2)])
        wait_until(lambda: not here.network.connections.by_number)
    assert all("source" not in json.loads(line) for line in file.read_text().splitlines())
