"""`compare` of two folders: settings belong together by the keys that vary within the folders."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.reports.paired_settings import build_pairs_table, pair_folders
from splitrelay.runs.records import runs_under
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

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
