"""sr.SplitTask: the parts of a training loop of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import splitrelay as sr
from splitrelay.errors import InputError
from tests.unit.api.test_fit import make_net, make_rows


def make_task(**settings: object) -> sr.SplitTask:
    X, y, _ = make_rows()
    return sr.SplitTask(make_net, data=(X, y), partition=sr.IID(M=3), batch=5, **settings)  # type: ignore[arg-type]


def run_rounds(task: sr.SplitTask, R: int = 2) -> torch.Tensor:
    algorithm = sr.SSL(sr.Step(eta=0.2), K=2)
    *_, (_, x) = sr.train(algorithm, task.x0(seed=1), sr.Permutation(3, seed=1), task.clients(seed=1), R=R)
    assert isinstance(x, torch.Tensor)
    return x


def test_the_loop_equals_fit() -> None:
    X, y, _ = make_rows()
    run = sr.fit(
        make_net,
        X,
        y,
        partition=sr.IID(M=3, seed=0),
        R=2,
        K=2,
        eta=0.2,
        batch=5,
        seed=1,
        weight_decay=0,
        progress=False,
    )
    assert torch.equal(run_rounds(make_task()), run.x)


def test_whole_and_cut_give_the_same_bits() -> None:
    assert torch.equal(run_rounds(make_task(placement="cut")), run_rounds(make_task(placement="whole")))


def test_evaluate_and_model_agree() -> None:
    task = make_task(metrics=["auroc"])
    x = run_rounds(task)
    test = task.data.test
    with torch.no_grad():
        outputs = task.model(x)(torch.from_numpy(test.x))  # type: ignore[arg-type]
    accuracy = float((outputs.argmax(1).numpy() == test.y).mean())
    assert task.evaluate(x)["accuracy"] == pytest.approx(accuracy)
    assert set(task.evaluate(x)) == {"loss", "accuracy", "auroc"}


def test_algorithms_that_cut_x_have_their_cut() -> None:
    task = make_task()
    algorithm = sr.SplitFedV2(sr.Step(eta=0.2), 2, task.cut)
    *_, (_, state) = sr.train(algorithm, task.x0(), sr.Permutation(3, seed=1), task.clients(), R=1)
    assert np.isfinite(task.evaluate(algorithm.model(state))["loss"])


def test_a_missing_partition_is_refused() -> None:
    X, y, _ = make_rows()
    with pytest.raises(InputError):
        sr.SplitTask(make_net, data=(X, y), partition=None)


def test_the_partition_can_name_the_client_of_every_sample() -> None:
    X, y, ward = make_rows()
    task = sr.SplitTask(make_net, data=(X, y), partition=ward)
    assert task.partition.sizes.tolist() == [16, 16, 16]  # the test set has a fifth of each client


def test_the_partition_can_be_a_name_or_a_file() -> None:
    X, y, _ = make_rows()
    named = sr.SplitTask(make_net, data=(X, y), partition="iid", M=4, seed=3)
    made = sr.SplitTask(make_net, data=(X, y), partition=sr.IID(4, seed=3))
    assert [held.tolist() for held in named.partition.indices] == [held.tolist() for held in made.partition.indices]
    with pytest.raises(InputError):
        sr.SplitTask(make_net, data=(X, y), partition="no_such_file.npz")
