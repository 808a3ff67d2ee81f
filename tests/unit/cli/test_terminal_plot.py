"""A partition in the terminal: it fits, it counts right, and it falls back to ASCII."""

import io
import sys

import numpy as np
import pytest

from splitrelay.cli.partition.terminal_plot import ASCII, BLOCKS, Marks, choose_marks, plot_counts
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition


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
