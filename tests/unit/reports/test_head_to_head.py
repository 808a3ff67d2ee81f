"""Who wins: seed against seed, each algorithm at its best, and the factor that the gap depends on."""

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import Comparison, build_winners_table, find_comparisons
from splitrelay.reports.winners_figure import describe_once, draw_winners, find_varied
from splitrelay.runs.records import Run, runs_under
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

SEEDS = (1234, 666)


def met(folder: Path, ssl: tuple[float, ...], fedavg: tuple[float, ...], *words: str) -> None:
    """Both algorithms in one place; an accuracy for each seed."""
    where = "-".join(words) or "place"
    for name, tops in (("ssl", ssl), ("fedavg", fedavg)):
        for seed, top in zip(SEEDS, tops, strict=False):
            write_run(folder / f"{where}-{name}-{seed}", [0.1, top, top], *words, f"algorithm={name}", f"seed={seed}")


def only(runs: list[Run]) -> Comparison:
    (pair,) = find_comparisons(runs)[0]
    return pair


def test_the_gap_is_the_mean_of_the_seeds_own_gaps(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.8), (0.7, 0.75), "C=1")
    pair = only(runs_under(tmp_path))
    assert pair.gap == pytest.approx((20 + 5) / 2)
    assert pair.spread == pytest.approx(15 / math.sqrt(2))


@pytest.mark.parametrize(
    ("ssl", "fedavg", "winner"),
    [((0.9, 0.8), (0.7, 0.7), "ssl"), ((0.6, 0.6), (0.7, 0.7), "fedavg"), ((0.9, 0.6), (0.7, 0.7), None)],
)
def test_ahead_is_who_is_ahead_with_every_seed(
    tmp_path: Path, ssl: tuple[float, ...], fedavg: tuple[float, ...], winner: str | None
) -> None:
    met(tmp_path, ssl, fedavg)
    assert only(runs_under(tmp_path)).winner == winner


def test_each_algorithm_comes_with_its_best_rate(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.3, 0.3), "C=1", "eta=0.001")
    write_run(tmp_path / "better", [0.1, 0.8], "C=1", "eta=0.1", "algorithm=fedavg", "seed=1234")
    pair = only(runs_under(tmp_path))
    assert pair.fedavg.best.spec.optimiser.eta == 0.1 and pair.gaps.tolist() == pytest.approx([10.0])


def test_a_seed_that_one_of_them_lacks_does_not_count(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.1), (0.7,))
    assert only(runs_under(tmp_path)).gaps.tolist() == pytest.approx([20.0])


def test_every_variant_of_ssl_meets_the_one_fedavg(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7), "C=1", "order=sampled")
    write_run(tmp_path / "fixed", [0.1, 0.6, 0.6], "C=1", "order=fixed", "algorithm=ssl", "seed=1234")
    pairs, _ = find_comparisons(runs_under(tmp_path))
    assert sorted(pair.gap for pair in pairs) == pytest.approx([-10, 20])


def test_the_table_counts_the_places(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7), "C=1")
    met(tmp_path, (0.8, 0.8), (0.9, 0.9), "C=2")
    sheet = build_winners_table(runs_under(tmp_path))
    assert sheet.notes[0] == "SSL is ahead in 1 of 2 settings, FedAvg in 1; 0 are even."
    assert [record["ahead"] for record in sheet.records] == ["ssl", "fedavg"]


def test_a_factor_is_drawn_where_it_alone_is_varied(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7), "C=1")
    met(tmp_path, (0.8, 0.8), (0.9, 0.9), "C=2")
    met(tmp_path, (0.8, 0.8), (0.9, 0.9), "C=2", "alpha=1")
    pairs, _ = find_comparisons(runs_under(tmp_path))
    assert [[pair.factors["C"] for pair in found] for found in find_varied(pairs, "C").values()] == [[1, 2]]
    assert find_varied(pairs, "K") == {} == find_varied(pairs, "S")
    axes = draw_winners(runs_under(tmp_path)).figure.axes
    assert [axis.get_xlabel() for axis in axes] == ["classes a client, C", r"concentration, $\alpha$"]
    assert axes[0].lines[0].get_ydata() == pytest.approx([20, -10])


