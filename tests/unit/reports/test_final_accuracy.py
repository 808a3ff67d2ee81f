"""The final accuracy is the mean over the last rounds in every command, also for runs that diverged."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.reports import Group
from splitrelay.reports.accuracy import build_accuracy_table, build_rates_table
from splitrelay.reports.head_to_head import build_winners_table
from splitrelay.reports.learning_rate_figure import draw_rates
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.reports.seed_groups import group_runs
from splitrelay.reports.summary import build_curve, summarise_group
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import compute_final_accuracy, count_final_rounds, name_final_accuracy
from tests.support.run_directories import write_run

ROUNDS = 10


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
    words = ("data=digits", "M=5", "C=2", "K=2", f"R={ROUNDS}", "eta=0.3")
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


R = 100


def test_all_commands_count_a_diverged_run_with_its_last_value(tmp_path: Path) -> None:
    rising = [0.1 + r / 200 for r in range(R - 4)]  # it diverges within the last rounds
    run = write_run(tmp_path / "a", [*rising, 0.2], "eta=0.3", f"R={R}")
    (run.path / "diverged.txt").write_text("the loss is NaN\n")
    assert summarise_group(Group((run,))).mean == run.accuracy == 0.2
    shown, (listed,) = load("show", str(run.path)), load("table", "runs", str(tmp_path))["rows"]
    assert (shown["accuracy"], listed["accuracy (%)"]) == (0.2, 20.0)
    assert load("show", str(tmp_path))[0]["accuracy"] == 20.0
    assert load("table", "accuracy", str(tmp_path))["rows"][0]["accuracy_percent"] == 20.0
    assert "accuracy: 20.00%" in invoke("show", str(run.path))
    compared = invoke("compare", str(run.path), str(run.path), "--format", "csv")
    assert "0.2,0.2" in compared and "diverged" in compared
    words = ("data=digits", "M=5", "K=2", "R=4", "eta=1e9")
    (swept,) = load("sweep", *words, "--out", str(tmp_path / "sweep"))["points"]
    assert swept["state"] == "diverged" and swept["accuracy"] == swept["last_evaluation"] is not None


def write_seeds(
    folder: Path, algorithm: str, eta: float, ends: dict[int, float], diverged: dict[int, float]
) -> list[Run]:
    """Write a run of R rounds for each seed of `ends`, and one that diverged in round 5 for each of `diverged`."""
    runs = []
    for seed, end in {**ends, **diverged}.items():
        accuracies = [0.1] * 5 + [end] if seed in diverged else [0.1] * (R - 19) + [end] * 20
        words = (f"algorithm={algorithm}", f"eta={eta}", f"seed={seed}", f"R={R}")
        runs.append(write_run(folder / f"{algorithm}-{eta}-{seed}", accuracies, *words))
        if seed in diverged:
            (runs[-1].path / "diverged.txt").write_text("the loss is NaN\n")
    return runs


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    steady = write_seeds(tmp_path, "fedavg", 0.1, {1: 0.88, 2: 0.89, 3: 0.90}, {})
    risky = write_seeds(tmp_path, "fedavg", 0.3, {1: 0.95}, {2: 0.2, 3: 0.3})
    ssl = write_seeds(tmp_path, "ssl", 0.1, {1: 0.9, 2: 0.9, 3: 0.9}, {})
    return [*steady, *risky, *ssl]


def test_rate_with_diverged_seeds_is_never_the_best(runs: list[Run]) -> None:
    table = build_accuracy_table(runs)
    fedavg = next(record for record in table.records if record["algorithm"] == "fedavg")
    assert (fedavg["eta"], fedavg["accuracy_percent"], fedavg["seeds"]) == (0.1, 89.0, "1 2 3")
    rates = build_rates_table(runs)
    record = next(record for record in rates.records if record["algorithm"] == "fedavg")
    assert record["eta"] == 0.1 and "2 of 3 seeds diverged" in record["tried"]
    winners = build_winners_table(runs)
    assert winners.records[0]["fedavg_eta"] == 0.1 and winners.records[0]["seeds"] == 3


def test_diverged_runs_count_with_their_last_value(runs: list[Run]) -> None:
    groups, notes = group_runs(runs)
    risky = next(group for group in groups if group.spec.optimiser.eta == 0.3)
    assert risky.seeds == (1, 2, 3) and len(risky.diverged) == 2
    assert summarise_group(risky).mean == pytest.approx((0.95 + 0.2 + 0.3) / 3)
    assert list(build_curve(risky).rounds) == list(range(R + 1))
    assert any(note.startswith("Diverged") and "fedavg-0.3-2" in note for note in notes)
    assert not any("not counted" in note for note in notes)


def test_diverged_runs_are_marked_where_nothing_else_was_tried(runs: list[Run]) -> None:
    risky = [run for run in runs if run.spec.optimiser.eta == 0.3]
    table = build_accuracy_table(risky)
    text = "".join(piece if isinstance(piece, str) else piece.text for piece in table.rows[0][-1])
    assert "2 diverged" in text
    assert table.records[0]["diverged"] == 2
    listed = build_runs_table(risky)
    assert [record["rounds"] for record in listed.records] == ["100", "5 of 100, diverged", "5 of 100, diverged"]


def test_rates_figure_marks_diverged_settings(runs: list[Run]) -> None:
    drawing = draw_rates(runs)
    assert any("diverged" in note for note in drawing.said)


def test_single_diverged_run_has_its_last_value(tmp_path: Path) -> None:
    (run,) = write_seeds(tmp_path, "ssl", 0.3, {}, {1: 0.4})
    (group,), _ = group_runs([run])
    assert summarise_group(group).mean == pytest.approx(0.4)
