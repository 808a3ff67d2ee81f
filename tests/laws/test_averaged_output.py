"""output=average: the model of a run is the mean of the models of all rounds, and all laws of a run still hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.deploy.fed_averaging import check_fed_spec
from splitrelay.errors import InputError
from splitrelay.models.weights_io import load_weights
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec
from tests.support.engines import ENGINES

R = 4


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    generator = rng(4, Purpose.INSTANCES)
    np.savez(path, x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def spec(own: Path, *words: str) -> Spec:
    return load_spec(None, [f"data={own}", "M=5", "K=2", "C=1", f"R={R}", *words])


def finish(run: Spec, path: Path, **how: Any) -> RunDirectory:
    directory = RunDirectory(path)
    list(execute(run, directory, **how))
    return directory


def remove_seconds(directory: RunDirectory) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in directory.read_rows()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("algorithm", "decay"), [("ssl", 0.0), ("fedavg", 0.25)])
def test_the_output_is_the_weighted_mean_of_all_rounds(
    own: Path, tmp_path: Path, algorithm: str, decay: float, engine: str
) -> None:
    words = (f"algorithm={algorithm}", f"engine={engine}")
    trainer, _ = build_trainer(spec(own, *words))
    models = np.array([trainer.algorithm.model(state).double().numpy() for _, state in trainer.run(R)])
    weights = (1 - decay) ** -np.arange(1.0, R + 2)
    expected = weights @ models / weights.sum()
    directory = finish(spec(own, *words, "output=average", f"output_decay={decay}"), tmp_path / "run")
    found = load_weights(directory.model, trainer.model_spec.layout(trainer.network.dtype)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(models[-1] - expected).max() > 1e-4  # the last model would not pass


def test_the_training_does_not_depend_on_the_output(own: Path, tmp_path: Path) -> None:
    last, average = (finish(spec(own, f"output={name}"), tmp_path / name) for name in ("last", "average"))
    losses = [[row["train_loss"] for row in directory.read_rows()] for directory in (last, average)]
    assert losses[0] == losses[1]
    assert last.read_rows()[-1]["test_loss"] != average.read_rows()[-1]["test_loss"]


@pytest.mark.parametrize("words", [("algorithm=ssl",), ("algorithm=scaffold", "output_decay=0.1")])
def test_a_run_that_stops_ends_with_the_same_bits(own: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    run = spec(own, "output=average", *words)
    going = execute(run, RunDirectory(tmp_path / "stopped"), checkpoint=1)
    while next(going).row["round"] < 2:
        pass
    going.close()
    stopped, whole = finish(run, tmp_path / "stopped"), finish(run, tmp_path / "whole")
    assert stopped.model.read_bytes() == whole.model.read_bytes()
    assert remove_seconds(stopped) == remove_seconds(whole)
    result = CliRunner().invoke(app, ["verify", str(stopped.path)])
    assert result.exit_code == 0, result.output
    assert "output=average" in CliRunner().invoke(app, ["show", str(stopped.path)]).output


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=splitfed-v3", "output=average"),  # there is no model of all clients
        ("output_decay=0.5",),  # it has no effect
        ("output=average", "route=peer-to-peer"),  # the server has no client halves
        ("output=average", "output_decay=1"),
    ],
)
def test_a_combination_without_an_average_is_refused(own: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        finish(spec(own, *words), tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_a_fed_server_refuses_an_average_over_rounds(own: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_fed_spec(spec(own, "algorithm=fedavg", "placement=cut", "output=average"))
    assert caught.value.limit == "output=last"
