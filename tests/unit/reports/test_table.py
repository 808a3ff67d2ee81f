"""Tables from records: the numbers are those worked out by hand, and what is missing is said."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.main import app
from splitrelay.errors import InputError, SplitrelayError, UnknownName
from splitrelay.reports import (
    Group,
    build_accuracy_table,
    build_rates_table,
    build_runs_table,
    find_differing_keys,
    group_runs,
    summarise_group,
)
from splitrelay.reports.seed_groups import find_label_keys
from splitrelay.reports.table_layout import choose_runs
from splitrelay.runs.records import runs_under
from splitrelay.runs.spec import load_spec
from splitrelay.table import Table, format_cell
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

SEEDS = (1234, 666, 22)


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> SplitrelayError:
    error = asked(*words).exception
    assert isinstance(error, SplitrelayError)
    return error


def cells(sheet: Table, *start: str) -> list[str]:
    """The printed cells of the row that begins with these, blanks of repeated labels filled in."""
    above = [""] * len(start)
    for row in sheet.rows:
        texts = [format_cell(cell) for cell in row]
        above = [text or before for text, before in zip(texts, above, strict=False)]
        if tuple(above) == start:
            return texts[len(start) :]
    raise AssertionError(start)


# the three numbers of a cell


def test_mean_and_pooled_spread_over_seeds_and_the_last_rounds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", [0.1, *[0.9] * 8, 0.2, 0.4], "seed=1234"),
        write_run(tmp_path / "b", [0.1, *[0.9] * 8, 0.6, 0.8], "seed=666"),
    ]
    found = summarise_group(Group(tuple(runs)), last=2)
    assert found.mean == pytest.approx(0.5)  # of 0.2 0.4 0.6 0.8
    assert found.spread == pytest.approx(math.sqrt((0.09 + 0.01 + 0.01 + 0.09) / 3))
    assert found.evaluations == 2


def test_the_evaluation_before_the_first_round_never_counts(tmp_path: Path) -> None:
    found = summarise_group(Group((write_run(tmp_path / "a", [0.7], "R=1"),)))
    assert math.isnan(found.mean) and found.evaluations == 0


def test_the_last_rounds_are_rounds_not_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", {0: 0.0, 20: 0.1, 40: 0.2, 60: 0.6, 65: 0.7, 70: 0.8}, "every=5")
    assert summarise_group(Group((run,)), last=10).mean == pytest.approx(0.75)


@pytest.mark.parametrize(("words", "rounds"), [(("C=1",), 2), (("C=2",), None), (("C=2", "K=20"), None)])
def test_rounds_to_the_goal_are_on_the_mean_curve(tmp_path: Path, words: tuple[str, ...], rounds: int | None) -> None:
    """Seeds alone reach 30 % in rounds 1 and 3; their mean, 0.05 0.2 0.3 0.5, in round 2."""
    runs = (
        write_run(tmp_path / "a", [0.1, 0.4, 0.5, 0.4], "seed=1234", *words),
        write_run(tmp_path / "b", [0.0, 0.0, 0.1, 0.6], "seed=666", *words),
    )
    assert summarise_group(Group(runs)).rounds == rounds


def test_a_goal_of_ones_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [0.1, 0.4, 0.5, 0.4], "C=2")
    assert summarise_group(Group((run,)), goal=0.5).rounds == 2


# runs that belong together


def test_keys_that_differ_in_the_specs_order() -> None:
    specs = [load_spec(None, words) for words in (["eta=0.1"], ["eta=0.2", "algorithm=splitfed-v2"], ["seed=3"])]
    assert find_differing_keys(specs) == ["algorithm", "seed", "optimiser.eta"]
    assert find_differing_keys(specs, ["seed"]) == ["algorithm", "optimiser.eta"]
    assert find_differing_keys(specs[:1]) == find_differing_keys([]) == []


def test_a_label_needs_the_keys_that_do_not_follow_from_the_algorithm() -> None:
    words = (["C=1", "eta=0.1"], ["C=2", "eta=0.1", "seed=3", "R=7"], ["C=1", "eta=0.3", "algorithm=fedavg"])
    specs = [load_spec(None, list(each)) for each in words]
    assert find_label_keys(specs) == ["partition.C"]  # eta follows from the algorithm
    assert find_label_keys(specs[::2]) == find_label_keys([]) == []
    assert find_label_keys([*specs, load_spec(None, ["C=1", "eta=0.2"])]) == ["partition.C", "optimiser.eta"]


def test_a_group_is_what_differs_in_seed_rounds_and_evaluations_alone(tmp_path: Path) -> None:
    for seed in reversed(SEEDS):
        write_run(tmp_path / f"s{seed}", [0.1, 0.5], f"seed={seed}")
    write_run(tmp_path / "eta", [0.1, 0.5], "eta=0.7")
    write_run(tmp_path / "longer", {0: 0.1, 2: 0.5}, "seed=7", "every=2")
    groups, notes = group_runs(runs_under(tmp_path))
    assert sorted(group.seeds for group in groups) == [(1234,), (1234, 666, 22, 7)]
    assert notes == []


def test_of_two_runs_that_are_the_same_the_longer_one_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "long", [0.1, 0.5, 0.9], "R=2")
    write_run(tmp_path / "short", [0.1, 0.5], "R=2")
    (group,), notes = group_runs(runs_under(tmp_path))
    assert [run.path.name for run in group.runs] == ["long"]
    assert notes == ["There twice, the longer one counted: short (1 of 2)."]


def test_an_unfinished_run_does_not_count_beside_finished_ones(tmp_path: Path) -> None:
    write_run(tmp_path / "done", [0.1, 0.5, 0.9], "R=2", "seed=1234")
    write_run(tmp_path / "going", [0.1, 0.2], "R=2", "seed=666")
    write_run(tmp_path / "new", [], "R=2", "seed=22")
    (group,), notes = group_runs(runs_under(tmp_path))
    assert group.seeds == (1234,)
    assert notes == ["Without a row yet: new (0 of 2).", "Not run to the last round, not counted: going (1 of 2)."]


def test_where_all_are_unfinished_they_count_as_far_as_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2, 0.4], "R=9", "seed=1234")
    write_run(tmp_path / "b", [0.1, 0.4], "R=9", "seed=666")
    (group,), notes = group_runs(runs_under(tmp_path))
    assert summarise_group(group).mean == pytest.approx(0.3)  # round 1 alone, which both have
    assert notes == ["Not run to the last round, counted as far as they are: a (2 of 9), b (1 of 9)."]


def test_runs_without_a_row_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], "R=2")
    with expect_error(InputError, value=None, limit=None, hint=True):
        build_accuracy_table(runs_under(tmp_path))


# the paper's accuracy table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MNIST, K = 10: both algorithms on both partitions; SSL on ExDir(2, 10) with one seed only."""
    for C, algorithm, ends in ((1, "fedavg", 0.5), (1, "ssl", 0.9), (2, "fedavg", 0.8), (2, "ssl", 0.7)):
        for seed in SEEDS if (C, algorithm) != (2, "ssl") else SEEDS[:1]:
            words = (f"C={C}", f"algorithm={algorithm}", f"seed={seed}", "eta=0.01")
            write_run(tmp_path / "runs" / f"{algorithm}-{C}-{seed}", [0.1, 0.2, *[ends] * 9], *words)
    return tmp_path / "runs"


