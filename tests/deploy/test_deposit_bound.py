"""Deposits that no honest visit can make: refused before they count, and their client is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitrelay.algorithms.base import Step, UpdateRule
from splitrelay.data import load
from splitrelay.deploy import client_program, client_visit
from splitrelay.deploy.backend import ClientContext
from splitrelay.deploy.deposit_bound import (
    UnlikelyHalf,
    check_move,
    check_sealed_half,
    compute_move_limit,
    compute_reach,
    compute_sealed_limit,
)
from splitrelay.deploy.events import list_skipped_visits
from splitrelay.deploy.rehearsal import simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.engine.optimisers import Optimiser
from splitrelay.errors import Diverged, VisitFailed, WorkError
from splitrelay.network import limits
from splitrelay.network.codec import BadMessage
from splitrelay.runs.build import build_partition
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.trainer import Trainer
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.sealed_deployments import join_all, make_direct_deployment, make_fed_deployment

EVIL = 1  # the client that deposits what it likes
Change = Callable[[Any], Any]


def huge(x: Any) -> Any:
    return np.full_like(x, 1e30)


def far(x: Any) -> Any:
    return x + np.float32(30.0)


def corrupt(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Client EVIL trains as it should, and deposits something else."""
    build = client_visit.build_client_engine

    def engine_of(context: ClientContext) -> Any:
        engine = build(context)
        get_x, train_whole = engine.get_x, engine.train_whole
        if context.m == EVIL:
            engine.get_x = lambda visit: change(get_x(visit))  # type: ignore[method-assign]
            engine.train_whole = lambda visit: (change(train_whole(visit)[0]), 0.5)  # type: ignore[method-assign]
        return engine

    monkeypatch.setattr(client_visit, "build_client_engine", engine_of)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("", huge),
        ("clip=1", huge),
        ("clip=1 momentum=0.5", far),
        ("algorithm=fedavg engine=reference", huge),
        ("placement=whole algorithm=fedavg clip=1", far),
        ("placement=whole algorithm=scaffold", huge),
    ],
)
def test_a_deposit_out_of_bounds_is_a_failed_visit(
    words: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *words.split()), tmp_path, policy=Policy("skip"))
    corrupt(monkeypatch, change)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    skips = list_skipped_visits(stage.events("skipped"))
    assert skips == {(r, EVIL, 0) for r in range(stage.spec.R)}
    assert [event["client"] for event in stage.events("failed")] == [EVIL] * stage.spec.R
    expected = simulate(stage.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()


def test_a_client_whose_deposits_are_out_of_bounds_stops_the_run_that_may_not_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, policy=Policy("wait", retries=1))
    corrupt(monkeypatch, huge)
    for m in stage.partition.clients:
        stage.join(m)
    with pytest.raises(VisitFailed) as found:
        stage.play()
    assert f"client {EVIL}" in found.value.what
    assert EVIL not in {event["client"] for event in stage.events("committed")}


