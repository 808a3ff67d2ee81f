"""A partition drawn in the terminal: labels down, clients across, a block as high as the cell is full."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

WIDEST, ROWS = 80, 20


@dataclass(frozen=True)
class Ink:
    """What an empty cell and the levels of a full one look like."""

    none: str
    levels: str

    def mark(self, count: int, largest: int) -> str:
        """The cell's mark: the lowest level stands for one sample already."""
        return self.levels[-(-len(self.levels) * count // largest) - 1] if count else self.none


BLOCKS = Ink("·", "▁▂▃▄▅▆▇█")
ASCII = Ink(".", ":-=+*x#@")


def ink() -> Ink:
    """Blocks where the terminal and its encoding know them."""
    try:
        (BLOCKS.none + BLOCKS.levels).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return ASCII if os.environ.get("TERM") == "dumb" else BLOCKS


def width() -> int:
    """The terminal's width, 80 columns at most: a picture is read as a whole."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def picture(counts: Sequence[Sequence[int]], classes: Sequence[object], ink: Ink, width: int) -> str:
    """Counts beside their blocks where all clients fit, one column per client else, the first ones if need be."""
    names, rows = _rows(counts, classes)
    margin = max(len("label"), len("size"), *map(len, names))
    sizes = [sum(client) for client in counts]
    cell = len(str(max(sizes))) + 2
    if margin + 1 + cell * len(counts) <= width:
        return _numbers(names, rows, sizes, ink, margin, cell)
    return _columns(names, rows, sizes, ink, margin, max(width - margin - 2, 1))


def _rows(counts: Sequence[Sequence[int]], classes: Sequence[object]) -> tuple[list[str], list[list[int]]]:
    """One row per class; neighbours share a row where there are more than twenty."""
    step = -(-len(classes) // ROWS)
    starts = range(0, len(classes), step)
    rows = [[sum(client[c : c + step]) for client in counts] for c in starts]
    last = [min(c + step, len(classes)) - 1 for c in starts]
    return [
        f"{classes[c]}" if c == z else f"{classes[c]}-{classes[z]}" for c, z in zip(starts, last, strict=True)
    ], rows


def _numbers(names: list[str], rows: list[list[int]], sizes: list[int], ink: Ink, margin: int, cell: int) -> str:
    largest = max(map(max, rows))
    lines = [f"{'label':>{margin}}  client"]
    lines.append(" " * (margin + 1) + "".join(f"{m:>{cell - 1}} " for m in range(len(sizes))))
    for name, row in zip(names, rows, strict=True):
        cells = [f"{count or '':>{cell - 2}}{ink.mark(count, largest)}" for count in row]
        lines.append(f"{name:>{margin}} " + "".join(f" {text}" for text in cells))
    lines.append(f"{'size':>{margin}} " + "".join(f"{size:>{cell - 1}} " for size in sizes))
    return "\n".join(line.rstrip() for line in lines)


def _columns(names: list[str], rows: list[list[int]], sizes: list[int], ink: Ink, margin: int, room: int) -> str:
    shown = min(len(sizes), room)
    gap = " " if 2 * len(sizes) <= room else ""
    largest = max(1, *(max(row[:shown]) for row in rows))
    lines = [f"{'label':>{margin}}  " + _ruler(shown, 1 + len(gap))]
    for name, row in zip(names, rows, strict=True):
        lines.append(f"{name:>{margin}}  " + gap.join(ink.mark(count, largest) for count in row[:shown]))
    lines.append(f"{'size':>{margin}}  " + gap.join(ink.mark(size, max(sizes)) for size in sizes[:shown]))
    lowest = max(largest // len(ink.levels), 1)
    scale = f"{ink.none} none, {ink.levels[0]} to {lowest}, {ink.levels[-1]} to {largest} samples of a label"
    lines.append(f"clients 0 to {shown - 1} of {len(sizes)}; {scale}")
    return "\n".join(line.rstrip() for line in lines)


def _ruler(shown: int, pitch: int) -> str:
    """The number of every tenth client above its column."""
    line = [" "] * (shown * pitch + 4)
    for m in range(0, shown, 10):
        line[m * pitch : m * pitch + len(str(m))] = str(m)
    return "".join(line[: shown * pitch]).rstrip()