ROW = ("cross-device, M=500, S=10", "MNIST", "10")


def test_the_accuracy_table_has_the_papers_layout_and_the_better_values_bold(folder: Path) -> None:
    sheet = build_accuracy_table(runs_under(folder), last=2)
    assert [head.full_name for head in sheet.headings][3:] == [
        "ExDir(1, 10) FedAvg", "ExDir(1, 10) SSL", "ExDir(2, 10) FedAvg", "ExDir(2, 10) SSL",
    ]  # fmt: skip
    assert cells(sheet, *ROW) == [
        "50.00 ± 0.00 (*2*)", "*90.00* ± 0.00 (*2*)", "*80.00* ± 0.00 (*2*)", "70.00 ± 0.00 (-)",
    ]  # fmt: skip


def test_fewer_seeds_than_the_papers_are_said(folder: Path) -> None:
    sheet = build_accuracy_table(runs_under(folder), last=2)
    assert sheet.notes == ["One seed instead of 3: SSL on MNIST ExDir(2, 10), M=500, K=10, η=0.01 (seed 1234)."]
    assert sheet.notes[0] in sheet.to_markdown() and sheet.notes[0] in sheet.description


def test_the_papers_values_stand_below_ours(folder: Path) -> None:
    sheet = build_accuracy_table(runs_under(folder), beside=True, last=2)
    assert cells(sheet, *ROW, "paper") == [
        "56.43 ± 11.54 (274)", "*98.84* ± 0.19 (*16*)", "98.15 ± 0.13 (25)", "*98.57* ± 0.36 (*10*)",
    ]  # fmt: skip


