"""Plot a partition in the terminal. Rows are labels, columns are clients, the height of a block shows a count."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

WIDEST, ROWS = 80, 20


@dataclass(frozen=True)
class Marks:
    """The characters for an empty cell and for increasing counts."""

    none: str
    levels: str

    def mark(self, count: int, largest: int) -> str:
        """Return the character of a cell. A single sample already has the lowest level."""
        return self.levels[-(-len(self.levels) * count // largest) - 1] if count else self.none


BLOCKS = Marks("·", "▁▂▃▄▅▆▇█")
ASCII = Marks(".", ":-=+*x#@")


def choose_marks() -> Marks:
    """Return blocks if the terminal and its encoding support them, else ASCII characters."""
    try:
        (BLOCKS.none + BLOCKS.levels).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return ASCII if os.environ.get("TERM") == "dumb" else BLOCKS


def get_width() -> int:
    """Return the width of the terminal, at most 80 columns."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def plot_counts(counts: Sequence[Sequence[int]], classes: Sequence[object], marks: Marks, width: int) -> str:
    """Plot the counts per client and class.

    If all clients fit, the numbers stand next to their blocks. Otherwise each client has one column of blocks, and
    only the first clients are shown if there are too many.
    """
    names, rows = _group_classes(counts, classes)
    margin = max(len("label"), len("size"), *map(len, names))
    sizes = [sum(client) for client in counts]
    cell = len(str(max(sizes))) + 2
    if margin + 1 + cell * len(counts) <= width:
        return _plot_numbers(names, rows, sizes, marks, margin, cell)
    return _plot_columns(names, rows, sizes, marks, margin, max(width - margin - 2, 1))


def _group_classes(counts: Sequence[Sequence[int]], classes: Sequence[object]) -> tuple[list[str], list[list[int]]]:
    """Return names and counts of the rows. With more than twenty classes, neighbouring classes share a row."""
    step = -(-len(classes) // ROWS)
    starts = range(0, len(classes), step)
    rows = [[sum(client[c : c + step]) for client in counts] for c in starts]
    last = [min(c + step, len(classes)) - 1 for c in starts]
    return [
        f"{classes[c]}" if c == z else f"{classes[c]}-{classes[z]}" for c, z in zip(starts, last, strict=True)
    ], rows


def _plot_numbers(
    names: list[str], rows: list[list[int]], sizes: list[int], marks: Marks, margin: int, cell: int
) -> str:
    largest = max(map(max, rows))
    lines = [f"{'label':>{margin}}  client"]
    lines.append(" " * (margin + 1) + "".join(f"{m:>{cell - 1}} " for m in range(len(sizes))))
    for name, row in zip(names, rows, strict=True):
        cells = [f"{count or '':>{cell - 2}}{marks.mark(count, largest)}" for count in row]
        lines.append(f"{name:>{margin}} " + "".join(f" {text}" for text in cells))
    lines.append(f"{'size':>{margin}} " + "".join(f"{size:>{cell - 1}} " for size in sizes))
    return "\n".join(line.rstrip() for line in lines)


def _plot_columns(
    names: list[str], rows: list[list[int]], sizes: list[int], marks: Marks, margin: int, room: int
) -> str:
    shown = min(len(sizes), room)
    gap = " " if 2 * len(sizes) <= room else ""
    largest = max(1, *(max(row[:shown]) for row in rows))
    lines = [f"{'label':>{margin}}  " + _build_ruler(shown, 1 + len(gap))]
    for name, row in zip(names, rows, strict=True):
        lines.append(f"{name:>{margin}}  " + gap.join(marks.mark(count, largest) for count in row[:shown]))
    lines.append(f"{'size':>{margin}}  " + gap.join(marks.mark(size, max(sizes)) for size in sizes[:shown]))
    lowest = max(largest // len(marks.levels), 1)
    scale = f"{marks.none} none, {marks.levels[0]} to {lowest}, {marks.levels[-1]} to {largest} samples of a label"
    lines.append(f"clients 0 to {shown - 1} of {len(sizes)}; {scale}")
    return "\n".join(line.rstrip() for line in lines)


def _build_ruler(shown: int, pitch: int) -> str:
    """Return a line with the number of every tenth client above its column."""
    line = [" "] * (shown * pitch + 4)
    for m in range(0, shown, 10):
        line[m * pitch : m * pitch + len(str(m))] = str(m)
    return "".join(line[: shown * pitch]).rstrip()
