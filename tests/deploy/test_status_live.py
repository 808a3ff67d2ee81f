"""In the middle of a visit: whose turn does who asks see, and what becomes of a client that is told to stop?"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitrelay.chaos.proxies import TcpProxy
from splitrelay.cli.status import build_table
from splitrelay.deploy import client_visit
from splitrelay.deploy.status_client import ask_status
from splitrelay.network import messages
from tests.deploy.test_rotation import LastWords
from tests.support.bare_server import wait_until
from tests.support.deployment import LocalDeployment, remove_times, simulate_run, small_spec, watch_events

TWO = ("M=2", "C=9", "order=fixed")
Moment = tuple[int, int, int]  # round, client, step


def before_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[Moment], object]) -> None:
    """Something that a client's program does before it says a step."""
    step = client_visit.RemoteServerHalf.step

    def acting(calls: client_visit.RemoteServerHalf, k: int, *given: Any, **more: Any) -> messages.Reply:
        act((calls.lease.r, calls.lease.m, k))
        return step(calls, k, *given, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", acting)


# Who asks


def asked(stage: LocalDeployment) -> dict[str, Any]:
    return ask_status(f"127.0.0.1:{stage.serving.port}", None, insecure=True)


def turns(report: dict[str, Any]) -> list[int]:
    """Whose turn it is, as the report says twice and the table once more."""
    found = [one["client"] for one in report["clients"] if one["turn"]]
    assert found == report["turn"] == [row[0] for row in build_table(report).rows if row[2]]
    return found


def test_who_asks_in_the_middle_of_a_visit_sees_whose_turn_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, seen = LocalDeployment(small_spec(tmp_path, "M=3", "C=5"), tmp_path), dict[Moment, dict[str, Any]]()
    before_steps(monkeypatch, lambda moment: seen.update({moment: asked(stage)}))
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert len(seen) == 2 * 3 * 2  # R M K
    for (r, m, _), report in seen.items():
        assert turns(report) == [m] and report["phase"] == "training" and report["round"] <= r
        assert [one["here"] for one in report["clients"]] == [True] * 3


def test_where_all_train_at_once_it_is_everybodys_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, seen = LocalDeployment(small_spec(tmp_path, "algorithm=fedavg", "R=1"), tmp_path), list[list[int]]()
    meeting = threading.Barrier(4)

    def look(moment: Moment) -> None:
        if moment[2] == 0:
            seen.append(turns(asked(stage)))
            meeting.wait(300)

    before_steps(monkeypatch, look)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert seen == [[0, 1, 2, 3]] * 4
    assert turns(json.loads(stage.serving.report())) == []


def test_a_client_that_is_away_when_it_is_its_turn_is_seen_so(tmp_path: Path) -> None:
    stage, seen = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path), list[dict[str, Any]]()

    def look() -> None:
        wait_until(lambda: asked(stage)["turn"] == [1])
        seen.append(asked(stage))
        stage.join(1)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and (facts["round"], facts["client"]) == (0, 1):
            stage.clients[1].stop.set()
            wait_until(lambda: 1 not in stage.serving.network.connections.get_clients())
        if event == "leased" and (facts["round"], facts["client"]) == (1, 0):
            threading.Thread(target=look, daemon=True).start()

    watch_events(stage, happened)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    (report,) = seen
    assert turns(report) == [1] and [one["here"] for one in report["clients"]] == [True, False]
    assert build_table(report).rows[1][1:3] == ("away", "its turn")


# Who is told to stop


def played_again(
    stage: LocalDeployment, back: str, address: Callable[[], str] | None = None
) -> list[tuple[int, int, int]]:
    """The run in which client 0 leaves and is back when this is noted: (round, client, steps) of what counts."""
    simulation = simulate_run(stage.spec, stage.folder / "simulated")

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == back and facts["client"] == 0:
            stage.join(0)

    watch_events(stage, happened)
    for m in stage.partition.clients:
        stage.join(m, address=address if m == 0 else None)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == simulation.model.read_bytes()
    assert remove_times(rows) == remove_times(simulation.read_rows())
    return [(event["round"], event["client"], event["steps"]) for event in stage.events("committed")]


EACH_ONCE = [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
FIRST = (0, 0, 1)  # the middle of the first visit
NOBODY = 1  # a port at which nobody listens


def test_who_is_told_to_stop_finishes_its_visit_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One SIGTERM: the visit counts, and the next one waits until the client is back."""
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    before_steps(monkeypatch, lambda moment: stage.clients[0].stop.set() if moment == FIRST else None)
    stage.words = words = LastWords()
    assert played_again(stage, "gone") == EACH_ONCE
    assert [(event["client"], event["why"]) for event in stage.events("left")] == [(0, "the client was told to stop")]
    assert sorted(words.all) == ["all rounds are done", "all rounds are done", "left"]
    assert len(stage.events("leased")) == 4 and not stage.events("lost")


def test_who_is_told_to_stop_while_the_server_is_out_of_reach_goes_and_makes_its_visit_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could take the visit from it: what was made of it is forgotten, at both ends."""
    stage, lines = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path), list[TcpProxy]()

    def leave(moment: Moment) -> None:
        if moment == FIRST and lines[0].target != NOBODY:
            stage.clients[0].stop.set()
            lines[0].target = NOBODY
            lines[0].cut()

    def open_proxy() -> str:
        lines.append(TcpProxy(stage.serving.port))
        return f"127.0.0.1:{lines[-1].port}"

    before_steps(monkeypatch, leave)
    stage.words = words = LastWords()
    assert played_again(stage, "lost", open_proxy) == EACH_ONCE
    assert [event["client"] for event in stage.events("restarted")] == [0] and not stage.events("left")
    assert sorted(words.all) == ["all rounds are done", "all rounds are done", "left"]
    assert [(event["round"], event["client"]) for event in stage.events("leased")].count((0, 0)) == 2
    lines[0].close()


class Interrupted(Exception):
    """A second SIGTERM, wherever the program is."""


def test_who_is_told_twice_goes_at_once_and_makes_its_visit_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, told_once = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path), list[Moment]()

    def interrupt(moment: Moment) -> None:
        if moment == FIRST and not told_once:
            told_once.append(moment)
            stage.clients[0].stop.set()
            raise Interrupted

    before_steps(monkeypatch, interrupt)
    stage.words = words = LastWords()
    assert played_again(stage, "lost") == EACH_ONCE
    assert [event["client"] for event in stage.events("restarted")] == [0]
    assert [type(word).__name__ for word in words.all if word != "all rounds are done"] == ["Interrupted"]