def test_a_setting_that_the_paper_does_not_have_has_no_papers_value(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.9], "K=7")
    assert cells(build_accuracy_table(runs_under(tmp_path), beside=True), *ROW[:2], "7", "paper") == [""]


def test_cross_device_stands_above_cross_silo_and_K_goes_up(tmp_path: Path) -> None:
    for name, words in {"a": ("M=10", "K=5"), "b": ("K=20",), "c": (), "d": ("data=fashion-mnist",)}.items():
        write_run(tmp_path / name, [0.1, 0.9], *words)
    rows = [[format_cell(cell) for cell in row[:3]] for row in build_accuracy_table(runs_under(tmp_path)).rows]
    assert rows == [
        ["cross-device, M=500, S=10", "MNIST", "10"],
        ["", "", "20"],
        ["", "Fashion-MNIST", "10"],
        ["cross-silo, M=10", "MNIST", "5"],
    ]


def test_other_algorithms_and_variants_get_columns_of_their_own(tmp_path: Path) -> None:
    for name, words in {"a": ("order=fixed",), "b": ("order=sampled",), "c": ("algorithm=scaffold",)}.items():
        write_run(tmp_path / name, [0.1, 0.9], *words)
    heads = [head.name for head in build_accuracy_table(runs_under(tmp_path)).headings[3:]]
    assert heads == ["SSL (order=fixed)", "SSL (order=sampled)", "SCAFFOLD"]
    turned = build_accuracy_table(runs_under(tmp_path), by_algorithm=True)
    assert [format_cell(row[0]) for row in turned.rows] == heads


def test_one_value_has_no_spread(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.9], "C=2")
    assert cells(build_accuracy_table(runs_under(tmp_path)), *ROW) == ["90.00 (1)"]


# best rates


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """Five rates with seed 1234, the best of them, 0.03, with a second seed that is bad; the largest diverged."""
    for eta, end in ((0.003, 0.5), (0.01, 0.7), (0.03, 0.9), (0.1, 0.8)):
        write_run(tmp_path / "runs" / f"{eta}", [0.1, end, end], f"eta={eta}", "R=2")
    write_run(tmp_path / "runs" / "again", [0.1, 0.3, 0.3], "eta=0.03", "R=2", "seed=666")
    write_run(tmp_path / "runs" / "diverged", [0.1, 0.99], "eta=0.3", "R=2")
    return tmp_path / "runs"


def test_rates_are_chosen_with_seeds_that_are_not_reported(searched: Path) -> None:
    (choice,) = choose_runs(group_runs(runs_under(searched))[0])
    assert choice.best.spec.optimiser.eta == 0.03 and choice.seeds == (1234,)
    assert choice.best.seeds == (666,) and not choice.reports_tuning_seeds
    assert not choice.on_edge
    sheet = build_accuracy_table(runs_under(searched))
    assert sheet.records[0]["accuracy_percent"] == pytest.approx(30) and sheet.records[0]["seeds"] == "666"


