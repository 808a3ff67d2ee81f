"""The convex study: its record, its figure from the record alone, its tables, and what it refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from threadpoolctl import threadpool_limits

from splitrelay.algorithms import SSL, FedAvg, Step
from splitrelay.cli.main import app, run
from splitrelay.data import DataSet, ImageSet, draw_partition, load
from splitrelay.engine import InProcess
from splitrelay.errors import OutOfRange
from splitrelay.objectives.softmax_regression import Softmax, feature_rows, mean_image
from splitrelay.paper.convex import run_study
from splitrelay.paper.convex_figure import draw
from splitrelay.paper.convex_records import (
    Record,
    Side,
    Study,
    check_study,
    find_first_within,
    last,
    read_record,
    write_record,
)
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.training import train
from tests.support.error_fields import expect_error

CLASSES = ("a", "b", "c", "d")
STUDY = Study(data="tiny", Cs=(1, 4), M=4, K=3, R=40, mu=0.05, batch=4, etas=(0.1, 1.0), seeds=(3, 5), points=6)


def images(n: int, number: int) -> ImageSet:
    """Noisy pictures of four classes, each bright in a corner of its own."""
    generator = rng(11, Purpose.INSTANCES, number)
    y = np.arange(n) % 4
    x = generator.integers(60, size=(n, 1, 2, 2))
    x[np.arange(n), 0, y // 2, y % 2] += 150
    return ImageSet(x.astype(np.uint8), y.astype(np.int64), CLASSES, (0.5,), (0.5,))


@pytest.fixture(scope="module")
def data() -> DataSet:
    return DataSet("tiny", images(80, 0), images(20, 1))


@pytest.fixture(scope="module")
def record(data: DataSet) -> Record:
    return run_study(STUDY, data)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: DataSet) -> Callable[..., Result]:
    """`splitrelay convex` on a set of one's own, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=data.train.x[:, 0], y=data.train.y)

    def invoke(*words: str) -> Result:
        settings = ["data=own.npz", "C=1,4", "M=4", "K=2", "R=5", "eta=.1,1", "points=5"]
        return CliRunner().invoke(app, ["convex", *settings, *words], catch_exceptions=False)

    return invoke


def side(record: Record, C: int, algorithm: str) -> Side:
    (cell,) = (cell for cell in record.cells if cell.C == C)
    (found,) = (side for side in cell.sides if side.algorithm == algorithm)
    return found


def test_every_C_has_every_algorithm(record: Record) -> None:
    assert [cell.C for cell in record.cells] == [1, 4]
    for cell in record.cells:
        assert [side.algorithm for side in cell.sides] == ["ssl", "fedavg", "minibatch-sgd", "scaffold"]


@pytest.mark.parametrize(("name", "algorithm"), [("ssl", SSL), ("fedavg", FedAvg)])
def test_a_rate_among_others_runs_as_if_it_were_alone(
    record: Record, data: DataSet, name: str, algorithm: type
) -> None:
    """The same classes, one rate, one seed, no array of settings: the same gap at the end."""
    x, y = data.train.x, data.train.y
    division = draw_partition("exdir", y, M=4, C=1, alpha=10.0, seed=3)
    objective = Softmax(feature_rows(x, mean_image(x)), y, division.indices, 0.05, 4, 4)
    tuned = side(record, 1, name).tuned
    steps: Step[np.ndarray] = Step(tuned.eta)
    *_, (_, end) = train(algorithm(steps, 3), objective.x0, Permutation(4, 5), InProcess(objective, 5), R=40)
    gap = float(objective.F(end)) - record.cells[0].constants.F_star
    assert tuned.gap[1][-1] == pytest.approx(gap, rel=1e-6)


def test_tuned_is_the_rate_that_ends_lowest(record: Record) -> None:
    for cell in record.cells:
        for found in cell.sides:
            finals = [np.inf if final is None else final for final in found.tuned.finals]
            assert found.tuned.eta == STUDY.etas[int(np.argmin(finals))]
            assert last(found.tuned.gap) == pytest.approx(min(finals))
            assert found.tuned.on_edge  # a grid of two is all edge


@pytest.mark.parametrize(("level", "round_"), [(4.0, 0), (2.5, 10), (1.0, 20), (0.5, None)])
def test_the_first_round_within_a_level_is_that_of_the_mean(level: float, round_: int | None) -> None:
    assert find_first_within([0, 10, 20], [[5, 3, 1], [3, 2, 1]], level) == round_


def test_no_gap_is_negative(record: Record) -> None:
    gaps = [
        gap
        for cell in record.cells
        for found in cell.sides
        for gap in (found.tuned.gap, found.theory.gap, found.theory.gap_bar)
    ]
    assert np.min(gaps) > -1e-12


def test_one_class_a_client_is_more_heterogeneous_than_all(record: Record) -> None:
    one, all_ = (cell.constants for cell in record.cells)
    assert one.zeta2_star > 3 * all_.zeta2_star
    assert one.kappa > all_.kappa


