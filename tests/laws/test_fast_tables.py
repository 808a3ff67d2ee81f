"""Tables on the fast engine: whole is cut to the bit, near the reference engine, and deployed is simulated."""

import json
from pathlib import Path

import pytest
import torch

from splitrelay.engine.select import resolve_engine
from splitrelay.models import get_model_spec
from splitrelay.runs.build import load_data, resolve_spec
from splitrelay.runs.execute import build_trainer
from splitrelay.runs.spec import Spec, make_spec
from tests.support.deployment import LocalDeployment, remove_times, simulate_run
from tests.support.small_datasets import write_table

TABLE = {
    "label": "died", "client": "ward", "categorical": "sex", "ignore": "days", "model": "mlp", "metrics": "auroc",
    "R": 3, "K": 6, "eta": 0.1, "batch": 8, "clip": 1.0,
}  # fmt: skip


def make(folder: Path, **settings) -> Spec:
    data = str(write_table(folder / "wards.csv"))
    return resolve_spec(make_spec(**{**TABLE, "data": data, **settings}))[0]


def train(spec: Spec):
    trainer, _ = build_trainer(spec)
    rows = list(trainer.run(spec.R))
    return trainer.algorithm.model(rows[-1][1]), [row.score for row, _ in rows]


def test_tables_use_the_fast_engine(tmp_path: Path) -> None:
    assert make(tmp_path).engine == "fast"
    assert make(tmp_path, dtype="float64").engine == "reference"


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_whole_is_cut_and_near_the_reference(model: str, tmp_path: Path) -> None:
    whole, cut = (train(make(tmp_path, model=model, placement=one, engine="fast")) for one in ("whole", "cut"))
    assert torch.equal(whole[0], cut[0])
    assert whole[1] == cut[1]
    x, scores = train(make(tmp_path, model=model, engine="reference"))
    assert float((x - cut[0]).abs().max()) < 1e-5
    for ours, theirs in zip(cut[1], scores, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.metrics["auroc"] == pytest.approx(theirs.metrics["auroc"], abs=1e-9)


def test_a_plain_mlp_needs_no_flatten(tmp_path: Path) -> None:
    data = load_data(make(tmp_path).data)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    plan = get_model_spec(lambda: net, data.train.inputs, 2)
    assert resolve_engine("auto", plan, samples=data.train)[0] == "fast"


@pytest.mark.parametrize("settings", [{}, {"algorithm": "fedavg"}], ids=["cut", "whole"])
def test_deployed_is_simulated(settings: dict, tmp_path: Path) -> None:
    spec = make(tmp_path, R=2, **settings)
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert json.dumps(remove_times(rows)) == json.dumps(remove_times(expected.read_rows()))
