"""`splitrelay reproduce`: what it takes on, what it leaves for later, and both numbers at the end."""

from pathlib import Path
from shutil import copy

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.cli.reproduce import _build_command
from splitrelay.errors import InputError, UnknownName
from splitrelay.paper.budget import choose_within, parse_duration
from splitrelay.paper.plan import find_units
from splitrelay.randomness import Purpose, rng
from splitrelay.reports.seed_groups import find_differing_keys
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

CELL = "cross-device-mnist-c2-k10"


def test_the_cross_device_cells_are_all_there_with_three_seeds() -> None:
    found = find_units(["cross-device"])
    assert len(found) == 15 * 3 and {len(unit.points) for unit in found} == {2}
    assert found[0].name == "cross-device-mnist-c1-k10, seed 1234"  # cheap, and where the paper's claim is strongest
    assert [unit.name.rpartition(" ")[2] for unit in found].index("666") == 15  # one seed of all before a second of any


def test_a_cell_named_twice_is_run_once() -> None:
    assert len(find_units([CELL, "cross-device", CELL], seeds=[1234])) == 15


def test_rates_and_clipping_bring_their_own_points() -> None:
    assert {len(unit.points) for unit in find_units(["rates"])} == {7}
    points = [point for unit in find_units(["clipping"]) for point in unit.points]
    assert len(points) == 16 and {point.spec.optimiser.clip for point in points} == {10.0, None}


def test_lenet_is_cut_at_every_layer_but_the_last() -> None:
    (unit,) = find_units(["cuts"])
    cuts = [point.spec.model.cut for point in unit.points]
    assert cuts[0] == "conv1" and "fc3" not in cuts and len(set(cuts)) == len(cuts) == 11


def test_each_doubt_changes_one_thing() -> None:
    """In FedAvg's cell with one class a client, at the paper's rate; the first changes nothing."""
    plain, *doubts = [point.spec for point in find_units(["reasons"])[0].points]
    assert (plain.algorithm, plain.partition.C, plain.optimiser.eta) == ("fedavg", 1, 0.001)
    changed = [find_differing_keys([plain, doubt]) for doubt in doubts]
    assert len(changed) == 5 == len({key for (key,) in changed})


def test_vgg_runs_as_long_as_is_affordable_and_no_longer() -> None:
    specs = [point.spec for unit in find_units(["vgg11"]) for point in unit.points]
    assert {(spec.model.name, spec.R) for spec in specs} == {("vgg11", 150)} and len(specs) == 4
    assert {spec.engine for spec in specs} == {"fast"}


def test_words_go_on_top() -> None:
    spec = find_units([CELL], [22], ["R=7", "protocol=authors"])[0].points[0].spec
    assert (spec.R, spec.seed, spec.partition.form) == (7, 22, "balanced")


def test_a_budget_takes_the_most_telling_that_fit() -> None:
    found = find_units(["cross-silo"], [1234])
    costs = [5.0, 100.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert choose_within(found, costs, 7.0) == [found[0], found[2], found[3]]
    assert choose_within(found, costs, None) == found


@pytest.mark.parametrize(("text", "seconds"), [("2h", 7200), ("1h30m", 5400), ("90s", 90), ("0.5h", 1800)])
def test_budgets_are_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["2", "two hours", "2h3", ""])
def test_other_budgets_are_refused(text: str) -> None:
    with expect_error(InputError, value=repr(text), hint="--budget"):
        parse_duration(text)


def test_an_unknown_name_gets_the_nearest() -> None:
    with expect_error(UnknownName, name="cross-silos", hint="cross-silo"):
        find_units(["cross-silos"])