def test_the_noise_seen_lies_between_that_at_the_optimum_and_the_largest_possible(record: Record) -> None:
    for cell in record.cells:
        c = cell.constants
        assert c.sigma2_star <= c.sigma2_seen <= c.sigma2_everywhere
        assert c.gradient_norm <= 1e-8


def test_full_gradients_leave_only_the_order_to_chance(data: DataSet) -> None:
    found = run_study(STUDY.model_copy(update={"batch": None, "Cs": (1,)}), data)
    assert found.cells[0].constants.sigma2_seen == 0
    assert side(found, 1, "fedavg").tuned.gap[0] == pytest.approx(side(found, 1, "fedavg").tuned.gap[1], rel=1e-9)
    assert side(found, 1, "ssl").tuned.gap[0] != pytest.approx(side(found, 1, "ssl").tuned.gap[1], rel=1e-9)


def test_the_same_study_gives_the_same_numbers(record: Record, data: DataSet) -> None:
    again = run_study(STUDY, data)
    assert [cell.sides for cell in again.cells] == [cell.sides for cell in record.cells]


def test_the_last_bit_does_not_depend_on_the_threads_of_the_caller() -> None:
    """Digits: where it did."""
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            record = run_study(Study(data="digits", Cs=(1,), R=2, etas=(0.1,), points=1), load("digits"))
        found.append([cell.model_dump(exclude={"seconds"}) for cell in record.cells])
    assert found[0] == found[1]


def test_a_record_comes_back_as_it_was_written(record: Record, tmp_path: Path) -> None:
    assert read_record(write_record(record, tmp_path / "record.json")) == record


def test_the_figure_needs_the_record_alone(record: Record, tmp_path: Path) -> None:
    again = read_record(write_record(record, tmp_path / "record.json"))
    one, two = (draw(found, tmp_path / f"{name}.png") for name, found in (("one", record), ("two", again)))
    assert one.read_bytes() == two.read_bytes()


def test_the_figure_says_where_no_theorem_applies(record: Record, tmp_path: Path) -> None:
    short = record.cells[0].constants.rounds_needed
    assert short > STUDY.R > record.cells[1].constants.rounds_needed
    words = draw(record, tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert words.count("no bound") == 1
    assert words.count("bound / gap") == 1


def test_the_command_leaves_a_record_and_a_figure(own: Callable[..., Result]) -> None:
    answer = own()
    assert answer.exit_code == 0
    assert Path("results/convex/convex-own.json").exists() and Path("results/convex/convex-own.png").exists()
    assert "zeta_*^2" in answer.output and "bound/gap" in answer.output


def test_json_is_the_record(own: Callable[..., Result]) -> None:
    found = json.loads(own("--format", "json").stdout)
    assert set(found) == {"study", "rounds", "cells"}
    assert found["rounds"] == [0, 1, 2, 3, 4, 5]
    assert {"L", "mu", "zeta2_star", "sigma2_star", "sigma2_seen", "D2"} < set(found["cells"][0]["constants"])
    theory = found["cells"][0]["sides"][0]["theory"]
    assert len(theory["proved"]) == len(theory["gap_bar"][0]) == 6
    assert Record.model_validate(found).study.R == 5


def test_from_a_record_nothing_is_run(own: Callable[..., Result]) -> None:
    ran = own("--no-figures")
    again = CliRunner().invoke(app, ["convex", "--from", "results/convex/convex-own.json"])
    assert again.exit_code == 0
    tables = ran.stdout.split("record:")[0]
    assert again.stdout.startswith(tables)
    assert Path("results/convex/convex-own.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mu=0"], "mu of the convex study; needs mu > 0; got 0. The default is 0.01."),
        (["eta=.1,-1"], "needs eta > 0; got -1. The default is 0.01,0.02,0.05"),
        (["alpha=0"], "needs alpha > 0; got 0. The default is 10.0."),
        (["C=1,11"], "1 <= C <= 4"),
        (["batch=many"], "batch must be a number"),
        (["R=0"], "R must be a whole number"),
        (["etas=1"], "Did you mean 'eta'?"),
        (["--from", "nowhere.json"], "cannot read nowhere.json"),
        (["--from", "own.npz"], "not a record of the convex study"),
        (["--from", "nowhere.json", "R=3"], "cannot be combined with settings"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    own: Callable[..., Result], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(["convex", *words, *(["data=own.npz"] * (not any("data" in w or "--from" in w for w in words)))])
    assert leaving.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("splitrelay: ") and said in error and "\n" not in error
    assert not Path("results").exists()


def test_an_empty_grid_is_refused() -> None:
    with expect_error(OutOfRange, what="eta", value=(), limit=True, hint="0.01,0.02,0.05"):
        check_study(etas=())


def test_the_study_and_its_figure_need_no_torch() -> None:
    script = (
        "import sys, splitrelay.paper.convex, splitrelay.paper.convex_figure; "
        "sys.exit(bool({'torch', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
