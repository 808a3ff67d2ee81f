"""Single classes: the worst at each evaluation, and the variation of one from evaluation to evaluation."""

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.reports.forgetting_table import build_classes_table, compute_class_statistics
from splitrelay.reports.seed_groups import group_runs
from splitrelay.runs.records import runs_under
from tests.support.run_directories import write_run

EARLY = [0.1] * 9  # rounds 0 to 8


def test_the_worst_is_taken_at_each_evaluation_and_the_swing_of_each_class(tmp_path: Path) -> None:
    """Classes have a, none and 1 - a. A fifth of ten rounds are the last two."""
    write_run(tmp_path / "one", [*EARLY, 0.9, 0.5])
    (group,), _ = group_runs(runs_under(tmp_path))
    found = compute_class_statistics(group)
    assert found.worst == pytest.approx((10 + 50) / 2)
    assert found.swing == pytest.approx(40 / math.sqrt(2))
    assert compute_class_statistics(group, last=1).worst == pytest.approx(50) and math.isnan(
        compute_class_statistics(group, last=1).swing
    )


def test_seeds_are_averaged_not_pooled(tmp_path: Path) -> None:
    """What differs between seeds, and not from round to round, is no swing."""
    for seed, accuracy in ((1234, 0.9), (666, 0.6)):
        write_run(tmp_path / str(seed), [*EARLY, accuracy, accuracy], f"seed={seed}")
    (group,), _ = group_runs(runs_under(tmp_path))
    assert compute_class_statistics(group).swing == pytest.approx(0, abs=1e-9) and compute_class_statistics(
        group
    ).worst == pytest.approx((10 + 40) / 2)


def test_a_row_a_place_two_columns_an_algorithm_and_gaps_stay_empty(tmp_path: Path) -> None:
    write_run(tmp_path / "ssl", [*EARLY, 0.9, 0.5], "algorithm=ssl")
    write_run(tmp_path / "fedavg", [*EARLY, 0.8, 0.8], "algorithm=fedavg")
    write_run(tmp_path / "alone", [*EARLY, 0.7, 0.7], "algorithm=ssl", "K=20")
    sheet = build_classes_table(runs_under(tmp_path))
    assert [head.full_name for head in sheet.headings[4:]] == ["FedAvg worst", "FedAvg swing", "SSL worst", "SSL swing"]
    texts = [[str(cell) for cell in row[3:]] for row in sheet.rows]
    assert texts == [["10", "20.0", "0.0", "30.0", "28.3"], ["20", "", "", "30.0", "0.0"]]


def test_the_command_prints_it(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [*EARLY, 0.9, 0.5])
    said = CliRunner().invoke(app, ["table", "classes", str(tmp_path)])
    assert said.exit_code == 0 and "30.0" in said.output and "28.3" in said.output
