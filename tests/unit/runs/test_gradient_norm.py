"""gradient_norm=true records the norm of the gradient of F, the mean over clients, at every evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import make_spec
from tests.support.command_line import invoke

SPEC = {"M": 5, "C": 2, "K": 1, "R": 2, "batch": 5}


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_the_norm_is_that_of_the_mean_over_clients(engine: str) -> None:
    trainer, partition = build_trainer(make_spec(**SPEC, engine=engine, gradient_norm=True))
    (first, _), *_ = trainer.run(1)
    net = trainer.model_spec.build().eval()
    layout = trainer.model_spec.layout(torch.float32)
    net.load_state_dict(layout.unpack(trainer.x0()))
    losses = []
    for held in partition.indices:
        features, labels = trainer.network.images.batch(torch.from_numpy(held.copy()))
        losses.append(torch.nn.functional.cross_entropy(net(features), labels))
    torch.stack(losses).mean().backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).norm()  # type: ignore[union-attr]
    assert first.gradient_norm == pytest.approx(float(norm), rel=1e-5)


def test_recording_it_changes_no_result(tmp_path: Path) -> None:
    rows = []
    for flag in (False, True):
        directory = RunDirectory(tmp_path / str(flag))
        rows.append(
            [remove_measurements(step.row) for step in execute(make_spec(**SPEC, gradient_norm=flag), directory)]
        )
    assert all("gradient_norm" in row for row in rows[1])
    assert rows[0] == [{name: value for name, value in row.items() if name != "gradient_norm"} for row in rows[1]]
    one, other = (RunDirectory(tmp_path / str(flag)).model.read_bytes() for flag in (False, True))
    assert one == other


def test_the_default_does_not_change_the_hash() -> None:
    assert make_spec().hash == make_spec(gradient_norm=False).hash != make_spec(gradient_norm=True).hash


def test_a_deployment_refuses_it(tmp_path: Path) -> None:
    answer = invoke(f"splitrelay rehearse M=2 C=5 K=1 R=1 gradient_norm=true --out {tmp_path}/run")
    assert answer.code == 2
    assert "gradient_norm" in answer.output