def test_smashed_data_cannot_move_the_servers_half_out_of_bounds_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, policy=Policy("skip"))

    class Loud(client_program.Session):
        def exchange(self, messages: Any, *how: Any, **more: Any) -> Any:
            is_evil = self.client == EVIL
            changed = [
                replace(message, h=message.h * np.float32(1e12)) if is_evil and message.event == "step" else message
                for message in messages
            ]
            return super().exchange(changed, *how, **more)

    monkeypatch.setattr(client_program, "Session", Loud)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    skips = list_skipped_visits(stage.events("skipped"))
    assert skips == {(r, EVIL, 0) for r in range(stage.spec.R)}
    expected = simulate(stage.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()


@pytest.mark.parametrize(("words", "change"), [("", huge), ("clip=1 engine=reference", far)])
def test_a_sealed_half_out_of_bounds_is_refused_and_its_writer_is_named(
    words: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(
        tmp_path, "M=3", "C=9", "evaluator=2", *words.split(), policy=Policy("wait", retries=0)
    )
    corrupt(monkeypatch, change)
    for m in stage.partition.clients:
        test = {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model"} if m == 2 else {}
        stage.join(m, **test)
    with pytest.raises(VisitFailed) as found:
        stage.play()
    assert f"client {EVIL}" in found.value.what
    assert f"client {EVIL} wrote last" in str(found.value.value) and UnlikelyHalf.__name__ in str(found.value.value)


def test_a_fed_server_refuses_a_half_out_of_bounds_and_names_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_fed_deployment(tmp_path, "algorithm=fedavg", "R=1", policy=Policy("retry", retries=1))
    corrupt(monkeypatch, huge)
    join_all(stage)
    with pytest.raises(WorkError) as found:
        stage.play()
    assert f"client {EVIL} wrote last" in str(found.value)


# The bound itself


STEPS = [
    Step[Any](0.1, clip=1.0),
    Step[Any](0.5, weight_decay=0.1, clip=10.0, momentum=0.9),
    Step[Any](0.05, weight_decay=1e-4, clip=2.0, prox=0.3),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("K", [1, 7, 50])
def test_the_worst_visit_with_clip_is_within_the_bound_and_twice_as_far_is_not(step: Step[Any], K: int) -> None:
    """Every gradient has the largest norm and the same direction, away from zero."""
    start = torch.ones(200) / 200**0.5
    x, velocity = start.clone(), torch.zeros(200)
    for _ in range(K):
        g = -step.clip * start + step.prox * (x - start) - step.weight_decay * x
        velocity = step.momentum * velocity + g
        x = x - step.eta * velocity
    limit = compute_move_limit(step, K, start.numpy())
    check_move(start.numpy(), x.numpy(), limit, whose="x")
    with pytest.raises(BadMessage) as found:
        check_move(start.numpy(), (start + 2.5 * (x - start)).numpy(), limit, whose="x")
    assert found.value.value is not None and found.value.limit is not None


def test_a_real_visit_that_is_always_clipped_comes_near_the_bound(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "clip=0.001", "M=1", "C=10", "R=1", "K=4", "placement=whole", "algorithm=fedavg")
    directory = simulate_run(spec, tmp_path / "run")
    x0 = Trainer(spec, load(spec.data.name), build_partition(spec, load(spec.data.name))).x0()
    found = directory.checkpoints.load_newest(x0)
    assert found is not None
    moved = float((found[1] - x0).norm())
    step = Step[Any](spec.optimiser.eta, spec.optimiser.weight_decay, spec.optimiser.clip)
    assert 0.1 < moved / compute_move_limit(step, spec.K, x0.numpy()) <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e7, 1e30])
def test_a_single_weight_out_of_bounds_is_refused(value: float) -> None:
    before = np.ones(1000, np.float32)
    after = before.copy()
    after[7] = value
    with pytest.raises(BadMessage if np.isfinite(value) else Diverged):
        check_move(before, after, 1e38, whose="x")


def test_weights_that_begin_large_may_stay_so() -> None:
    before = np.full(10, 3e6, np.float32)
    check_move(before, before + 1, 100.0, whose="x")


def test_a_visit_without_clip_has_the_documented_factor() -> None:
    before = np.ones(4, np.float32)
    assert compute_move_limit(Step(0.1), 5, before) == limits.MOVE_FACTOR * 3
    shifted = Step[Any](0.1, shift=np.full(4, 10.0, np.float32), momentum=0.5)
    assert compute_move_limit(shifted, 5, before) == pytest.approx(limits.MOVE_FACTOR * 3 + 0.1 * 5 * 20 * 2)


def test_buffers_are_not_clipped_and_take_the_factor() -> None:
    before = np.ones(4, np.float32)
    assert compute_move_limit(Step(0.1, clip=1.0), 5, before, has_buffers=True) == limits.MOVE_FACTOR * 3


def test_a_sealed_half_may_be_as_far_as_its_visits_can_bring_it(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "clip=1", "eta=0.1", "K=2", "weight_decay=0")
    x0 = np.zeros(100, np.float32)
    assert compute_sealed_limit(spec, 0.0, 3) == pytest.approx(3 * 0.2, rel=0.02)
    assert compute_sealed_limit(spec, 0.0, 10**9) == limits.MOVE_FACTOR
    half = x0.copy()
    half[0] = 0.55
    check_sealed_half(half, x0, spec, 3, None)
    with pytest.raises(UnlikelyHalf) as found:
        check_sealed_half(half, x0, spec, 2, 7)
    assert "client 7" in found.value.what


@pytest.mark.parametrize("rule", [UpdateRule("adam"), UpdateRule("adamw", beta1=0.5, beta2=0.9), UpdateRule("adagrad")])
def test_an_adaptive_optimiser_moves_no_weight_further_than_its_bound(rule: UpdateRule) -> None:
    """The worst case: gradients that grow so fast that the last one dominates every mean, or that stay the same."""
    K, size, step = 6, 16, Step[Any](0.01, weight_decay=0.1, rule=rule)
    nearest = 1.0
    for growth in (1.0, 1.5, 3.0, 1e3):
        start = torch.full((size,), 0.5, dtype=torch.float64)
        x = start.clone()
        optimiser = Optimiser(step, x)
        for k in range(K):
            if rule.kind == "adamw":
                optimiser.decay(x)
            optimiser.apply(torch.full_like(x, growth**k))
        ratio = float((x - start).norm()) / compute_move_limit(step, K, start.numpy())
        assert ratio <= 1.0
        nearest = min(nearest, 1.0 - ratio)
    assert nearest < 0.5  # the bound is not so large that it refuses nothing


def test_bounds_of_adaptive_optimisers_for_sealed_halves(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "optimiser=adagrad", "eta=0.01", "K=2", "weight_decay=0")
    assert compute_sealed_limit(spec, 0.0, 3, size=25) == pytest.approx(3 * 2 * 0.01 * 5, rel=0.02)
    assert compute_reach(UpdateRule("adam"), 1) == 1.0


def test_nesterov_moves_further_in_its_first_step() -> None:
    before = np.zeros(4)
    plain, nesterov = (Step[Any](0.1, clip=1.0, momentum=0.5, rule=UpdateRule(nesterov=n)) for n in (False, True))
    assert compute_move_limit(nesterov, 1, before) == pytest.approx(1.5 * compute_move_limit(plain, 1, before))
