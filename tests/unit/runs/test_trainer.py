"""Training: states of algorithms in checkpoints, and the norm of the gradient in the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from examples.server_momentum import SSLWithServerMomentum
from splitrelay.algorithms import SSL
from splitrelay.errors import WorkError
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.checkpoint import Checkpoints, flatten_state, rebuild_state
from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import Spec, load_spec, make_spec
from tests.support.command_line import invoke


class Moments(NamedTuple):
    x: torch.Tensor
    count: int


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    generator = rng(4, Purpose.INSTANCES)
    np.savez(tmp_path / "own.npz", x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return load_spec(None, [f"data={tmp_path / 'own.npz'}", "M=3", "K=2", "R=4", "engine=reference"])


@pytest.mark.parametrize(
    "state",
    [
        (torch.arange(3.0), torch.ones(2)),
        [torch.arange(3.0), 4],
        (torch.zeros(1), (torch.ones(2), 0.5)),
        Moments(torch.arange(2.0), 7),
        (),
    ],
)
def test_sequences_are_rebuilt_with_their_type(state: Any) -> None:
    rebuilt = rebuild_state(state, *flatten_state(state))
    assert type(rebuilt) is type(state)
    assert repr(rebuilt) == repr(state)


def test_sequence_of_another_length_is_refused() -> None:
    with pytest.raises(WorkError) as error:
        rebuild_state((torch.zeros(1),), *flatten_state((torch.zeros(1), torch.ones(1))))
    assert error.value.value == 2


def test_run_whose_state_is_a_tuple_resumes_with_the_same_bits(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(ALGORITHMS["ssl"], make=lambda it: SSLWithServerMomentum(it.step, it.K, 0.5))
    monkeypatch.setitem(ALGORITHMS, "ssl", entry)
    whole, stopped = (RunDirectory(tmp_path / name) for name in ("whole", "stopped"))
    list(execute(spec, whole, checkpoint=1))
    list(execute(spec.model_copy(update={"R": 2}), stopped, checkpoint=1))
    list(execute(spec, stopped, checkpoint=1))
    assert stopped.model.read_bytes() == whole.model.read_bytes()


class TextState(SSL[Any]):
    """SSL with a state that cannot be saved."""

    def init(self, x0: Any, /) -> Any:
        return {"name": "text", "x": x0}


def test_state_that_cannot_be_saved_is_refused_before_the_first_round(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "ssl", replace(ALGORITHMS["ssl"], make=lambda it: TextState(it.step, it.K)))
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(WorkError) as error:
        list(execute(spec, directory))
    assert error.value.value == "str"
    assert not directory.rounds.exists() and not Checkpoints(directory.path / "checkpoints").list_rounds()


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
