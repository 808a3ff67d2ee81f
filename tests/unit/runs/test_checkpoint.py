"""States of algorithms in checkpoints: which can be saved, and that the others are refused before the first round."""

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
from splitrelay.runs.execute import execute
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec


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
