"""Accuracy has one definition in every command: the mean over the last rounds, at most a fifth of the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.reports import Group, summarise_group
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.runs.run_directory import compute_final_accuracy, count_final_rounds, name_final_accuracy
from tests.support.run_directories import write_run

R = 10


def invoke(*words: str) -> str:
    answer = CliRunner().invoke(app, ["-q", *words])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def load(*words: str) -> Any:
    return json.loads(invoke(*words, "--format", "json"))


@pytest.mark.parametrize(
    ("end", "last", "rounds"),
    [(1000, 20, 20), (100, 20, 20), (99, 20, 19), (10, 20, 2), (4, 20, 1), (1, 20, 1), (100, 5, 5), (300, 100, 60)],
)
def test_window_is_at_most_a_fifth_of_the_run(end: int, last: int, rounds: int) -> None:
    assert count_final_rounds(end, last) == rounds


def test_mean_is_over_the_evaluations_of_the_window() -> None:
    rows = [{"round": r, "test_accuracy": r / 100} for r in range(0, 101, 5)]
    assert compute_final_accuracy(rows) == pytest.approx((85 + 90 + 95 + 100) / 400)
    assert compute_final_accuracy(rows[:3]) == 0.1  # a fifth of 10 rounds has one evaluation
    assert compute_final_accuracy(rows[:1]) is None and compute_final_accuracy([]) is None


def test_name_states_the_number_of_rounds() -> None:
    assert name_final_accuracy([1000, 400]) == "accuracy (%), last 20 rounds"
    assert name_final_accuracy([4]) == "accuracy (%), last round"
    assert name_final_accuracy([10, 1000]) == "accuracy (%), last 2 to 20 rounds"


def test_a_rising_run_is_not_averaged_over_its_start(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [r / 20 for r in range(21)])
    assert summarise_group(Group((run,))).mean == pytest.approx((17 + 18 + 19 + 20) / 80)
    sheet = build_runs_table([run])
    assert sheet.records[0]["accuracy (%)"] == 92.5 and sheet.records[0]["last evaluation (%)"] == 100.0
    assert "accuracy (%), last 4 rounds" in [heading.name for heading in sheet.headings]


def test_all_commands_report_the_same_accuracy(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ("data=digits", "M=5", "C=2", "K=2", f"R={R}", "eta=0.3")
    swept = load("sweep", *words, "--out", str(folder))["points"][0]
    rows = load("run", *words, "--out", str(folder / swept["name"]))
    mean, end = (rows[-2]["test_accuracy"] + rows[-1]["test_accuracy"]) / 2, rows[-1]["test_accuracy"]
    assert mean != end
    percent, last = pytest.approx(100 * mean, abs=0.005), pytest.approx(100 * end, abs=0.005)
    assert (swept["accuracy"], swept["last_evaluation"]) == (pytest.approx(mean), end)
    (shown,) = load("show", str(folder))
    assert (shown["accuracy"], shown["last_evaluation"]) == (percent, last)
    alone = load("show", str(folder / swept["name"]))
    assert (alone["accuracy"], alone["last_evaluation"]) == (pytest.approx(mean), end)
    (listed,) = load("table", "runs", str(folder))["rows"]
    assert (listed["accuracy (%)"], listed["last evaluation (%)"]) == (percent, last)
    (averaged,) = load("table", "accuracy", str(folder))["rows"]
    assert averaged["accuracy_percent"] == percent
    (searched,) = load("grid", *words, "--out", str(tmp_path / "grid"))["settings"]
    assert searched["score"] == pytest.approx(mean)
    for command in (("show", str(folder)), ("table", "runs", str(folder)), ("sweep", *words, "--out", str(folder)),
                    ("grid", *words, "--out", str(tmp_path / "grid"))):  # fmt: skip
        assert "accuracy (%), last 2 rounds" in invoke(*command)
    text = invoke("run", *words, "--out", str(folder / swept["name"]))
    assert f"accuracy, mean of the last 2 rounds: {mean:.2%}; last evaluation: {end:.2%}" in text
