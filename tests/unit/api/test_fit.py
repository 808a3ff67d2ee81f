"""sr.fit: the same numbers as the command line, resumable, with objects in the place of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitrelay as sr
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.runs.execute import build_trainer
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import make_spec

Array = npt.NDArray[Any]


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def make_rows(n: int = 60) -> tuple[Array, Array, Array]:
    angles = np.outer(np.arange(n), [1.0, 2.0, 3.0])
    X = np.sin(angles)
    return X, (X.sum(axis=1) > 0).astype(int), np.array(["north", "south", "west"])[np.arange(n) % 3]


def fit(**changes: Any) -> sr.Run:
    X, y, ward = make_rows()
    arguments: dict[str, Any] = {"clients": ward, "R": 3, "K": 2, "eta": 0.2, "batch": 5, "progress": False}
    return sr.fit(make_net, X, y, **{**arguments, **changes})


def test_a_fit_has_rows_metrics_and_a_model() -> None:
    run = fit(metrics=["auroc"])
    assert [row["round"] for row in run.rows] == [0, 1, 2, 3]
    assert set(run.metrics) == {"loss", "accuracy", "auroc"}
    assert run.spec.partition.M == 3
    X, _, _ = make_rows()
    outputs = run.model(torch.from_numpy(X).float())
    assert outputs.shape == (60, 2)
    assert not run.model.training


def test_the_clients_hold_their_own_rows() -> None:
    _, _, ward = make_rows()
    run = fit(out=None)
    trainer, partition = build_trainer(run.spec)
    train = trainer.network.images
    assert len(train) == 48  # a fifth is held out
    names = np.unique(ward)
    assert len(names) == partition.M
    assert sorted(partition.sizes.tolist()) == [16, 16, 16]


def test_a_directory_gives_the_same_bits_and_resumes(tmp_path: Path) -> None:
    whole = fit(R=4)
    fit(out=tmp_path / "run", R=2)
    resumed = fit(out=tmp_path / "run", R=4)
    assert torch.equal(whole.x, resumed.x)
    assert list(map(remove_measurements, whole.rows)) == list(map(remove_measurements, resumed.rows))  # type: ignore[arg-type]
    assert RunDirectory(tmp_path / "run").is_finished(4)


def test_another_model_data_or_setting_is_another_run(tmp_path: Path) -> None:
    X, y, ward = make_rows()
    fit(out=tmp_path / "run")
    for changes in ({"eta": 0.3}, {"clients": np.roll(ward, 1)}, {"metrics": [lambda outputs, y: 0.0]}):
        with pytest.raises(InputError):
            fit(out=tmp_path / "run", **changes)
    other = sr.fit  # the same settings with other features
    with pytest.raises(InputError):
        other(make_net, X + 1, y, clients=ward, R=3, K=2, eta=0.2, batch=5, progress=False, out=tmp_path / "run")


def test_functions_stand_for_losses_and_metrics() -> None:
    def share(outputs: Array, y: Array) -> float:
        return float((outputs.argmax(1) == y).mean())

    by_name, by_function = fit(), fit(loss=nn.functional.cross_entropy, metrics=[share])
    assert torch.equal(by_name.x, by_function.x)
    assert by_function.rows[-1]["test_share"] == by_name.rows[-1]["test_accuracy"]


def test_a_known_data_set_gives_the_run_of_the_command_line(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"C": 2, "M": 5, "K": 1, "R": 1, "seed": 5}
    run = sr.fit("lenet-small", "digits", progress=False, **settings)
    trainer, _ = build_trainer(make_spec(model="lenet-small", data="digits", **settings))
    *_, (_, state) = trainer.run(1)
    assert torch.equal(run.x, state)


def test_a_module_starts_at_its_own_weights() -> None:
    net = make_net()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    X, y, ward = make_rows()
    run = sr.fit(net, X, y, clients=ward, R=1, K=1, eta=1e-12, batch=5, momentum=0, weight_decay=0, progress=False)
    for old, given, new in zip(before, net.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(old, given)  # the user's module is not changed
        assert torch.allclose(old, new, atol=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": ["a", "b"]},
        {"clients": 4},
        {"clients": 3.5},
        {"test": (np.zeros((4, 4)),)},
        {"metrics": 3},
        {"workers": "2"},
        {"workers": None},
        {"workers": 0},
        {"algorithm": int},
        {"cut": "no such layer"},
        {"cut": 9},
        {"eta": -1},
        {"nonsense": 1},
        {"metrics": ["no such metric"]},
        {"partition": sr.IID(M=2)},
        {"label": "died"},
        {"algorithm": "sll"},
        {"optimiser": "adamm"},
        {"loss": nn.CrossEntropyLoss},
        {"clients": None, "partition": lambda y: [range(len(y)), []]},
        {"clients": None, "partition": "no_such_scheme"},
        {"clients": None, "partition": "no_such_file.npz"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_wrong_arguments_are_refused_before_anything_is_written(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SplitrelayError):
        fit(out=tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "spec.toml").exists()


def test_an_out_that_is_no_path_is_refused() -> None:
    with pytest.raises(InputError):
        fit(out=3)


def test_a_nan_in_the_features_is_refused() -> None:
    X, y, ward = make_rows()
    X[3, 1] = np.nan
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, X, y, clients=ward, progress=False)
    assert "sample" in str(caught.value.value)


def test_constructing_changes_no_state_of_the_process() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    X, y, ward = make_rows()
    sr.SplitTask(make_net, data=(X, y), partition=ward[:48], batch=5)
    fit(R=1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_an_algorithm_object_trains_like_its_name() -> None:
    named = fit(algorithm="fedavg", weight_decay=0)
    X, y, ward = make_rows()
    algorithm = sr.FedAvg(sr.Step(eta=0.2), K=2)
    made = sr.fit(make_net, X, y, clients=ward, R=3, batch=5, algorithm=algorithm, progress=False)
    assert torch.equal(named.x, made.x)
    assert "FedAvg," in repr(made)
    with pytest.raises(InputError) as caught:  # the object has its own step and K
        fit(algorithm=algorithm)
    assert caught.value.value == "eta, K"


def test_an_object_that_is_no_complete_algorithm_is_refused() -> None:
    class Half:
        def round(self) -> None:
            """Do nothing."""

    X, y, ward = make_rows()
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, X, y, clients=ward, algorithm=Half())
    assert caught.value.value == "init, model"


def test_an_order_can_be_a_function_of_the_round() -> None:
    assert torch.equal(fit(order=lambda r: [0, 1, 2]).x, fit(order="fixed").x)
    assert not torch.equal(fit(order=lambda r: [2, 1, 0]).x, fit(order="fixed").x)
    with pytest.raises(InputError) as caught:
        fit(order=lambda r: [0, 77])
    assert caught.value.value == 77


def test_an_order_can_be_a_list_and_a_schedule_a_function() -> None:
    assert torch.equal(fit(order=[2, 0, 1]).x, fit(order=sr.Fixed([2, 0, 1])).x)
    assert torch.equal(fit(schedule=lambda r: 0.5).x, fit(eta=0.1).x)
    with pytest.raises(InputError):
        fit(schedule=lambda r: -0.5)


def test_a_partition_can_be_a_name_a_file_or_the_clients(tmp_path: Path) -> None:
    _, _, ward = make_rows()
    named = fit(clients=ward, out=tmp_path / "run")
    assert torch.equal(fit(clients=None, partition=ward).x, named.x)
    assert fit(clients=None, partition="iid", M=4).spec.partition.M == 4
    drawn = fit(clients=None, partition="iid", M=4, out=tmp_path / "iid")
    assert torch.equal(fit(clients=None, partition=tmp_path / "iid" / "partition.npz").x, drawn.x)


def test_one_metric_function_needs_no_list() -> None:
    def share(outputs: Array, targets: Array) -> float:
        return float((outputs.argmax(1) == 1).mean())

    assert 0 <= fit(metrics=share).metrics["share"] <= 1


def raise_an_error(*_: Any) -> Any:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    "changes", [{"metrics": [raise_an_error]}, {"loss": raise_an_error}, {"order": lambda r, /: raise_an_error()}]
)
def test_errors_of_functions_of_the_user_are_input_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        fit(**changes)
    assert str(caught.value.value).startswith("ZeroDivisionError")


def test_a_metric_that_fails_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        fit(metrics=[raise_an_error], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_real", [False, True])
def test_a_model_with_a_wrong_number_of_outputs_is_refused(is_real: bool, tmp_path: Path) -> None:
    X, y, ward = make_rows()
    outputs = 2 if is_real else 1

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Linear(8, outputs))

    with pytest.raises(InputError):
        sr.fit(make, X, X[:, 0] if is_real else y, clients=ward, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_error_in_the_function_of_a_model_names_its_line() -> None:
    X, y, ward = make_rows()
    with pytest.raises(InputError) as caught:
        sr.fit(raise_an_error, X, y, clients=ward)
    assert "test_fit.py" in caught.value.what


def test_an_unknown_label_column_is_refused() -> None:
    X, y, ward = make_rows()
    table = {"a": X[:, 0], "b": X[:, 1], "ill": y}
    with pytest.raises(sr.InputError) as caught:
        sr.fit(make_net, table, label="il", clients=ward)
    assert "'ill'" in str(caught.value.hint)


def test_errors_count_the_samples_of_the_user() -> None:
    X, y, ward = make_rows()
    X[7, 1] = np.nan
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, X, y, clients=ward)
    assert str(caught.value.value).endswith("sample 7")
    names = ward.astype(object)
    names[5] = None
    with pytest.raises(InputError) as caught:
        fit(clients=names)
    assert str(caught.value.value).endswith("sample 5")


class Stream:
    """An object that can be read once, such as a DataLoader."""

    def __iter__(self) -> Any:
        yield from zip(*make_rows()[:2], strict=True)


class Sparse(Stream):
    """A sparse matrix."""

    def toarray(self) -> Array:
        return make_rows()[0]


@pytest.mark.parametrize(
    ("X", "hint"),
    [
        (DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4))), "dataset"),
        (Stream(), "arrays"),
        (iter([1.0]), "arrays"),
        (Sparse(), "toarray"),
    ],
    ids=["DataLoader", "stream", "iterator", "sparse"],
)
@pytest.mark.parametrize("has_targets", [True, False])
def test_data_without_positions_are_refused(X: Any, hint: str, has_targets: bool) -> None:
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, X, np.zeros(4, int) if has_targets else None)
    assert hint in str(caught.value.hint)


def test_frequent_mistakes_have_a_hint() -> None:
    X, y, ward = make_rows()
    with pytest.raises(InputError) as caught:  # real numbers, but the model has an output for each class
        sr.fit(make_net, X, y.astype(float), clients=ward)
    assert "target='classes'" in str(caught.value.hint)
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, (10 * X).astype(int), y, clients=ward)
    assert "float32" in str(caught.value.hint)
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, "table.csv", label="died", clients=ward)
    assert "column" in str(caught.value.hint)
    with pytest.raises(InputError) as caught:
        sr.fit(nn.Linear(3, 2), X, y, clients=ward)
    assert "one layer" in caught.value.what
    with pytest.raises(InputError) as caught:
        fit(cut=1.5)
    assert caught.value.what.startswith("cut ")


def test_a_column_of_a_frame_can_be_given_by_its_name() -> None:
    X, y, ward = make_rows()
    table = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "ward": ward, "ill": y}
    settings: dict[str, Any] = {"clients": "ward", "R": 2, "progress": False}
    assert torch.equal(sr.fit(make_net, table, "ill", **settings).x, sr.fit(make_net, table, label="ill", **settings).x)


def test_half_precision_tensors_are_read_as_their_values() -> None:
    X, y, ward = make_rows()
    half = torch.from_numpy(X).bfloat16()
    runs = [sr.fit(make_net, each, y, clients=ward, R=1, progress=False) for each in (half, half.float())]
    assert torch.equal(runs[0].x, runs[1].x)


def test_an_array_without_targets_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        sr.fit(make_net, make_rows()[0])
    assert "(60, 3)" in str(caught.value.value)
