"""The grid search: which rate is picked, by which rule, and what is said at the grid's edge."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.grid import build_table
from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName, WorkError
from splitrelay.runs.records import runs_under
from splitrelay.runs.run_directory import compute_final_accuracy
from splitrelay.sweeps.grid_search import (
    DEFAULT_RATES,
    Choice,
    RateScore,
    Search,
    choose_rate,
    choose_settings,
    compute_next_rate,
    search_rates,
    write_results,
)
from splitrelay.sweeps.jobs import JobStatus
from splitrelay.sweeps.points import Point
from splitrelay.sweeps.sweep import PointStatus, SweepStatus
from tests.support.error_fields import expect_error

Score = Callable[[float], float | None]  # of a rate; None: it diverges


class Landscape:
    """A sweep whose accuracies are a function of the rate: rows are written, nothing is trained."""

    def __init__(self, folder: Path, score: Score, column: str = "test_accuracy") -> None:
        self.folder, self.score, self.column = folder, score, column
        self.asked: list[list[float]] = []

    def __call__(self, points: Sequence[Point]) -> SweepStatus:
        board = SweepStatus(
            self.folder, {p.name: PointStatus(p.name, p.label, dict(p.settings), 30, 1) for p in points}
        )
        self.asked.append([point.spec.optimiser.eta for point in points])
        for point in points:
            score = self.score(point.spec.optimiser.eta)
            board.entries[point.name].update(JobStatus(point.name, "diverged" if score is None else "done"))
            self._write(point.name, score or 0.0)
        return board

    def _write(self, name: str, score: float) -> None:
        rows = [{"round": r, "test_accuracy": 0.5, self.column: score if r > 10 else 0.99} for r in range(31)]
        (self.folder / name).mkdir(parents=True)
        (self.folder / name / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def peak(at: float) -> Score:
    """Best at one rate, worse the further away; beyond ten times it the run diverges."""
    return lambda eta: None if eta > 10 * at else min(eta / at, at / eta)


def choice(folder: Path, score: Score, *etas: str, **how: bool) -> tuple[Choice, Landscape]:
    land = Landscape(folder, score)
    (found,) = search_rates(Search(None, {"eta": list(etas)} if etas else {}), land, **how)
    return found, land


def test_the_best_rate_is_inside_and_diverged_ones_are_the_worst(tmp_path: Path) -> None:
    found, _ = choice(tmp_path, peak(0.01), "0.1", "0.01", "0.5", "0.001")
    assert found.best.eta == 0.01 and found.next_beyond_edge is None
    assert [(tried.eta, tried.score) for tried in found.rates][-1] == (0.5, None)


def test_the_grid_is_the_papers_unless_another_is_given(tmp_path: Path) -> None:
    _, land = choice(tmp_path, peak(0.01))
    assert land.asked == [list(DEFAULT_RATES)]


def test_of_two_as_good_the_smaller_rate(tmp_path: Path) -> None:
    assert choice(tmp_path, lambda eta: 0.5, "0.3", "0.1", "1")[0].best.eta == 0.1


@pytest.mark.parametrize(("at", "beyond"), [(10.0, 1.0), (1e-4, 0.0001), (0.01, None)])
def test_an_edge_is_said_with_the_next_rate(tmp_path: Path, at: float, beyond: float | None) -> None:
    assert choice(tmp_path, peak(at))[0].next_beyond_edge == beyond


def test_a_diverged_neighbour_makes_no_edge(tmp_path: Path) -> None:
    found, _ = choice(tmp_path, lambda eta: None if eta > 0.1 else eta, "0.01", "0.1", "1")
    assert found.best.eta == 0.1 and found.next_beyond_edge is None


def test_extending_goes_on_until_the_best_is_inside(tmp_path: Path) -> None:
    found, land = choice(tmp_path, peak(30.0), "0.1", "0.3", "1", extend=True)
    assert land.asked == [[0.1, 0.3, 1.0], [3.0], [10.0], [30.0], [100.0]]
    assert found.best.eta == 30 and found.next_beyond_edge is None


def test_extending_ends_where_nothing_gets_worse(tmp_path: Path) -> None:
    found, land = choice(tmp_path, lambda eta: 0.1, "0.1", "1", extend=True)
    assert len(land.asked) == 9 and found.next_beyond_edge is not None


def test_fine_tries_the_rates_half_way(tmp_path: Path) -> None:
    found, land = choice(tmp_path, peak(0.02), "0.001", "0.01", "0.1", fine=True)
    assert land.asked[1] == [0.00316, 0.0316]
    assert found.best.eta == 0.0316


@pytest.mark.parametrize(
    ("etas", "up", "down"),
    [
        (DEFAULT_RATES, 1.0, 0.0001),
        ((0.03, 0.1, 0.3), 1.0, 0.01),
        ((0.1,), 1.0, 0.01),
        ((0.01, 0.0215, 0.0464, 0.1), 0.215, 0.00464),
    ],
)
def test_a_grid_goes_on_in_its_own_digits(etas: Sequence[float], up: float, down: float) -> None:
    assert (compute_next_rate(etas, up=True), compute_next_rate(etas, up=False)) == (up, down)


def test_each_setting_has_its_own_best_rate_and_seed_1234(tmp_path: Path) -> None:
    plan = Search(None, {"algorithm": ["ssl", "fedavg"], "K": ["5"], "eta": ["0.1", "1"]})
    assert {point.spec.seed for point in plan.points().points} == {1234}
    found = search_rates(plan, Landscape(tmp_path, peak(1.0)))
    assert [(c.settings, c.best.eta) for c in found] == [((("algorithm", name),), 1.0) for name in ("ssl", "fedavg")]


def test_validation_decides_where_it_is_the_rule(tmp_path: Path) -> None:
    plan = Search(None, {"validation": ["0.1"], "eta": ["0.1", "1", "2"]}, "validation")
    (found,) = search_rates(plan, Landscape(tmp_path, peak(1.0), "validation_accuracy"))
    assert found.best.eta == 1.0 and found.best.score == 1.0
    with expect_error(InputError, what="tune=validation", hint="validation=0.1"):
        Search(None, {"eta": ["1"]}, "validation").points()
    with expect_error(UnknownName, name="tests", hint="test"):
        Search(None, {}, "tests")


def test_a_point_that_was_lost_leaves_no_choice(tmp_path: Path) -> None:
    def lost(points: Sequence[Point]) -> SweepStatus:
        board = Landscape(tmp_path, peak(1.0))(points)
        board.entries[points[0].name].update(JobStatus(points[0].name, "failed", why="its process was killed"))
        return board

    with expect_error(WorkError, what="eta=1", value="its process was killed"):
        search_rates(Search(None, {"eta": ["1", "2"]}), lost)


def test_the_last_rounds_decide() -> None:
    rows = [{"round": r, "test_accuracy": float(r)} for r in range(0, 101, 4)]
    assert compute_final_accuracy(rows) == (84 + 88 + 92 + 96 + 100) / 5
    assert (
        compute_final_accuracy(rows[:2]) == 4.0
        and compute_final_accuracy(rows[:1]) is None
        and compute_final_accuracy([]) is None
    )


def test_two_rules_are_refused() -> None:
    error = CliRunner().invoke(app, ["grid", "eta=0.1,0.2", "tune=test", "tune=validation"]).exception
    assert isinstance(error, InputError) and str(error) == "tune is given twice; got test validation. Give it once."


def test_what_is_kept_and_shown(tmp_path: Path) -> None:
    found, _ = choice(tmp_path, peak(0.01), "0.1", "0.01", "0.5")
    write_results([found], "test", tmp_path)
    kept = json.loads((tmp_path / "grid.json").read_text())
    assert kept["settings"][0]["eta"] == 0.01 and kept["settings"][0]["on_edge"] is True
    lines = (tmp_path / "grid.csv").read_text().splitlines()
    assert lines[0] == "eta,score,best,run" and lines[1].startswith("0.01,1.0,True,eta0.01-") and len(lines) == 4
    shown = build_table([found], "test")
    assert shown.rows == [("0.01*", 100.0, None, 100.0, 10.0, "diverged")]
    assert "* the best rate is on the grid's edge; --extend goes on with 0.005." in shown.notes


def rate(eta: float, *scores: float, clip: float | None = None, diverged: int = 0) -> RateScore:
    return RateScore(eta, scores, ("run",), 10, clip, diverged)


def test_rates_within_one_standard_error_give_way_to_the_smaller_one() -> None:
    assert choose_rate([rate(0.1, 0.80, 0.82), rate(0.3, 0.79, 0.85)]).eta == 0.1
    assert choose_rate([rate(0.1, 0.70, 0.72), rate(0.3, 0.79, 0.85)]).eta == 0.3
    assert choose_rate([rate(0.1, 0.5, 0.5), rate(0.3, 0.9, diverged=1)]).eta == 0.1
    assert rate(0.3, 0.9, diverged=1).score is None


def test_clipping_is_chosen_within_one_standard_error_also_where_another_norm_has_the_best_rate() -> None:
    free, clipped = (("algorithm", "ssl"), ("clip", "none")), (("algorithm", "ssl"), ("clip", "10"))
    choices = [
        Choice(free, (rate(0.1, 0.80, 0.84),)),
        Choice(clipped, (rate(0.1, 0.7, 0.71, clip=10.0), rate(0.3, 0.80, 0.82, clip=10.0))),
        Choice((("algorithm", "fedavg"), ("clip", "none")), (rate(0.1, 0.5, 0.5),)),
    ]
    chosen = choose_settings(choices)
    assert [(dict(settings), tried.eta) for settings, tried in chosen.items()] == [
        ({"algorithm": "ssl", "clip": "10"}, 0.3),
        ({"algorithm": "fedavg", "clip": "none"}, 0.1),
    ]


SMALL = ("data=digits", "M=5", "C=2", "K=1", "R=2", "algorithm=ssl,fedavg", "eta=0.1,0.3")


def test_report_compares_the_chosen_rates_over_other_seeds(tmp_path: Path) -> None:
    words = ["-q", "grid", *SMALL, "seed=1,2", "validation=0.1", "--report", "3,4", "--jobs", "1", "--format", "json"]
    answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["tune"] == "validation"
    assert [[len(tried["scores"]) for tried in setting["rates"]] for setting in found["settings"]] == [[2, 2], [2, 2]]
    (row,) = found["report"]
    assert (row["first"], row["second"], row["seeds"]) == ("algorithm=ssl", "algorithm=fedavg", 2)
    reported = {run.spec.seed for run in runs_under(tmp_path / "report")}
    assert reported == {3, 4}


def test_reported_seeds_must_not_choose_the_rates(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["grid", *SMALL, "seed=1,2", "--report", "2,3", "--out", str(tmp_path)]).exception
    assert isinstance(error, InputError) and error.value == 2 and not list(tmp_path.iterdir())
