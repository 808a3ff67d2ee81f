"""`splitrelay partition ...` from the outside, on a small set of one's own."""

import json
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.partition import partition
from splitrelay.data import load
from splitrelay.data.partition_io import load_partition
from splitrelay.data.partition_schemes import exdir
from splitrelay.errors import InputError, OutputError, SplitrelayError, UnknownName
from tests.support.error_fields import expect_error

LABELS = np.tile(np.arange(5), 24)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """120 images of 5 classes to train on; the same to test on."""
    monkeypatch.chdir(tmp_path)
    x = np.arange(120 * 16, dtype=np.uint8).reshape(120, 1, 4, 4)
    np.savez("own.npz", x=x, y=LABELS, x_test=x[:10], y_test=LABELS[:10])
    return "data=own.npz"


def call(*words: str) -> Result:
    result = CliRunner().invoke(partition, words)
    if isinstance(result.exception, SplitrelayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def trained_on(data: str) -> np.ndarray:
    return load(data.removeprefix("data=")).train.y


def test_it_draws_what_the_function_draws(data: str) -> None:
    call("exdir", data, "M=6", "C=2", "alpha=0.5", "seed=3", "--out", "p.npz")
    assert load_partition(Path("p.npz")) == exdir(trained_on(data), M=6, C=2, alpha=0.5, seed=3)


def test_json_tells_everything(data: str) -> None:
    told = json.loads(call("exdir", data, "M=6", "C=1", "form=balanced", "min_size=2", "--format", "json").stdout)
    assert told["settings"] == {
        "data": "own.npz", "M": 6, "C": 1, "alpha": 10.0, "form": "balanced", "seed": 1, "min_size": 2,
    }  # fmt: skip
    assert told["measures"]["one_class_clients"] == 6
    assert np.sum(told["counts"]) == told["N"] == len(trained_on(data))


@pytest.mark.parametrize("kind", ["exdir", "iid", "dirichlet", "pathological", "shards"])
def test_every_kind_prints_a_picture_and_a_table(kind: str, data: str) -> None:
    printed = call(kind, data).stdout
    assert "label  client" in printed
    assert "samples per client" in printed
    assert "One-class clients:" in printed


def test_figures_are_written_where_they_are_asked_for(data: str) -> None:
    call("iid", data, "--figure", "heat.svg", "--bubbles", "bubbles.svg")
    assert Path("heat.svg").read_text().count("samples of a label") == 1
    assert "samples" in Path("bubbles.svg").read_text()


def test_a_saved_partition_is_shown_as_it_was_drawn(data: str) -> None:
    drawn = call("exdir", data, "--out", "p.npz").stdout
    assert call("show", "p.npz").stdout == drawn


def test_a_json_file_needs_its_data_set(data: str) -> None:
    call("exdir", data, "--out", "p.json")
    with expect_error(InputError, hint="data=NAME"):
        call("show", "p.json")
    assert "samples per client" in call("show", "p.json", data).stdout


def test_export_writes_a_folder_per_client(data: str) -> None:
    call("exdir", data, "M=4", "C=2", "--out", "p.npz")
    call("export", "p.npz", "--to", "clients")
    y = np.concatenate([np.load(path)["y"] for path in sorted(Path("clients").glob("client-*/data.npz"))])
    assert np.bincount(y).tolist() == np.bincount(trained_on(data)).tolist()


def test_the_examples_of_the_help_follow_each_other(data: str) -> None:
    for name in ("exdir", "show", "export"):
        command = partition.get_command(click.Context(partition), name)
        assert isinstance(command, Command)
        call(*shlex.split(command.example.replace("data=digits", data))[2:])
    assert Path("p.pdf").exists() and Path("clients/client-0009/data.npz").exists()


def test_the_panels_are_one_figure_and_twelve_rows(data: str) -> None:
    told = call("panels", data, "C=1,2,3,5", "--figure", "panels.svg", "--format", "json")
    rows = json.loads(told.stdout)
    assert [(row["C"], row["alpha"]) for row in rows][:4] == [(1, 100.0), (1, 10.0), (1, 1.0), (2, 100.0)]
    assert Path("panels.svg").read_text().count("ExDir(") >= 12


def test_nothing_is_printed_when_nothing_can_be_written(data: str) -> None:
    for words in (["--out", "p.csv"], ["--figure", "p.csv"], ["--out", "own.npz/p.json"]):
        result = CliRunner().invoke(partition, ["exdir", data, *words])
        assert isinstance(result.exception, InputError | OutputError)
        assert result.stdout == ""


def test_a_wrong_key_gets_the_nearest(data: str) -> None:
    with expect_error(UnknownName, name="alhpa", hint="alpha"):
        call("exdir", data, "alhpa=3")


@pytest.mark.parametrize("kind", ["exdir", "iid", "dirichlet", "pathological", "shards", "panels", "show", "export"])
def test_help_has_an_example(kind: str) -> None:
    assert f"splitrelay partition {kind} " in call(kind, "--help").stdout
