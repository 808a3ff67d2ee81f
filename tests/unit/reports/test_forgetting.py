"""Accuracy per class in a figure by place in the order, and the worst class in a table."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError
from splitrelay.participation import Permutation
from splitrelay.reports.curves import compute_by_place, draw_memory
from splitrelay.reports.forgetting_table import build_classes_table, compute_class_statistics
from splitrelay.reports.seed_groups import Group, group_runs
from splitrelay.runs.records import Run, run_at, runs_under
from splitrelay.runs.spec import load_spec
from tests.support.error_fields import expect_error
from tests.support.run_directories import row, write_run

LABELS = np.repeat(np.arange(4), 30)
R = 15


def remembered(path: Path, *words: str, seed: int = 5) -> Run:
    """After each round the accuracy on a class is a tenth of the place of the last client that holds it."""
    spec = load_spec(None, ["data=mnist", "M=4", "C=1", f"seed={seed}", f"R={R}", *words])
    settings = {"M": 4, "C": spec.partition.C, "alpha": spec.partition.alpha, "seed": seed}
    partition = draw_partition("exdir", LABELS, **settings)
    rows = []
    for r in range(R + 1):
        accuracy = [0.0] * 4
        for place, client in enumerate(Permutation(4, seed)(max(r - 1, 0)), start=1):
            for c in np.unique(LABELS[partition.indices[client]]):
                accuracy[c] = place / 10
        rows.append(row(r, 0.5, test_per_class=accuracy))
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(spec.to_toml() + "\n")
    (path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return run_at(path)


@pytest.mark.parametrize("C", [1, 2])
def test_each_class_is_found_at_the_place_of_its_last_holder(tmp_path: Path, C: int) -> None:
    for seed in (5, 6):
        remembered(tmp_path / str(seed), f"C={C}", seed=seed)
    (group,), _ = group_runs(runs_under(tmp_path))
    found = compute_by_place(group)
    assert found.rounds.tolist() == [1, 2, 3, 4] and found.values.shape == (2, 4)
    seen = np.isfinite(found.values)
    assert found.values[seen] == pytest.approx(np.tile([10.0, 20, 30, 40], (2, 1))[seen]) and seen[:, 3].all()


def test_only_the_last_rounds_count(tmp_path: Path) -> None:
    run = remembered(tmp_path / "one")
    rows = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    spoilt = [{**each, "test_per_class": [None, 0.9, 0.9, 0.9]} if each["round"] <= R - 2 else each for each in rows]
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in spoilt))
    (group,), _ = group_runs(runs_under(tmp_path))
    assert compute_by_place(group, last=2).values[0] == pytest.approx([10, 20, 30, 40])
    assert compute_by_place(group, last=3).values[0] != pytest.approx([10, 20, 30, 40])


@pytest.mark.parametrize("rows", [[], [row(0, 0.1)], [row(0, 0.1), row(1, 0.5, test_per_class=None)]])
def test_a_run_without_evaluations_of_classes_is_named(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    run = remembered(tmp_path / "one")
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with expect_error(InputError, what=str(run.path)):
        compute_by_place(Group((run_at(run.path),)))


def test_it_is_drawn_with_a_line_for_each_algorithm(tmp_path: Path) -> None:
    for name in ("ssl", "fedavg"):
        remembered(tmp_path / name, f"algorithm={name}")
    (axes,) = draw_memory(runs_under(tmp_path)).figure.axes
    assert [line.get_xdata()[-1] for line in axes.get_lines()] == [4, 4]  # type: ignore[index]
    said = CliRunner().invoke(app, ["figure", "memory", str(tmp_path), "--out", str(tmp_path / "memory.svg")])
    assert said.exit_code == 0 and (tmp_path / "memory.svg").exists()


@pytest.mark.parametrize("words", [("S=2",), ("form=balanced",), ("partition=iid",), ("order=fixed",)])
def test_where_the_spec_does_not_tell_who_held_what_it_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    remembered(tmp_path / "one", *words)
    with expect_error(InputError, value=True, limit="partition=exdir form=paper order=permutation S=M"):
        draw_memory(runs_under(tmp_path))


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
