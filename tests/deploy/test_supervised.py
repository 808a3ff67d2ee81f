"""Programs under a supervisor: lines of JSON, messages to systemd, and exit codes."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.cli.main import run
from tests.support.command_line import Program, run_programs

SPEC = ("data=digits", "M=2", "C=5", "R=2", "K=2", "batch=5", "model=mlp")
STOPPED = 130  # the exit code of a program that was told to stop before the end of the run
JSON = ("--insecure", "--log", "json")


def serve(folder: Path, *words: str) -> tuple[str, ...]:
    place = ("--out", str(folder / "run"), "--listen", "127.0.0.1:0", "--port-file", str(folder / "port"))
    return ("serve", *SPEC, *place, *JSON, *words)


def join(folder: Path, *clients: int) -> tuple[str, ...]:
    """Some clients in one program, each with sixty images of its own."""
    y = np.arange(60) % 10
    np.savez(folder / "own.npz", x=(np.arange(64).reshape(8, 8) * (y[:, None, None] + 1) % 17).astype(np.uint8), y=y)
    address = f"127.0.0.1:{(folder / 'port').read_text().strip()}"
    each = [word for m in clients for word in ("--client", str(m), "--data", str(folder / "own.npz"))]
    return ("join", address, *each, "--spec", str(folder / "run" / "relay" / "terms.toml"), *JSON)


def messages(program: Program) -> list[str]:
    return [one["message"] for one in program.objects()]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "run" / "relay" / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in found if event["event"] == kind]


# A run from the first word to the last


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Program, Program]]:
    """A server and a program with both its clients, after the last round."""
    folder = tmp_path_factory.mktemp("whole")
    with run_programs(folder) as start:
        server = start("server", *serve(folder, "--linger", "0"))
        assert server.heard() == "READY=1", server.words
        clients = start("clients", *join(folder, 0, 1))
        assert clients.left() == 0 and server.left() == 0, clients.words + server.words
        yield folder, server, clients


def test_every_line_of_a_server_is_an_object(whole: tuple[Path, Program, Program]) -> None:
    folder, server, _ = whole
    said = messages(server)
    assert {one["who"] for one in server.objects()} == {"server"}
    assert [text.split(":")[0] for text in said if text.startswith("round")] == ["round 0", "round 1", "round 2"]
    assert server.objects()[0]["level"] == "warning" and said[0].startswith("INSECURE: ")
    assert server.out.read_text() == f"{folder / 'run'}\n"


def test_every_line_of_clients_is_an_object_that_names_them(whole: tuple[Path, Program, Program]) -> None:
    _, _, clients = whole
    told = [one for one in clients.objects() if "client" in one]
    for name in ("client 0", "client 1"):
        assert [one["message"] for one in told if one["client"] == name] == [
            f"joined as {name} with 60 images",
            *(f"round {r}: 2 steps, committed" for r in range(2)),
        ]
    assert clients.out.read_text() == "all rounds are done\n" * 2


# Who is told to stop


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Program, Program]]:
    """A client that leaves while it waits for its turn, then a server that leaves while it waits for clients."""
    folder = tmp_path_factory.mktemp("stopped")
    with run_programs(folder) as start:
        server = start("server", *serve(folder))
        assert server.heard() == "READY=1", server.words
        client = start("client", *join(folder, 0))
        assert client.heard() == "READY=1", client.words
        server.said("client 0 is here; 1 clients to come")
        client.said("joined as client 0")
        assert client.left(signal.SIGTERM) == STOPPED, client.words
        assert server.left(signal.SIGTERM) == STOPPED, server.words
        yield folder, server, client


def test_an_idle_client_leaves_in_peace(stopped: tuple[Path, Program, Program]) -> None:
    _, _, client = stopped
    assert client.out.read_text() == "left\n" and messages(client)[-1].startswith("joined as client 0")


def test_the_server_notes_who_left(stopped: tuple[Path, Program, Program]) -> None:
    folder, _, _ = stopped
    (left,) = events(folder, "left")
    assert (left["client"], left["why"]) == (0, "the client was told to stop")


def test_a_server_that_stops_says_so_and_where_it_goes_on(stopped: tuple[Path, Program, Program]) -> None:
    folder, server, _ = stopped
    assert server.heard() == "STOPPING=1"
    assert str(folder / "run") in messages(server)[-1]
    assert server.out.read_text() == ""


def test_a_server_that_is_stopped_after_the_last_round_has_succeeded(
    whole: tuple[Path, Program, Program], tmp_path: Path
) -> None:
    folder, _, _ = whole
    with run_programs(tmp_path) as start:
        server = start("server", *serve(folder, "--linger", "600"))
        server.said("round 2")
        assert server.left(signal.SIGTERM) == 0, server.words


# The last line, if it is an error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("join", "127.0.0.1:1", "--insecure"), "each client needs one --client and one --data"),
        (("serve", "--lease", "-1"), "Invalid value for '--lease'"),
        (("serve", "--leese", "1"), "No such option"),
        (("serve", "no.toml", "--traceback"), "there is no spec no.toml"),
    ],
)
@pytest.mark.parametrize("form", [("--log", "json"), ("--log=json",)])
def test_an_error_is_an_object_too(
    words: tuple[str, ...], says: str, form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        run([*words, *form])
    (line,) = capsys.readouterr().err.splitlines()
    error = json.loads(line)
    assert leaving.value.code == 2
    assert (error["who"], error["level"]) == ("splitrelay", "error") and error["message"].startswith(says)
    assert ("Traceback" in error.get("traceback", "")) is ("--traceback" in words)


@pytest.mark.parametrize("form", [(), ("--log", "lines"), ("--", "--log=json")])
def test_for_people_it_is_a_line(form: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["serve", "no.toml", *form])
    assert capsys.readouterr().err.startswith("splitrelay: ")
