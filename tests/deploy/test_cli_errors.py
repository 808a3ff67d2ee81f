"""Slips of the hand at serve and join: each is one line with what, value and limit, leaves with 2, begins nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from splitrelay.cli.main import run
from splitrelay.network.grpc_channel import ServerRefused
from splitrelay.runs import build
from tests.support.bare_server import run_bare_server

JOIN = ("join", "127.0.0.1:1", "--data", "x.npz")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def serve() -> Iterator[tuple[str, ...]]:
    """A command that, where nothing is refused, writes a folder, finds its port taken, and does not wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        yield ("serve", "data=digits", "M=3", "C=5", "--insecure", "--listen", address, "--out", "run")


def code_of(*words: str) -> int:
    """How a command line leaves."""
    with pytest.raises(SystemExit) as leaving:
        run(words)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that is refused, and has written nothing."""
    assert code_of(*words) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == "" and list(Path().iterdir()) == []
    return line


# join: the keys say who it is, or nobody does


def test_keys_are_not_dropped_for_insecure(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *JOIN, "--keys", "hospital-0", "--insecure", "--client", "0", "--patience", "0.1")
    assert line == "splitrelay: --keys and --insecure exclude each other. Leave --insecure out."


def test_a_number_beside_the_keys_is_not_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *JOIN, "--keys", "hospital-0", "--client", "4")
    assert "--keys and --client" in line and "got 4" in line


# serve and join: numbers


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--lease", "-1", "x>=0"),
        ("--lease", "nan", "not a number"),
        ("--patience", "0", "x>0"),
        ("--patience", "nan", "not a number"),
        ("--retries", "-5", "x>=0"),
        ("--visit-deadline", "0", "x>0"),
        ("--visit-deadline", "nan", "not a number"),
        ("--strikes", "-1", "x>=0"),
        ("--stalled-after", "-1", "x>=0"),
        ("--stalled-after", "nan", "not a number"),
        ("--linger", "-1", "x>=0"),
        ("--linger", "nan", "not a number"),
        ("--quorum", "-3", "needs 1 to 3"),
        ("--quorum", "0", "needs 1 to 3"),
        ("--quorum", "4", "needs 1 to 3"),
        ("--without", "99", "needs 0 to 2"),
        ("--without", "-1", "needs 0 to 2"),
    ],
)
def test_serve_checks_its_numbers(
    option: str, value: str, limit: str, serve: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *serve, option, value)
    assert option in line and value in line and limit in line


def test_somebody_must_be_left_to_train_with(serve: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *serve, "--without=0", "--without=1", "--without=2")
    assert "--without" in line and "0 1 2" in line and "at most 2 of 3" in line


def test_the_quorum_is_of_those_who_come(serve: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *serve, "--without=0", "--quorum=3")
    assert "--quorum" in line and "got 3" in line and "needs 1 to 2" in line


def test_there_is_no_client_below_0(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", x=np.zeros((10, 2, 2), np.uint8), y=np.arange(10))
    assert code_of(*JOIN, "--insecure", "--client", "-1", "--patience", "0.1") == 2
    assert "'--client': -1 is not in the range x>=0" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "limit"), [("-1", "x>=0"), ("nan", "not a number")])
def test_join_checks_its_patience(value: str, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *JOIN, "--insecure", "--client", "0", "--patience", value)
    assert "--patience" in line and value in line and limit in line


# serve, join and rehearse: the device is checked before anything else

DEVICE_COMMANDS = [
    ("serve", "data=digits", "M=3", "C=5", "--insecure", "--out", "run"),
    ("rehearse", "data=digits", "M=3", "C=5", "--insecure", "--out", "run"),
    (*JOIN, "--insecure", "--client", "0", "--patience", "0.1"),
]


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
@pytest.mark.parametrize("command", DEVICE_COMMANDS, ids=lambda command: command[0])
def test_a_device_that_is_not_there_is_refused(
    command: tuple[str, ...], device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"'{device}'" in refused(capsys, *command, "--device", device)


@pytest.mark.parametrize("command", DEVICE_COMMANDS[:2], ids=lambda command: command[0])
def test_the_fast_engine_needs_the_cpu(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DEVICES", ("meta",))
    assert code_of(*command, "engine=fast", "--device", "meta") == 2
    assert "not meta" in capsys.readouterr().err and list(Path().iterdir()) == []


def test_the_fed_server_needs_the_cpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "DEVICES", ("meta",))
    assert "got meta" in refused(capsys, "join", "127.0.0.1:1", "--fed-server", "--keys", "fed", "--device", "meta")


# Refused for good is a wrong request: restarting does not help


REVOKED = "the certificate of hospital-0 is revoked"


@pytest.mark.parametrize(("client", "why"), [("99", "there is no client 99"), ("0", REVOKED)])
def test_who_is_refused_for_good_leaves_with_2(client: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", x=np.zeros((10, 2, 2), np.uint8), y=np.arange(10))
    with run_bare_server(admit=lambda caller, hello: None if hello.client else REVOKED) as here:
        words = (f"127.0.0.1:{here.port}", "--data", "x.npz", "--insecure", "--client", client)
        assert code_of("join", *words) == 2
    assert f"splitrelay: the server refused: {why}" in capsys.readouterr().err


def test_who_may_try_again_leaves_with_1() -> None:
    assert ServerRefused("too many messages at once", final=False).exit_code == 1
