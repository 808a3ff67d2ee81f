"""`splitrelay partition` on a small data set, and its plot in the terminal."""

import io
import json
import shlex
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.partition import partition
from splitrelay.cli.partition.terminal_plot import ASCII, BLOCKS, Marks, choose_marks, plot_counts
from splitrelay.data import load
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import load_partition
from splitrelay.data.partition_schemes import draw_partition, exdir
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


def drawn(M: int, n: int = 10) -> Partition:
    return draw_partition("exdir", np.repeat(np.arange(n), 600), M=M, C=2 if n < 20 else 10, alpha=1.0)


def lines(partition: Partition, marks: Marks = BLOCKS, width: int = 80) -> list[str]:
    return plot_counts(partition.counts.tolist(), partition.classes.tolist(), marks, width).split("\n")


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    ("M", "n"), [(5, 10), (14, 10), (15, 10), (16, 10), (33, 10), (37, 10), (38, 10), (75, 10), (500, 10), (60, 100)]
)
def test_it_fits(M: int, n: int, width: int) -> None:
    assert max(map(len, lines(drawn(M, n), width=width)[:-1])) <= width
    assert len(lines(drawn(M, n), width=width)[-1]) <= 80
    assert len(lines(drawn(M, n), width=width)) <= 24


def test_few_clients_have_their_counts_beside_the_blocks() -> None:
    partition = drawn(5)
    text = lines(partition)
    for row, label in zip(partition.counts.T, text[2:12], strict=True):
        assert [int("".join(c for c in cell if c.isdigit()) or 0) for cell in label.split()[1:]] == row.tolist()
    assert text[-1].split() == ["size", *map(str, partition.sizes.tolist())]


def test_many_clients_have_a_column_each() -> None:
    partition = drawn(60)
    for row, line in zip(partition.counts.T, lines(partition)[1:11], strict=True):
        assert [mark != "·" for mark in line[7:]] == (row > 0).tolist()


def test_too_many_clients_are_cut_and_counted() -> None:
    assert lines(drawn(500))[-1].startswith("clients 0 to 72 of 500; · none, ▁ to ")


def test_many_classes_share_rows() -> None:
    text = lines(drawn(30, 100))
    assert [line.split()[0] for line in text[1:3]] == ["0-4", "5-9"]


def test_a_level_is_never_lost() -> None:
    assert BLOCKS.mark(0, 100) == "·"
    assert (BLOCKS.mark(1, 10**6), BLOCKS.mark(10**6, 10**6)) == ("▁", "█")
    assert [BLOCKS.mark(count, 8) for count in range(1, 9)] == list("▁▂▃▄▅▆▇█")


def test_ascii_is_ascii() -> None:
    for M in (5, 60):
        assert "\n".join(lines(drawn(M), ASCII)).isascii()


@pytest.mark.parametrize(("encoding", "term", "wanted"), [
    ("utf-8", "xterm", BLOCKS), ("ascii", "xterm", ASCII), ("latin-1", "xterm", ASCII), ("utf-8", "dumb", ASCII),
])  # fmt: skip
def test_the_terminal_chooses_the_ink(encoding: str, term: str, wanted: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert choose_marks() is wanted


def test_clients_without_samples_can_be_drawn() -> None:
    partition = draw_partition("dirichlet", np.zeros(4, dtype=int), M=200, alpha=0.01)
    assert len(lines(partition)) == 4
