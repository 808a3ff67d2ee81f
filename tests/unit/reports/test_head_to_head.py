"""Two algorithms, or two folders, compared seed by seed, each at its best setting."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName
from splitrelay.reports.head_to_head import Comparison, build_winners_table, find_comparisons
from splitrelay.reports.paired_settings import build_pairs_table, pair_folders
from splitrelay.reports.winners_figure import describe_once, draw_winners, find_varied
from splitrelay.runs.records import Run, runs_under
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

SEEDS = (1234, 666, 22)


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
    assert pair.judgement.spread == pytest.approx(15 / math.sqrt(2))


@pytest.mark.parametrize(
    ("ssl", "verdict", "winner"),
    [
        ((0.9, 0.901, 0.902), "ahead", "ssl"),
        ((0.6, 0.601, 0.602), "behind", "fedavg"),
        ((0.7, 0.7002, 0.6998), "even", None),
        ((0.9, 0.71, 0.72), "undecided", None),
    ],
)
def test_verdict_needs_more_than_the_same_sign_with_every_seed(
    tmp_path: Path, ssl: tuple[float, ...], verdict: str, winner: str | None
) -> None:
    met(tmp_path, ssl, (0.7, 0.7, 0.7))
    pair = only(runs_under(tmp_path))
    assert (pair.judgement.verdict, pair.winner) == (verdict, winner)


def test_margin_decides_what_is_even(tmp_path: Path) -> None:
    met(tmp_path, (0.71, 0.7, 0.69), (0.7, 0.7, 0.7))
    assert find_comparisons(runs_under(tmp_path))[0][0].judgement.verdict == "undecided"
    assert find_comparisons(runs_under(tmp_path), margin=5)[0][0].judgement.verdict == "even"
    answer = CliRunner().invoke(app, ["table", "winners", str(tmp_path), "--margin", "5", "--format", "json"])
    (record,) = json.loads(answer.output)["rows"]
    assert (record["verdict"], record["margin"]) == ("even", 5)


def test_a_row_that_is_ahead_alone_may_be_undecided_among_others(tmp_path: Path) -> None:
    met(tmp_path / "a", (0.73, 0.74, 0.75), (0.7, 0.7, 0.7), "C=1")
    assert only(runs_under(tmp_path)).winner == "ssl"
    for K in range(2, 8):
        met(tmp_path / f"{K}", (0.9, 0.2, 0.7), (0.7, 0.7, 0.7), f"K={K}")
    pairs, _ = find_comparisons(runs_under(tmp_path))
    assert {pair.judgement.verdict for pair in pairs} == {"undecided"}


def test_median_and_collapsed_runs_stand_next_to_the_mean(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.88, 0.89), (0.7, 0.71, 0.72))
    write_run(tmp_path / "fell", [0.1, *[0.9] * 18, 0.1], "algorithm=ssl", "seed=5")
    write_run(tmp_path / "other", [0.1, *[0.7] * 19], "algorithm=fedavg", "seed=5")
    (record,) = build_winners_table(runs_under(tmp_path)).records
    assert (record["ssl_percent"], record["ssl_median"]) == (pytest.approx(82.5833), pytest.approx(88.5))
    assert (record["ssl_collapsed"], record["fedavg_collapsed"], record["seeds"]) == (1, 0, 4)


def test_optional_columns_are_means_over_the_last_rounds(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.88), (0.7, 0.71))
    columns = ("train-loss", "gradient-norm")
    sheet = build_winners_table(runs_under(tmp_path), columns=columns)
    assert sheet.records[0]["ssl_train_loss"] == pytest.approx(0.11)
    assert math.isnan(sheet.records[0]["ssl_gradient_norm"])  # not recorded
    assert any(note.endswith("gradient-norm.") and "train-loss" not in note for note in sheet.notes)
    assert [h.full_name for h in sheet.headings if "loss" in h.name] == ["SSL train loss", "FedAvg train loss"]
    with expect_error(UnknownName, name="loss"):
        build_winners_table(runs_under(tmp_path), columns=["loss"])


def test_each_algorithm_comes_with_its_best_rate(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.3, 0.3), "C=1", "eta=0.001")
    write_run(tmp_path / "better", [0.1, 0.8], "C=1", "eta=0.1", "algorithm=fedavg", "seed=1234")
    pair = only(runs_under(tmp_path))
    assert pair.fedavg.best.spec.optimiser.eta == 0.1 and pair.gaps == pytest.approx([10.0])


def test_a_seed_that_one_of_them_lacks_does_not_count(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.1), (0.7,))
    assert only(runs_under(tmp_path)).gaps == pytest.approx([20.0])


def test_every_variant_of_ssl_meets_the_one_fedavg(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.9), (0.7, 0.7), "C=1", "order=sampled")
    write_run(tmp_path / "fixed", [0.1, 0.6, 0.6], "C=1", "order=fixed", "algorithm=ssl", "seed=1234")
    pairs, _ = find_comparisons(runs_under(tmp_path))
    assert sorted(pair.gap for pair in pairs) == pytest.approx([-10, 20])


def test_the_table_counts_the_places(tmp_path: Path) -> None:
    met(tmp_path, (0.9, 0.901, 0.902), (0.7, 0.7, 0.7), "C=1")
    met(tmp_path, (0.8, 0.801, 0.802), (0.9, 0.9, 0.9), "C=2")
    sheet = build_winners_table(runs_under(tmp_path))
    assert sheet.notes[0] == "SSL is ahead in 1 of 2 settings, FedAvg in 1; 0 are even, 0 undecided."
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


def test_of_two_that_are_the_same_the_one_that_was_evaluated_more_often_counts(tmp_path: Path) -> None:
    for name in ("ssl", "fedavg"):
        few, many = {0: 0.1, 100: 0.9}, {0: 0.1, 90: 0.4, 100: 0.9}
        for folder, seen in (("a", many), ("b", few), ("c", few)):
            top = {r: value - 0.1 * (name == "fedavg" and r == 90) for r, value in seen.items()}
            write_run(tmp_path / folder / name, top, f"algorithm={name}", f"every={10 if seen is many else 100}")
    sheet = build_winners_table(runs_under(tmp_path))
    assert sheet.records[0]["gap"] == pytest.approx(5.0)
    assert "Not every round was evaluated: the means are over 2 evaluations for each seed." in sheet.notes


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
    pairs, _ = find_comparisons(runs_under(tmp_path))
    end = min(pair.judgement.interval.low for pair in pairs)
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


NAMES = ("a", "b")


def write_seeds(folder: Path, ends: tuple[float, ...], *words: str) -> None:
    for seed, end in enumerate(ends, start=1):
        write_run(folder / "-".join([str(seed), *words]).replace("=", ""), [0.1, end], *words, f"seed={seed}")


def test_settings_are_paired_by_the_keys_that_vary(tmp_path: Path) -> None:
    for K, ours, theirs in ((5, (0.9, 0.91, 0.92), (0.7, 0.7, 0.7)), (10, (0.8, 0.2, 0.5), (0.7, 0.7, 0.7))):
        write_seeds(tmp_path / "a", ours, f"K={K}", "algorithm=ssl")
        write_seeds(tmp_path / "b", theirs, f"K={K}", "algorithm=fedavg", "eta=0.3")
        write_seeds(tmp_path / "b", (0.6, 0.6, 0.6), f"K={K}", "algorithm=fedavg", "eta=0.1")
    write_seeds(tmp_path / "b", (0.6, 0.6, 0.6), "K=20", "algorithm=fedavg")
    pairs, notes = pair_folders(runs_under(tmp_path / "a"), runs_under(tmp_path / "b"), NAMES)
    assert [pair.setting for pair in pairs] == ["K=10", "K=5"]
    assert {pair.theirs.spec.optimiser.eta for pair in pairs} == {0.3}
    assert any(note.startswith("1 settings are in one folder only") for note in notes)
    records = {record["setting"]: record for record in build_pairs_table(pairs).records}
    assert (records["K=5"]["verdict"], records["K=10"]["verdict"]) == ("ahead", "undecided")
    assert records["K=5"]["gap"] == pytest.approx(21) and records["K=10"]["seeds_needed"] > 3


def test_single_settings_are_compared_whatever_their_keys(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", (0.9, 0.901, 0.902), "K=5")
    write_seeds(tmp_path / "b", (0.9, 0.9, 0.9), "K=10", "C=1")
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "json", "--margin", "1"]
    (row,) = json.loads(CliRunner().invoke(app, words).output)["rows"]
    assert (row["verdict"], row["margin"], row["setting"]) == ("even", 1, "")


def test_folders_without_a_common_setting_are_refused(tmp_path: Path) -> None:
    for folder, steps in (("a", (1, 2)), ("b", (3, 4))):
        for K in steps:
            write_seeds(tmp_path / folder, (0.5,), f"K={K}")
    with expect_error(InputError, value="a and b", hint="keys"):
        pair_folders(runs_under(tmp_path / "a"), runs_under(tmp_path / "b"), NAMES)
