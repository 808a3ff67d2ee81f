"""Runs on tables and arrays: whole is cut, resumed runs have the same bits, and errors leave nothing behind."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from splitrelay.data.partition_io import save_partition
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import build_partition, load_data, resolve_spec
from splitrelay.runs.compare import compare
from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.records import run_at
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import Spec, load_spec, make_spec
from tests.support.error_fields import expect_error, fail_command
from tests.support.small_datasets import build_columns, write_table

COMMON = {"R": 3, "K": 4, "eta": 0.05, "engine": "reference"}
TABLE = {"label": "died", "client": "ward", "categorical": "sex", "ignore": "days", "model": "mlp", "clip": 1.0}
REAL = {
    "label": "days", "client": "ward", "categorical": "sex", "ignore": "died", "target": "real", "model": "logistic",
    "loss": "squared-error", "metrics": "r2,mse",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(write_table(tmp_path / "wards.csv"))


def make(table: str, **settings) -> Spec:
    return resolve_spec(make_spec(data=table, **{**COMMON, **settings}))[0]


def train(spec: Spec) -> tuple[torch.Tensor, list]:
    trainer, _ = build_trainer(spec)
    rows = list(trainer.run(spec.R))
    return trainer.algorithm.model(rows[-1][1]), [row.score for row, _ in rows]


@pytest.mark.parametrize("settings", [TABLE, REAL], ids=["classes", "real"])
def test_whole_is_cut_on_a_table(table: str, settings: dict) -> None:
    whole, cut = (train(make(table, **settings, placement=placement)) for placement in ("whole", "cut"))
    assert torch.equal(whole[0], cut[0])
    assert str(whole[1]) == str(cut[1])
    losses = [score.loss for score in cut[1]]
    assert losses[-1] < losses[0]


def test_several_labels_and_own_arrays(tmp_path: Path) -> None:
    x = rng(1, Purpose.INSTANCES).normal(size=(60, 4))
    np.savez(tmp_path / "many.npz", x=x, y=(x[:, :3] > 0).astype(int))
    settings = {
        "data": str(tmp_path / "many.npz"), "read_as": "samples", "target": "multi-label", "loss": "bce",
        "metrics": "auroc,f1", "partition": "iid", "M": 3, "model": "logistic",
    }  # fmt: skip
    results = [train(make_spec(**{**COMMON, **settings, "placement": one})) for one in ("whole", "cut")]
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1][-1].metrics["auroc"] > results[0][1][0].metrics["auroc"]


def test_a_resumed_run_has_the_same_rows(table: str, tmp_path: Path) -> None:
    spec = make(table, **TABLE, metrics="auroc,f1")
    paths = [tmp_path / "whole", tmp_path / "parts"]
    list(execute(spec, RunDirectory(paths[0])))
    for R in (1, 3):
        list(execute(spec.model_copy(update={"R": R}), RunDirectory(paths[1]), checkpoint=1))
    whole, parts = ([remove_measurements(row) for row in RunDirectory(path).read_rows()] for path in paths)
    assert whole == parts
    assert set(whole[-1]) >= {"test_auroc", "test_f1", "test_accuracy"}
    assert (paths[0] / "model.safetensors").read_bytes() == (paths[1] / "model.safetensors").read_bytes()
    assert load_spec(paths[0] / "spec.toml") == spec


def test_equal_runs_on_real_numbers_are_equal_although_they_have_no_accuracy(table: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        list(execute(make(table, **REAL), RunDirectory(tmp_path / name)))
    found = compare(*(run_at(tmp_path / name) for name in ("one", "other")))
    assert found.equal


def test_the_client_column_defines_the_partition(table: str) -> None:
    spec = make(table, **TABLE)
    data = load_data(spec.data)
    partition = build_partition(spec, data)
    assert (spec.partition.kind, spec.partition.M, partition.M) == ("column", 3, 3)
    for m, name in enumerate(partition.settings["clients"]):
        assert set(data.train.clients[partition.indices[m]]) == {name}
    with expect_error(OutOfRange, limit="M = 3, or no M"):
        make(table, **TABLE, M=4)
    with expect_error(OutOfRange, limit="S <= 3"):
        make(table, **TABLE, S=5)


def test_a_saved_partition_gives_the_same_run(table: str, tmp_path: Path) -> None:
    drawn = make(table, label="died", categorical="sex,ward", ignore="days", model="mlp", partition="iid", M=3)
    file = save_partition(build_partition(drawn, load_data(drawn.data)), tmp_path / "p.npz")
    saved = make(table, label="died", categorical="sex,ward", ignore="days", model="mlp", partition=str(file))
    assert saved.partition.M == 3
    assert torch.equal(train(drawn)[0], train(saved)[0])
    with expect_error(InputError):
        make("digits", partition=str(file))


def test_keys_without_effect_and_misfits_are_refused(table: str) -> None:
    for settings in ({"client": "ward"}, {"target": "real"}, {"test": "0.3"}, {"missing": "mean"}):
        with expect_error(InputError):
            load_data(make_spec(**settings).data)
    with expect_error(InputError, limit="squared-error"):
        train(make(table, **{**REAL, "loss": "cross-entropy"}))
    with expect_error(InputError, value="target=real"):
        train(make(table, **{**REAL, "client": None, "ignore": "died,ward"}))
    with expect_error(InputError):
        train(make(table, **{**TABLE, "model": "lenet5"}))


def test_a_metric_of_the_user_is_recorded_with_its_source(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metrics.py").write_text("def share(out, y):\n    return (out.argmax(1) == 1).mean()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    spec = make(table, **TABLE, metrics="own_metrics:share")
    list(execute(spec, RunDirectory(tmp_path / "run")))
    assert 0 <= RunDirectory(tmp_path / "run").read_rows()[-1]["test_share"] <= 1
    sources = json.loads((tmp_path / "run" / "environment.json").read_text())["sources"]
    assert {"module own_metrics.py", f"data {table}"} == set(sources)


@pytest.mark.parametrize(
    "settings, kind",
    [
        ({"label": "dead"}, UnknownName),
        ({"client": "clinic"}, UnknownName),
        ({"categorical": "none"}, InputError),
        ({"metrics": "aurok"}, UnknownName),
        ({"metrics": "no_such_module:f"}, InputError),
        ({"test": "nowhere.csv"}, InputError),
    ],
)
def test_errors_leave_nothing_behind(table: str, tmp_path: Path, settings: dict, kind: type) -> None:
    words = [f"{name}={value}" for name, value in {**COMMON, **TABLE, **settings}.items()]
    fail_command(["run", f"data={table}", *words, "--out", tmp_path / "run"], kind)
    assert not [path for path in (tmp_path / "run").glob("*") if path.name != ".lock"]


def test_nan_in_a_table_is_named(tmp_path: Path) -> None:
    columns = build_columns()
    columns["age"][5] = "nan"
    file = write_table(tmp_path / "t.csv", columns)
    words = [f"{name}={value}" for name, value in {**COMMON, **TABLE}.items()]
    error = fail_command(["run", f"data={file}", *words, "--out", tmp_path / "run"], InputError)
    assert "age" in error.what and "missing=mean" in error.hint