def test_a_cell_end_to_end_and_not_twice(tmp_path: Path) -> None:
    """On a small set of one's own: the plan, two runs, the table with the paper's numbers, the figure."""
    y = np.arange(300) % 3
    x = np.clip(80 * y[:, None, None] + rng(4, Purpose.INSTANCES).normal(0, 30, (300, 8, 8)) + 40, 0, 255)
    np.savez(tmp_path / "own.npz", x=x.astype(np.uint8), y=y)
    small = [f"data={tmp_path}/own.npz", "model=lenet-small", "M=6", "S=2", "R=2", "K=1"]
    words = ["reproduce", CELL, *small, "--seeds", "1", "--out", str(tmp_path / "paper")]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    assert "to be run now" in first.output and (tmp_path / "paper/cells.md").exists()
    assert (tmp_path / "paper/cells.png").exists() and len(list((tmp_path / "paper/cells").glob("*/spec.toml"))) == 2
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0 and "to be run now: 0 s" in again.output
    published = CliRunner().invoke(app, ["publish", str(tmp_path / "paper"), "--to", str(tmp_path / "evidence")])
    assert published.exit_code == 0, published.output
    redrawn = CliRunner().invoke(
        app, ["reproduce", "--from", str(tmp_path / "evidence"), "--out", str(tmp_path / "redrawn")]
    )
    assert redrawn.exit_code == 0, redrawn.output
    assert (tmp_path / "redrawn/cells.md").read_text() == (tmp_path / "paper/cells.md").read_text()


def test_a_run_that_diverged_is_published_with_the_reason(tmp_path: Path) -> None:
    words = ["run", "R=3", "eta=1e30", "engine=reference", "--out", str(tmp_path / "runs/far")]
    assert CliRunner().invoke(app, words).exception is not None
    published = CliRunner().invoke(app, ["publish", str(tmp_path / "runs"), "--to", str(tmp_path / "evidence")])
    assert published.exit_code == 0, published.output
    assert "at eta=1e+30" in (tmp_path / "evidence/far/diverged.txt").read_text()


def test_records_are_never_drawn_beside_runs_that_they_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for home in ("evidence/cells/ssl", "results/paper/cells/ssl"):
        write_run(tmp_path / home, [0.1, 0.9], "C=1")
    before = sorted((tmp_path / "results").rglob("*"))
    error = CliRunner().invoke(app, ["reproduce", "--from", "evidence", "--out", "results/paper"]).exception
    assert isinstance(error, InputError) and "results/paper/cells holds runs" in str(error)
    assert sorted((tmp_path / "results").rglob("*")) == before
    answer = CliRunner().invoke(app, ["-q", "reproduce", "--from", "evidence"])
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "results/evidence/cells.md").exists() and not (tmp_path / "results/paper/cells.md").exists()
    assert CliRunner().invoke(app, ["-q", "reproduce", "--from", "results/paper"]).exit_code == 0
    assert (tmp_path / "results/paper/cells.md").exists()


@pytest.mark.parametrize("words", [["cross-silo"], ["--plan"]])
def test_records_are_shown_whole(tmp_path: Path, words: list[str]) -> None:
    error = CliRunner().invoke(app, ["reproduce", *words, "--from", str(tmp_path)]).exception
    assert isinstance(error, InputError) and "Leave out LIST and --plan" in str(error)


def test_the_way_on_has_every_option(tmp_path: Path) -> None:
    again = _build_command([CELL, "R=3"], tmp_path, device="cuda", budget="2h", seeds=1, jobs=1)
    assert again == f"splitrelay reproduce {CELL} R=3 --seeds 1 --jobs 1 --budget 2h --device cuda --out {tmp_path}"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["reproduce", "--from", "evidnce"]).exception
    assert isinstance(error, InputError) and list(tmp_path.iterdir()) == []


def test_nothing_to_redraw_is_said(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["reproduce", "--from", str(tmp_path), "--out", str(tmp_path / "out")]).exception
    assert "no records in" in str(error)


def test_records_of_the_convex_case_are_drawn_each_under_its_name(tmp_path: Path) -> None:
    runner, records = CliRunner(), tmp_path / "evidence/convex"
    small = ["convex", "C=10", "R=2", "eta=0.1", "--no-figures", "--out", str(records)]
    assert runner.invoke(app, ["-q", *small]).exit_code == 0
    copy(records / "convex-digits.json", records / "convex-full.json")
    answer = runner.invoke(app, ["-q", "reproduce", "--from", str(records.parent), "--out", str(tmp_path / "out")])
    assert answer.exit_code == 0, answer.output
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == ["convex-digits", "convex-full"]
