"""Studies: fair contests as data, and how a batch is tuned before all seeds are run."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from splitrelay.paper.budget import Pace, measure_pace
from splitrelay.paper.plan import find_units
from splitrelay.paper.studies import STUDIES, Batch, Tuning, list_batches, list_expected_runs, parse_settings, run_batch
from splitrelay.runs.spec import load_spec
from splitrelay.sweeps.jobs import JobStatus
from splitrelay.sweeps.points import Point
from splitrelay.sweeps.sweep import PointStatus, SweepStatus

SMALL = Batch(
    "tuned",
    "small",
    (parse_settings("M=4", "algorithm=ssl"), parse_settings("M=4", "algorithm=fedavg")),
    (0.1, 0.3),
    ("10", "none"),
)


class Landscape:
    """A sweep whose accuracies are a function of the spec: rows are written, nothing is trained."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, Point]] = []

    def __call__(self, points: Sequence[Point], folder: Path) -> SweepStatus:
        board = SweepStatus(
            folder, {point.name: PointStatus(point.name, "", dict(point.settings), 30, 1) for point in points}
        )
        for point in points:
            self.ran.append((folder.name, point))
            board.entries[point.name].update(JobStatus(point.name, "done"))
            row = {"round": 30, "test_accuracy": self.score(point)}
            (folder / point.name).mkdir(parents=True, exist_ok=True)
            (folder / point.name / "rounds.jsonl").write_text(json.dumps(row) + "\n")
        return board

    def score(self, point: Point) -> float:
        """SSL is best at 0.3 with clipping; FedAvg at 1, beyond the grid, without."""
        optimiser, ssl = point.spec.optimiser, point.spec.algorithm == "ssl"
        best, clipped = (0.3, True) if ssl else (1.0, False)
        near = min(optimiser.eta / best, best / optimiser.eta)
        return 0.9 * near - (0.1 if (optimiser.clip is not None) != clipped else 0.0)


@pytest.mark.parametrize("study", STUDIES)
def test_every_point_of_a_study_is_a_spec_and_none_is_there_twice(study: str) -> None:
    points = [point for batch in list_batches(study) for point in Tuning(batch).points().points]
    assert len({point.spec.hash for point in points}) == len(points) > 0


def test_both_algorithms_of_a_contest_are_tuned_over_the_same_rates_and_norms() -> None:
    for batch in list_batches("tuned"):
        tried: dict[str, set[tuple[float, float | None]]] = {}
        for point in Tuning(batch).points().points:
            tried.setdefault(point.spec.algorithm, set()).add((point.spec.optimiser.eta, point.spec.optimiser.clip))
        assert tried["ssl"] == tried["fedavg"] and len(tried["ssl"]) == 12


def test_the_family_is_searched_several_settings_at_a_time() -> None:
    """So that its steps beyond an edge, and its seeds, find every core at work."""
    sizes = [len(batch.settings) for batch in list_batches("family")]
    assert min(sizes) >= 4 and sum(sizes) == 38


def test_the_best_of_all_norms_and_rates_is_run_with_every_seed(tmp_path: Path) -> None:
    land = Landscape()
    run_batch(Tuning(SMALL), tmp_path, land, (1234, 666))
    final = [point.spec for folder, point in land.ran if folder == "best"]
    chosen = {(spec.algorithm, spec.optimiser.eta, spec.optimiser.clip, spec.seed, spec.every) for spec in final}
    assert chosen == {
        *(("ssl", 0.3, 10.0, seed, 1) for seed in (1234, 666)),
        *(("fedavg", 1.0, None, seed, 1) for seed in (1234, 666)),
    }
    assert {point.spec.every for folder, point in land.ran if folder == "search"} == {5}


def test_what_is_known_of_a_batch_grows_with_its_rows(tmp_path: Path) -> None:
    before = list_expected_runs(Tuning(SMALL), tmp_path, (1234,))
    assert len(before) == 8 + 2
    run_batch(Tuning(SMALL), tmp_path, Landscape(), (1234,))
    final = [
        point.spec for folder, point in list_expected_runs(Tuning(SMALL), tmp_path, (1234,)) if folder.name == "best"
    ]
    assert {(spec.algorithm, spec.optimiser.clip) for spec in final} == {("ssl", 10.0), ("fedavg", None)}


def test_words_go_on_top_of_a_study() -> None:
    unit = find_units(["tuned"], (1234,), ["R=3"])[0]
    assert unit.kind == "tuned" and {point.spec.R for point in unit.points} == {3}


def test_a_pace_is_steps_and_looks() -> None:
    spec = Tuning(SMALL).points().points[0].spec.model_copy(update={"R": 10, "S": 2, "K": 5, "every": 5})
    assert Pace(1.0, 7.0).seconds(spec) == 10 * 2 * 5 + 10 * 7 / 5


def test_a_probe_of_a_run_that_will_diverge_does_not() -> None:
    """A search that is taken up again may have its wildest rate next."""
    pace = measure_pace(load_spec(None, ["data=digits", "model=mlp", "M=4", "C=5", "clip=none", "eta=1e9"]))
    assert pace.step > 0 and pace.evaluation > 0