def test_of_two_that_are_the_same_the_one_that_was_looked_at_more_often_counts(tmp_path: Path) -> None:
    for name in ("ssl", "fedavg"):
        for folder, looks in (("a", {0: 0.1, 10: 0.4, 20: 0.9}), ("b", {0: 0.1, 20: 0.9}), ("c", {0: 0.1, 20: 0.9})):
            top = {r: value - 0.1 * (name == "fedavg" and r == 10) for r, value in looks.items()}
            write_run(tmp_path / folder / name, top, f"algorithm={name}", f"every={20 // (len(looks) - 1)}")
    sheet = build_winners_table(runs_under(tmp_path))
    assert sheet.records[0]["gap"] == pytest.approx(5.0)
    assert "The means are over 2 looks a seed: not every one of the last 20 rounds was looked at." in sheet.notes


def test_one_algorithm_alone_is_no_contest(tmp_path: Path) -> None:
    write_run(tmp_path / "ssl", [0.1, 0.9], "algorithm=ssl")
    with expect_error(InputError, hint=("algorithm=ssl", "algorithm=fedavg")):
        build_winners_table(runs_under(tmp_path))


def test_nothing_varied_is_no_figure(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7))
    with expect_error(InputError, limit=("C", "alpha", "K", "S")):
        draw_winners(runs_under(tmp_path))


def test_both_come_from_the_command_line(tmp_path: Path) -> None:
    met(tmp_path / "runs", (0.9, 0.9), (0.7, 0.7), "C=1")
    met(tmp_path / "runs", (0.8, 0.8), (0.9, 0.9), "C=2")
    table = CliRunner().invoke(app, ["table", "winners", str(tmp_path / "runs")])
    assert table.exit_code == 0 and "+20.00" in table.output
    figure = CliRunner().invoke(app, ["figure", "winners", str(tmp_path / "runs"), "--out", str(tmp_path / "w.svg")])
    assert figure.exit_code == 0 and "SSL ahead" in (tmp_path / "w.svg").read_text()


def test_runs_of_one_length_meet_though_longer_ones_end_higher(tmp_path: Path) -> None:
    for C, R, eta, top in ((1, 20, 0.1, 0.4), (1, 40, 0.3, 0.5), (2, 20, 0.1, 0.5)):
        for name in ("ssl", "fedavg"):
            words = (f"C={C}", f"eta={eta}", f"algorithm={name}", "seed=1234")
            write_run(tmp_path / f"{C}-{R}-{name}", {0: 0.1, R: top}, *words)
    (axis,) = draw_winners(runs_under(tmp_path)).figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2"]


def test_a_pair_that_a_longer_series_of_another_panel_shows_is_not_shown_again(tmp_path: Path) -> None:
    for C, K in ((1, 5), (1, 10), (1, 20), (2, 5), (2, 10), (2, 20), (5, 2), (10, 2)):
        met(tmp_path, (0.9,), (0.7,), f"C={C}", f"K={K}")
    pairs, _ = find_comparisons(runs_under(tmp_path))
    found = describe_once({factor: find_varied(pairs, factor) for factor in ("C", "K")})
    assert [len(series) for series in found["K"].values()] == [3, 3]
    assert [[pair.factors["C"] for pair in series] for series in found["C"].values()] == [[5, 10]]


def test_a_bar_that_leaves_the_frame_has_its_end_written_there(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7), "C=1")
    met(tmp_path, (0.1, 0.9), (0.9, 0.7), "C=2")
    (axis,) = draw_winners(runs_under(tmp_path)).figure.axes
    end = -30 - 100 / math.sqrt(2)
    assert axis.get_ylim()[0] > end
    assert f"{end:.0f}" in [text.get_text() for text in axis.texts]


def test_a_data_set_has_one_colour_and_another_number_of_clients_another_panel(tmp_path: Path) -> None:
    for data, M, C in (("mnist", 20, 1), ("mnist", 20, 2), ("digits", 20, 1), ("digits", 20, 2)):
        met(tmp_path, (0.9,), (0.7,), f"data={data}", f"M={M}", f"C={C}")
    for C in (1, 2):
        met(tmp_path, (0.9,), (0.7,), "data=digits", "M=10", f"C={C}")
    axes = draw_winners(runs_under(tmp_path)).figure.axes
    keys = [axis.get_legend() for axis in axes]
    assert sorted(key.get_title().get_text().split(",")[0] for key in keys if key) == ["M=10", "M=20"]
    found = {(words.split(",")[0], bars[0].get_color()) for axis in axes for bars, words in with_labels(axis)}
    assert len(found) == 2 == len({colour for _, colour in found})


def with_labels(axis: Any) -> list[tuple[Any, str]]:
    """What is drawn, with its name in the key."""
    return list(zip(*axis.get_legend_handles_labels(), strict=True))