def write_grid(folder: Path, scores: dict[tuple[float, str], tuple[float, ...]], **more: Any) -> Path:
    for (eta, clip), ends in scores.items():
        for seed, end in enumerate(ends, start=1):
            write_run(folder / f"{eta}-{clip}-{seed}", [0.1, end], f"eta={eta}", f"clip={clip}", f"seed={seed}", **more)
    return folder


def test_tuning_seeds_are_left_out_of_the_report(tmp_path: Path) -> None:
    write_grid(tmp_path, {(0.1, "none"): (0.5, 0.5, 0.9, 0.8), (0.2, "none"): (0.6, 0.6, 0.1, 0.2)})
    (choice,) = choose_runs(group_runs(runs_under(tmp_path))[0], tuning=(1, 2))
    assert (choice.best.spec.optimiser.eta, choice.best.seeds) == (0.2, (3, 4))
    (everything,) = choose_runs(group_runs(runs_under(tmp_path))[0])
    assert everything.best.spec.optimiser.eta == 0.1 and everything.reports_tuning_seeds
    notes = build_accuracy_table(runs_under(tmp_path)).notes
    assert any("tuning seeds are also reported" in note for note in notes)
    answer = asked("table", "accuracy", str(tmp_path), "--tuning-seeds", "1,2", "--format", "json")
    assert json.loads(answer.output)["rows"][0]["seeds"] == "3 4"


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({(0.1, "none"): (0.80, 0.82), (0.2, "none"): (0.79, 0.85)}, (0.1, None)),  # within one standard error
        ({(0.1, "none"): (0.50, 0.52), (0.2, "none"): (0.79, 0.85)}, (0.2, None)),
        ({(0.1, "none"): (0.80, 0.84), (0.2, "10"): (0.80, 0.82)}, (0.2, 10.0)),  # clipping first
    ],
)
def test_one_standard_error_favours_clipping_and_smaller_rates(
    tmp_path: Path, scores: dict[tuple[float, str], tuple[float, ...]], chosen: tuple[float, float | None]
) -> None:
    (choice,) = choose_runs(group_runs(runs_under(write_grid(tmp_path, scores)))[0])
    assert (choice.best.spec.optimiser.eta, choice.best.spec.optimiser.clip) == chosen


def test_rates_are_chosen_by_validation_where_all_runs_have_it(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.9], "eta=0.1", validation_accuracy=0.2)
    write_run(tmp_path / "b", [0.1, 0.5], "eta=0.2", validation_accuracy=0.6)
    assert build_rates_table(runs_under(tmp_path)).records[0]["rule"] == "validation"
    write_run(tmp_path / "c", [0.1, 0.3], "eta=0.3")
    sheet = build_rates_table(runs_under(tmp_path))
    assert sheet.records[0]["rule"] == "test" and any("not on validation data" in note for note in sheet.notes)


@pytest.mark.parametrize("gone", [("0.1", "diverged"), ("0.003", "0.01")])
def test_a_best_rate_on_the_grids_edge_is_marked(searched: Path, gone: tuple[str, ...]) -> None:
    runs = [run for run in runs_under(searched) if run.path.name not in gone]
    sheet = build_rates_table(runs)
    assert cells(sheet, *ROW) == ["0.03†"]
    assert any("on the edge of the grid" in note for note in sheet.notes)


def test_a_rate_that_was_not_run_to_its_end_is_never_the_best(searched: Path) -> None:
    sheet = build_rates_table(runs_under(searched), beside=True)
    assert cells(sheet, *ROW) == ["0.03 [0.05]"]
    assert "0.3: 99.00 (ends at round 1)" in str(sheet.records[0]["tried"])


def test_a_run_that_diverged_in_its_first_round_has_no_score(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1], "eta=0.5", "R=9")
    sheet = build_rates_table(runs_under(tmp_path))
    assert sheet.records[0]["accuracy_percent"] is None and "0.5: no score" in str(sheet.records[0]["tried"])
    assert cells(build_accuracy_table(runs_under(tmp_path)), *ROW) == ["-"]
    assert json.loads(sheet.to_json())["rows"][0]["tried"].endswith("(ends at round 0)")


