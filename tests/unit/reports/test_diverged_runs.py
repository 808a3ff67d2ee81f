"""Runs that diverged are results: they count with their last value, are marked, and never make a setting the best."""

from pathlib import Path

import pytest

from splitrelay.reports.accuracy import build_accuracy_table, build_rates_table
from splitrelay.reports.head_to_head import build_winners_table
from splitrelay.reports.learning_rate_figure import draw_rates
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.reports.seed_groups import group_runs
from splitrelay.reports.summary import build_curve, summarise_group
from splitrelay.runs.records import Run
from tests.support.run_directories import write_run

R = 100


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
