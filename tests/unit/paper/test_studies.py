"""Studies: how they are tuned, the table with one line per study, and the estimated hours on a GPU."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.paper.budget import (
    KINDS,
    LAUNCHED,
    SHARE,
    Accelerator,
    Pace,
    build_accelerators_table,
    estimate_hours,
    measure_pace,
)
from splitrelay.paper.cells import CELLS
from splitrelay.paper.plan import find_units
from splitrelay.paper.studies import STUDIES, Batch, Tuning, list_batches, list_expected_runs, parse_settings, run_batch
from splitrelay.paper.summary_table import build_summary_table
from splitrelay.runs.spec import load_spec
from splitrelay.sweeps.jobs import JobStatus
from splitrelay.sweeps.points import Point
from splitrelay.sweeps.sweep import PointStatus, SweepStatus
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

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


def test_hours_are_steps_and_looks_by_their_flops() -> None:
    """20 images forward and backward, or 10,000 forward, at a share of the peak."""
    spec = load_spec(None, ["preset=paper/cross-device-cifar10-c1-k5", "R=72", "every=2"])
    kind, forward = Accelerator("slow", 1e12), 3e8
    step, look = 3 * 20 * forward / (SHARE * 1e12), 10_000 * forward / (SHARE * 1e12)
    assert abs(estimate_hours(spec, kind, forward) - (72 * 10 * 5 * step + 36 * look) / 3600) < 1e-9


def test_a_step_takes_as_long_as_its_launches() -> None:
    assert Accelerator("endless", 1e30).seconds(1e9) == LAUNCHED


def test_every_cell_of_vgg11_has_its_row_and_all_together_the_last() -> None:
    sheet = build_accelerators_table()
    assert len(sheet.rows) == 1 + sum(cell.data == "cifar10" for cell in CELLS.values())
    for kind in KINDS:
        whole = sum(record[kind.name] for record in sheet.records)
        assert f"{whole:.0f}" in sheet.rows[-1]


def met(folder: Path, gaps: tuple[float, ...], *words: str) -> None:
    """SSL ahead of FedAvg by these shares, one for each seed."""
    for name in ("ssl", "fedavg"):
        for seed, gap in enumerate(gaps):
            top = 0.5 + (gap if name == "ssl" else 0.0)
            home = folder / "-".join([name, str(seed), *words]).replace("=", "")
            write_run(home, [0.1, top], *words, f"algorithm={name}", f"seed={seed}")


def line(folder: Path, study: str) -> str:
    (found,) = [
        text for text in build_summary_table(folder).to_markdown().splitlines() if text.startswith(f"| {study} |")
    ]
    return found


def test_one_that_is_ahead_everywhere_is_named_with_the_range_of_gaps(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2, 0.201, 0.199), "C=1", "K=10")
    met(tmp_path / "cells", (0.1, 0.101, 0.099), "C=1", "K=20")
    assert "| **SSL** +10.0 to +20.0 |" in line(tmp_path, "500 clients, the paper's rates")


def test_a_gap_that_the_seeds_do_not_support_is_not_shown(tmp_path: Path) -> None:
    """The mean is +13 points, but one seed of three differs in sign."""
    met(tmp_path / "tuned/best", (0.2, -0.1, 0.29), "C=2")
    assert "| undecided |" in line(tmp_path, "500 clients, tuned")


def test_settings_with_different_verdicts_are_counted(tmp_path: Path) -> None:
    met(tmp_path / "silos/best", (0.2, 0.201, 0.199), "C=2", "K=10")
    met(tmp_path / "silos/best", (-0.2, -0.201, -0.199), "C=2", "K=20")
    met(tmp_path / "silos/best", (-0.2, 0.3, 0.1), "C=2", "K=30")
    met(tmp_path / "silos/best", (0.0001, -0.0001, 0.0), "C=2", "K=5")
    expected = "| SSL in 1 (+20.0), FedAvg in 1 (-20.0), even in 1, undecided in 1 |"
    assert expected in line(tmp_path, "ten clients, tuned")


def test_what_was_not_run_stays_empty(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2,), "C=1")
    met(tmp_path / "tuned/best", (0.2,), "C=2")
    assert line(tmp_path, "500 clients, tuned").endswith("| MNIST |  | undecided (one seed) |")


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with expect_error(InputError, what=(str(tmp_path), "SSL", "FedAvg"), limit="cells"):
        build_summary_table(tmp_path)
