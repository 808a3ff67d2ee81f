"""Admission of clients: a wrong message ends its connection with a reason, and never the server."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy.status_client import ask_status, collect_model
from splitrelay.errors import InputError, WorkError
from splitrelay.network import codec
from splitrelay.network.client_session import Connection
from splitrelay.network.codec import VERSION
from splitrelay.network.grpc_channel import ConnectionLost, ServerRefused, open_channel
from splitrelay.network.messages import Accept, Deposit, Hello, Lease, Message, Ready, Step, Terms
from splitrelay.security.authority import open_authority
from splitrelay.security.identity import build_channel_credentials, load_identity
from tests.support.bare_server import wait_until
from tests.support.deployment import LocalDeployment, small_spec
from tests.support.error_fields import expect_error


def onlooker(stage: LocalDeployment, act: Callable[[int], Any]) -> list[Any]:
    """Something that is done once the server listens; then the server is told to stop."""
    seen: list[Any] = []

    def listening(port: int) -> None:
        stage.listening.set()
        try:
            seen.append(act(port))
        except Exception as error:
            seen.append(error)
        finally:
            stage.stop.set()

    stage.serving.on_listening = listening
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    return seen


def greeted(port: int, m: int = 0, version: int = VERSION) -> tuple[Connection, Terms]:
    connection = Connection(open_channel(f"127.0.0.1:{port}", None))
    connection.send(Hello(version, m))
    terms = connection.receive(300)
    assert isinstance(terms, Terms)
    return connection, terms


@pytest.mark.parametrize(
    ("hello", "why"),
    [(Hello(VERSION + 1, 0), f"with version {VERSION} of the protocol"), (Hello(VERSION, 99), "there is no client 99")],
)
def test_a_wrong_greeting_is_refused_for_good(hello: Hello, why: str, tmp_path: Path) -> None:
    def act(port: int) -> Any:
        connection = Connection(open_channel(f"127.0.0.1:{port}", None))
        connection.send(hello)
        return connection.receive(300)

    (error,) = onlooker(LocalDeployment(small_spec(tmp_path), tmp_path), act)
    assert isinstance(error, ServerRefused) and error.final and why in str(error)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec_hash": "000000000000"}, "this run is of spec"),
        ({"engine": "steam"}, "computed by the engine"),
        ({"n": 0}, "without samples"),
    ],
)
def test_who_does_not_agree_is_refused_with_the_reason(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    def act(port: int) -> Any:
        connection, terms = greeted(port)
        agreed = {"spec_hash": terms.spec_hash, "engine": terms.engine, "cpu": "any", "n": 5}
        connection.send(Accept(**{**agreed, **changes}))
        return connection.receive(300)

    (error,) = onlooker(LocalDeployment(small_spec(tmp_path), tmp_path), act)
    assert isinstance(error, ServerRefused) and error.final and why in str(error)


def leased(port: int) -> tuple[Connection, Lease]:
    connection, terms = greeted(port)
    connection.send(Accept(terms.spec_hash, terms.engine, "any", 50))
    connection.receive(300)
    lease = connection.receive(300)
    assert isinstance(lease, Lease)
    connection.receive(300)  # the half
    connection.send(Ready(lease.fence))
    return connection, lease


def wrong(fence: int, which: str) -> bytes:
    h, labels = np.ones((5, 64), np.float32), np.zeros(5, np.int32)
    words: dict[str, Message] = {
        "shape": Step(fence, 0, np.ones((5, 63), np.float32), labels, 0.0),
        "labels": Step(fence, 0, h, labels + 10, 0.0),
        "NaN": Step(fence, 0, h * np.float32(np.nan), labels, 0.0),
        "too many samples": Step(fence, 0, np.ones((6, 64), np.float32), np.zeros(6, np.int32), 0.0),
        "step out of order": Step(fence, 7, h, labels, 0.0),
        "another visit": Step(fence + 1, 0, h, labels, 0.0),
        "too early": Deposit(fence, 0, b"x" * 32),
    }
    return b"junk" if which == "junk" else codec.encode(words[which])


@pytest.mark.parametrize(
    "which",
    ["shape", "labels", "NaN", "too many samples", "step out of order", "another visit", "too early", "junk"],
)
def test_a_wrong_word_ends_the_link_and_the_server_goes_on(which: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "order=fixed", "R=1")
    stage = LocalDeployment(spec, tmp_path, quorum=1)
    seen: list[Any] = []

    def listening(port: int) -> None:
        def hostile() -> None:
            connection, lease = leased(port)
            connection.stream.put(wrong(lease.fence, which))
            try:
                seen.append(connection.receive(300))
            except (ServerRefused, ConnectionLost) as error:
                seen.append(error)
            connection.close()
            wait_until(lambda: stage.events("lost"))
            stage.stop.set()

        thread = threading.Thread(target=hostile, daemon=True)
        stage.threads.append(thread)
        thread.start()

    stage.serving.on_listening = listening
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert isinstance(seen[0], ServerRefused), seen
    assert [event["client"] for event in stage.events("refused")] == [0]
    assert stage.events("lost") and not stage.events("committed")


def test_nobody_joins_under_another_name(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True)

    def act(port: int) -> Any:
        connection = Connection(
            open_channel(f"127.0.0.1:{port}", build_channel_credentials(load_identity(tmp_path / "client-1")))
        )
        connection.send(Hello(VERSION, 0))
        return connection.receive(300)

    (error,) = onlooker(stage, act)
    assert isinstance(error, ServerRefused) and error.final and "is not that of client 0" in str(error)


def test_a_revoked_client_is_refused_without_a_restart(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True)
    stage.join(0)

    def act(port: int) -> Any:
        wait_until(lambda: stage.serving.network.connections.get_clients())
        open_authority(tmp_path / "authority").revoke("client-0")
        stage.threads[0].join(300)

    onlooker(stage, act)
    assert isinstance(stage.words[0], ServerRefused) and "revoked" in str(stage.words[0])


def test_status_tells_who_is_here(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True)

    def act(port: int) -> Any:
        return ask_status(f"127.0.0.1:{port}", tmp_path / "client-1", False)

    (report,) = onlooker(stage, act)
    assert report["phase"] == "waiting" and [one["here"] for one in report["clients"]] == [False] * 4


def test_the_model_is_collected_when_it_is_finished_and_not_before(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, linger=20.0)
    early: list[Any] = []

    def listening(port: int) -> None:
        with expect_error(WorkError, what="round 0 of 2"):
            collect_model(f"127.0.0.1:{port}", None, True, tmp_path / "early")
        early.append(port)
        stage.listening.set()

    stage.serving.on_listening = listening
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.serving.rows()
    for progress in rows:
        if progress.row["round"] == stage.spec.R:
            break

    def late() -> None:
        for thread in stage.threads:
            thread.join(300)
        collect_model(f"127.0.0.1:{early[0]}", None, True, tmp_path / "late")
        stage.stop.set()

    asker = threading.Thread(target=late)
    asker.start()
    assert list(rows) == []
    asker.join()
    assert (tmp_path / "late").read_bytes() == stage.serving.directory.model.read_bytes()


def test_without_keys_nothing_starts(tmp_path: Path) -> None:
    with expect_error(InputError, what="--keys", hint=("splitrelay keys authority", "--insecure")):
        ask_status("127.0.0.1:1", None, False)