def test_of_rates_that_are_as_good_the_smallest_is_taken(tmp_path: Path) -> None:
    for eta in (0.3, 0.1, 0.2):
        write_run(tmp_path / f"{eta}", [0.1, 0.5], f"eta={eta}")
    assert build_rates_table(runs_under(tmp_path)).records[0]["eta"] == 0.1


def test_rates_by_validation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.9], "eta=0.1", validation_accuracy=0.2)
    write_run(tmp_path / "b", [0.1, 0.5], "eta=0.2", validation_accuracy=0.6)
    assert build_rates_table(runs_under(tmp_path), rule="validation").records[0]["eta"] == 0.2
    assert build_rates_table(runs_under(tmp_path), rule="test").records[0]["eta"] == 0.1


# one row a run


def test_the_table_of_runs_shows_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5], "eta=0.1")
    write_run(tmp_path / "b", [0.1, 0.7], "eta=0.2", "R=5")
    write_run(tmp_path / "c", [], "eta=0.2", "R=5", "seed=1")
    sheet = build_runs_table(runs_under(tmp_path))
    assert [head.name for head in sheet.headings][:3] == ["algorithm", "seed", "eta"]
    assert [row["rounds"] for row in sheet.records] == ["1", "1 of 5", "none"]
    assert [row["accuracy (%)"] for row in sheet.records][:2] == [50.0, 70.0]
    assert [row["MB"] for row in sheet.records] == [1.5, 1.5, None]
    assert sheet.notes == ["2 of 3 runs have not reached their last round."]
    assert [format_cell(row[-1]) for row in sheet.rows] == ["a", "b", "c"]  # in the folder that they share


# shapes


def test_csv_holds_the_numbers_behind_the_cells(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(build_accuracy_table(runs_under(folder), last=2).to_csv())))
    assert len(rows) == 4
    last = rows[-1]
    assert (last["algorithm"], last["partition"]) == ("ssl", "ExDir(2, 10)")
    assert (last["accuracy_percent"], last["rounds_to_goal"], last["seeds"]) == ("70.0", "", "1234")
    assert last["paper_accuracy_percent"] == "98.57"


def test_markdown_has_a_bar_for_every_column(folder: Path) -> None:
    lines = [
        line for line in build_accuracy_table(runs_under(folder), last=2).to_markdown().splitlines() if line[:1] == "|"
    ]
    assert len(lines) == 3 and {line.count("|") for line in lines} == {8}


# the command


@pytest.mark.parametrize("ending", ["tex", "md", "csv", "json"])
def test_a_table_is_written_with_its_runs_beside_it(folder: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"table.{ending}"
    assert asked("table", "accuracy", str(folder), "--last", "2", "--out", str(out)).exit_code == 0
    first = out.read_text()
    about = json.loads((tmp_path / f"table.{ending}.json").read_text())
    assert len(about["runs"]) == 10 and about["runs"][0]["hash"] and "One seed instead of 3" in about["caption"]
    out.unlink()
    assert asked(*about["command"].split()[1:]).exit_code == 0
    assert out.read_text() == first


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("acuracy",), UnknownName),
        (("accuracy", "--tune", "tets"), UnknownName),
        (("accuracy", "--tune", "validation"), InputError),
        (("accuracy", "--out", "table.doc"), InputError),
        (("runs", "--out", "table.md", "--format", "csv"), InputError),
        (("runs", "--out", "table.md", "--width", "300"), InputError),
        (("runs", "--beside", "paper"), InputError),
    ],
)
def test_wrong_options_raise_an_error_of_one_line(folder: Path, words: tuple[str, ...], kind: type) -> None:
    error = refused("table", words[0], str(folder), *words[1:])
    assert isinstance(error, kind) and "\n" not in str(error)


@pytest.mark.parametrize("shape", ["table", "csv", "markdown", "json", "latex"])
@pytest.mark.parametrize("kind", ["accuracy", "algorithms", "rates", "runs"])
def test_every_kind_prints_in_every_shape(folder: Path, kind: str, shape: str) -> None:
    answer = asked("table", kind, str(folder), "--format", shape)
    assert answer.exit_code == 0 and answer.stdout.strip()
