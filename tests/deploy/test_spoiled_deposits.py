"""Deposits within the bound that make every later visit overflow: their writer is found, and the run goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy import client_visit
from splitrelay.deploy.backend import ClientContext
from splitrelay.deploy.events import list_skipped_visits
from splitrelay.deploy.rehearsal import simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.deploy.state_probe import Examiner, Finding
from splitrelay.errors import Diverged
from splitrelay.network import limits
from splitrelay.runs.run_directory import RunDirectory
from tests.deploy.test_diverging_visit import misbehave
from tests.support.deployment import LocalDeployment, simulate_run, small_spec

NET = ("M=4", "C=5", "R=4", "eta=0.05", "model=lenet-small")  # such a push ends the visits of deeper nets only
EVIL = 1  # the client that deposits what it likes
Change = Callable[[Any], Any]


def push(x: Any) -> Any:
    """Move the weights nearly as far as the bound without clip allows."""
    far = 0.9 * limits.MOVE_FACTOR * (float(np.linalg.norm(x)) + 1.0)
    return x + np.float32(far / np.sqrt(x.size))


def spoil(monkeypatch: pytest.MonkeyPatch, times: float = float("inf"), change: Change = push) -> list[int]:
    """Client EVIL trains as it should, and so many times deposits something else."""
    build, spoiled = client_visit.build_client_engine, list[int]()

    def engine_of(context: ClientContext) -> Any:
        engine = build(context)
        if context.m != EVIL:
            return engine
        get_x, train_whole = engine.get_x, engine.train_whole

        def deposit(x: Any) -> Any:
            if len(spoiled) >= times:
                return x
            spoiled.append(1)
            return change(x)

        engine.get_x = lambda visit: deposit(get_x(visit))  # type: ignore[method-assign]
        engine.train_whole = lambda visit: (deposit(train_whole(visit)[0]), 0.5)  # type: ignore[method-assign]
        return engine

    monkeypatch.setattr(client_visit, "build_client_engine", engine_of)
    return spoiled


def play(stage: LocalDeployment) -> None:
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()


SPECS = ["", "engine=reference", "algorithm=fedavg", "algorithm=splitfed-v2", "algorithm=scaffold", "every=3",
         "placement=whole algorithm=fedavg"]  # fmt: skip


@pytest.mark.parametrize("words", SPECS)
def test_a_deposit_that_later_visits_overflow_from_is_dropped_and_its_writer_struck(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *NET, *words.split())
    stage = LocalDeployment(spec, tmp_path, policy=Policy("skip"))
    spoil(monkeypatch)
    play(stage)
    assert {event["client"] for event in stage.events("strike")} == {EVIL}
    assert {event["client"] for event in stage.events("quarantined")} == {EVIL}
    skips = list_skipped_visits(stage.events("skipped"))
    assert skips == {(r, EVIL, 0) for r in range(stage.spec.R)}
    expected = simulate(stage.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()


@pytest.mark.parametrize("words", SPECS)
def test_a_visit_whose_deposit_was_dropped_is_made_again_where_nothing_may_be_skipped(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *NET, *words.split())
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path, policy=Policy("wait"))
    spoil(monkeypatch, times=2)
    play(stage)
    assert {event["client"] for event in stage.events("dropped")} == {EVIL}
    assert {event["client"] for event in stage.events("strike")} == {EVIL}
    assert not stage.events("skipped")
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()


def test_a_client_that_always_spoils_its_deposit_stops_the_run_that_may_not_skip_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *NET)
    stage = LocalDeployment(spec, tmp_path, policy=Policy("wait", retries=1, strikes=0))
    spoil(monkeypatch)
    with pytest.raises(Diverged) as found:
        play(stage)
    assert f"client {EVIL}" in found.value.what
    assert not stage.serving.directory.model.exists()


@pytest.mark.parametrize("how", ["fail", "h"])
def test_a_client_that_makes_its_own_visits_overflow_cannot_blame_the_writer_before_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *NET), tmp_path, policy=Policy("skip"))
    misbehave(monkeypatch, how)
    play(stage)
    assert {event["client"] for event in stage.events("strike")} == {EVIL}
    assert not stage.events("dropped")


@pytest.mark.parametrize("away", ["wait", "skip"])
@pytest.mark.parametrize("eta", ["2", "30", "1e4"])
def test_an_honest_run_with_too_large_steps_ends_as_its_simulation_does(eta: str, away: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=4", "C=5", "R=6", f"eta={eta}")
    try:
        expected = simulate_run(spec, tmp_path / "simulated").model.read_bytes()
    except Diverged:
        expected = b""
    stage = LocalDeployment(spec, tmp_path, policy=Policy(away, retries=1))
    try:
        play(stage)
        assert stage.serving.directory.model.read_bytes() == expected
    except Diverged:
        assert not expected
    assert not stage.events("quarantined") and not stage.events("dropped")


def test_a_run_whose_last_round_was_lost_to_divergence_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0 never comes, and the other one makes its last visit overflow."""
    spec = small_spec(tmp_path, "M=2", "C=9", "R=3")
    stage = LocalDeployment(spec, tmp_path, policy=Policy("skip", lease=0.1), quorum=1)
    misbehave(monkeypatch, "fail")
    stage.join(EVIL)
    with pytest.raises(Diverged):
        stage.play()
    assert not stage.serving.directory.model.exists()


@pytest.mark.parametrize(("words", "probed"), [("", 5), ("clip=1", 0), ("every=3", 3)])
def test_states_are_probed_before_a_checkpoint_only_without_clip(
    words: str, probed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe costs as much as some visits; clipped steps cannot overflow."""
    examine, rounds = Examiner.examine_state, list[int]()

    def count(self: Examiner, r: int, state: Any) -> Finding:
        rounds.append(r)
        return examine(self, r, state)

    monkeypatch.setattr(Examiner, "examine_state", count)
    play(LocalDeployment(small_spec(tmp_path, *NET, *words.split()), tmp_path, policy=Policy("wait")))
    assert len(rounds) == probed
