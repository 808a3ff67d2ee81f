"""What an observer sees of a run before it starts, while it trains and after its end."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from splitrelay import __version__
from splitrelay.cli.main import run
from splitrelay.cli.status import build_table
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.errors import InputError, OutputError
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.status_rpc import NoAnswer, status_handler
from splitrelay.security.authority import open_authority
from splitrelay.web.source import PageSource, get_status
from tests.support.bare_server import BOUNDS, TERMS, wait_until
from tests.support.command_line import run_programs
from tests.support.deployment import LocalDeployment, small_spec, watch_events


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of one run: before anybody came, when the second of four was here, when all is done."""
    found: list[dict[str, Any]] = []
    stage = LocalDeployment(small_spec(tmp_path_factory.mktemp("run"), "R=1"), tmp_path_factory.mktemp("stage"))

    def look() -> None:
        found.append(json.loads(stage.serving.report()))

    def heard(text: str) -> None:
        if "2 clients to come" in text:
            look()
            for m in (2, 3):
                stage.join(m)

    stage.serving.say = heard
    stage.serving.on_listening = lambda port: (look(), stage.listening.set())  # type: ignore[func-returns-value, assignment]
    for m in (0, 1):
        stage.join(m)
    stage.play()
    look()
    return found


def test_before_anybody_came_it_says_how_many_are_awaited(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[0])
    assert table.title.endswith("waiting for 4 more clients")
    assert table.rows == [(m, "away", "", None) for m in range(4)]


def test_before_the_first_visit_it_tells_who_is_here_and_nothing_of_costs(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[1])
    assert table.title.endswith("waiting for 2 more clients") and not table.notes
    assert sorted(row[1] for row in table.rows) == ["away", "away", "here", "here"]


def test_after_a_visit_it_tells_what_was_paid(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[2])
    assert table.title.endswith("finished, round 1 of 1") and "MB up" in table.notes[0]
    assert [row[4] for row in table.rows] == [1] * 4


def test_a_server_that_cannot_keep_its_run_says_nothing_else(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        next(ServerProgram(ServerConfig(small_spec(tmp_path), tmp_path / "file" / "run"), said.append).rows())
    assert said == []


def test_it_tells_when_a_client_was_last_in_contact_and_its_software(reports: list[dict[str, Any]]) -> None:
    before, middle, after = ([one["last_contact"] is not None for one in report["clients"]] for report in reports)
    assert before == [False] * 4 and sorted(middle) == [False, False, True, True] and after == [True] * 4
    assert {one["software"] for one in reports[2]["clients"]} == {f"splitrelay {__version__}"}
    assert {one["certificate_seconds"] for one in reports[2]["clients"]} == {None}  # it runs without keys


def test_leases_and_faults_are_listed(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=1"), tmp_path)
    seen: list[dict[str, Any]] = []

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "leased":
            stage.serving.journal.note("strike", client=facts["client"], why="a test")
            seen.append(json.loads(stage.serving.report()))

    watch_events(stage, happened)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    leases = [lease for report in seen for lease in report["leases"]]
    assert [lease["client"] for lease in leases] == [report["turn"][0] for report in seen]
    assert [lease["round"] for lease in leases] == [0, 0] and leases[0]["fence"] < leases[1]["fence"]
    assert [fault["event"] for fault in seen[1]["faults"]] == ["strike", "strike"]
    assert seen[1]["faults"][0]["client"] == leases[1]["client"] and seen[1]["faults"][0]["why"] == "a test"


def test_a_page_asks_over_mutual_tls_as_an_observer(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=1"), tmp_path, keys=True)
    open_authority(tmp_path / "authority").issue_client("boss", observer=True)
    seen: list[dict[str, Any]] = []

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "leased":
            thread = Thread(target=ask, daemon=True)  # the thread of the events must answer
            thread.start()

    def ask() -> None:
        source = PageSource(address=f"127.0.0.1:{stage.serving.port}", keys=tmp_path / "boss")
        seen.append(get_status(source, {})["report"])

    watch_events(stage, happened)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    wait_until(lambda: len(seen) == 2)
    assert all(one["certificate_seconds"] > 86_400 for one in seen[0]["clients"] if one["here"])


def test_a_page_without_the_right_keys_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        get_status(PageSource(address="127.0.0.1:1", keys=tmp_path / "nothing"), {})
    with pytest.raises(NoAnswer):
        get_status(PageSource(address="127.0.0.1:1", insecure=True), {})


# `status --watch` continues while the server does not answer, and prints one note.
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
