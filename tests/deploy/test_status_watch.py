"""`status --watch` continues while the server does not answer, and prints one note."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from splitrelay.cli.main import run
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.status_rpc import status_handler
from tests.support.bare_server import BOUNDS, TERMS
from tests.support.command_line import run_programs

NOTE = "every 0.1 s"  # the note about the retries
CLIENT = {"client": 0, "here": True, "turn": False, "samples": 5, "visits": 0, "socket_bytes_up": None}
CLIENT |= {"socket_bytes_down": None, "computing_seconds": 0.0, "waiting_seconds": 0.0, "memory_bytes": 0}
REPORT = {"algorithm": "ssl", "route": "centralized", "spec": "0", "awaited": 0, "rounds": 9, "evaluator": None}


class StatusServer:
    """A server whose reports show the given rounds, and then the last one again."""

    def __init__(self, port: int, rounds: Iterator[int], refuses: str | None = None) -> None:
        self.rounds, self.r, self.refuses = rounds, 0, refuses
        self.asked = 0
        self.network = NetworkServer(ServerContext(TERMS, BOUNDS, 10_000, 4))
        self.network.add_method("Status", status_handler(self.report, self.admit))
        self.port = self.network.start(f"127.0.0.1:{port}")

    def admit(self, context: Any) -> str | None:
        self.asked += 1
        return self.refuses if self.asked > 1 else None

    def report(self) -> str:
        self.r = next(self.rounds, self.r)
        phase = "finished" if self.r == REPORT["rounds"] else "training"
        return json.dumps({**REPORT, "phase": phase, "round": self.r, "clients": [CLIENT]})

    def __enter__(self) -> "StatusServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.network.close("enough", again=True)


def watch(port: int) -> tuple[str, ...]:
    return ("status", f"127.0.0.1:{port}", "--insecure", "--watch", "--every", "0.1")


def test_watch_continues_after_restart_of_server(tmp_path: Path) -> None:
    with run_programs(tmp_path) as start:
        with StatusServer(0, iter((3,))) as server:
            watching = start("watch", *watch(server.port))
            watching.said("round 3 of 9")
        watching.said(NOTE)
        with StatusServer(server.port, iter((4, 4, 4))):
            watching.said("round 4 of 9", times=3)
        watching.said(NOTE, times=2)
        with StatusServer(server.port, iter((9,))):
            assert watching.left() == 0
        assert watching.words.count(NOTE) == 2 and "finished, round 9 of 9" in watching.words


def test_ctrl_c_ends_watch_without_server(tmp_path: Path) -> None:
    with run_programs(tmp_path) as start:
        with StatusServer(0, iter((3,))) as server:
            watching = start("watch", *watch(server.port))
            watching.said("round 3 of 9")
        watching.said(NOTE)
        assert watching.left(signal.SIGINT) == 130
        assert watching.err.read_text().endswith("splitrelay: stopped.\n")


def test_watch_without_first_answer_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(watch(1))
    assert leaving.value.code == 1
    assert "splitrelay: the server does not answer; got " in capsys.readouterr().err


def test_refusal_ends_watch(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        StatusServer(0, iter((3,)), "the certificate of boss is revoked") as server,
        pytest.raises(SystemExit) as leaving,
    ):
        run(watch(server.port))
    assert leaving.value.code == 1 and server.asked == 2
    assert "splitrelay: the server refused: the certificate of boss is revoked" in capsys.readouterr().err
