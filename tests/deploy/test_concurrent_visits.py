"""Whose turn is it at the same time: all clients of a round where they are averaged, one where x is handed on?"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy import client_visit
from splitrelay.network import messages
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.sealed_deployments import join_directly, make_direct_deployment

TOGETHER = {
    "algorithm=fedavg": 4,
    "algorithm=fedavg placement=whole": 4,
    "algorithm=fedavg S=3": 3,
    "algorithm=scaffold": 4,
    "algorithm=splitfed-v3": 4,
    "algorithm=sflg G=2": 2,
    "algorithm=fedseq G=2": 2,
    "algorithm=splitfed-v2": 1,  # the server's half goes through all clients in sequence
    "algorithm=ssl": 1,
    "algorithm=ssl S=4 order=replacement": 1,
    "algorithm=random-reshuffling": 1,
}


def played(folder: Path, *words: str) -> LocalDeployment:
    stage = LocalDeployment(small_spec(folder, *words), folder)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    return stage


def out(stage: LocalDeployment) -> Iterator[tuple[int, list[int]]]:
    """(round, the clients whose visits are out), whenever one more is."""
    lines = (stage.folder / "run" / "relay" / "events.jsonl").read_text().splitlines()
    leased: dict[int, list[int]] = defaultdict(list)
    for event in map(json.loads, lines):
        if event["event"] == "committed":
            leased[event["round"]].remove(event["client"])
        elif event["event"] == "leased":
            leased[event["round"]].append(event["client"])
            yield event["round"], list(leased[event["round"]])


@pytest.mark.parametrize("words", TOGETHER)
def test_as_many_visits_are_out_as_the_algorithm_makes_at_once(words: str, tmp_path: Path) -> None:
    stage = played(tmp_path, *words.split())
    most: dict[int, int] = defaultdict(int)
    for r, clients in out(stage):
        most[r] = max(most[r], len(clients))
    assert most == dict.fromkeys(range(stage.spec.R), TOGETHER[words])


def test_a_client_that_is_drawn_twice_has_one_visit_at_a_time(tmp_path: Path) -> None:
    stage = played(tmp_path, "algorithm=fedavg", "S=4", "order=replacement", "R=3")
    seen = [clients for _, clients in out(stage)]
    assert max(map(len, seen)) > 1 and all(len(set(clients)) == len(clients) for clients in seen)
    assert any(event["occurrence"] for event in stage.events("committed"))


def test_peer_to_peer_one_visit_is_out_at_a_time_where_the_server_relays(tmp_path: Path) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5")
    for m in stage.partition.clients:
        join_directly(stage, m, "")
    stage.play()
    assert [len(clients) for _, clients in out(stage)] == [1] * 6


@pytest.mark.parametrize("words", ["algorithm=fedavg", "algorithm=splitfed-v3"])
def test_nobody_waits_for_another_in_the_middle_of_a_visit(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client's first step leaves only when all four are at theirs, and its last when all have one behind them."""
    stage = LocalDeployment(small_spec(tmp_path, words, "R=1"), tmp_path)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    meeting, step = threading.Barrier(4), client_visit.RemoteServerHalf.step

    def met(calls: client_visit.RemoteServerHalf, k: int, *given: Any, **more: Any) -> messages.Reply:
        meeting.wait(60)
        return step(calls, k, *given, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", met)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
