"""One table, four shapes: aligned text, CSV, Markdown, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from splitrelay.atomic_files import build_write_error
from splitrelay.cli.console import emphasised, say

FORMATS = ("table", "csv", "markdown", "json")


@dataclass(frozen=True)
class Table:
    """Columns, rows, and what must be said with them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    lead: int = 1  # columns repeated in every block of a table that is wider than the terminal


def ready(folder: Path) -> None:
    """Make the folder, and see that it can be written to, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise build_write_error(folder, error) from None


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format, wherever something is computed."""
    return click.option(
        "--format", "shape", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print it."
    )(command)


def emit(table: Table, payload: object, shape: str) -> None:
    """Print the table, or as JSON the payload behind it."""
    if shape == "json":
        say(json.dumps(finite(payload), indent=2, ensure_ascii=False))
    elif shape == "csv":
        say(_csv(table))
    elif shape == "markdown":
        say(_markdown(table))
    else:
        say(aligned(table))


def cell(value: object) -> str:
    """A number in five digits, nothing as a dash."""
    if _is_nothing(value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def tick(holds: bool) -> str:
    """A mark for yes or no, in letters where the output cannot carry the sign."""
    mark = "✓" if holds else "✗"
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "yes" if holds else "NO"
    return mark


def finite(payload: Any) -> Any:
    """JSON has no NaN and no infinity: NaN becomes null, infinity the word."""
    if hasattr(payload, "tolist"):
        return finite(payload.tolist())
    if isinstance(payload, dict):
        return {str(key): finite(value) for key, value in payload.items()}
    if isinstance(payload, list | tuple):
        return [finite(value) for value in payload]
    if isinstance(payload, float) and not math.isfinite(payload):
        return None if math.isnan(payload) else ("inf" if payload > 0 else "-inf")
    return payload


def aligned(table: Table, width: int | None = None) -> str:
    """Columns side by side; where they are wider than the terminal, in blocks that repeat the leading ones."""
    cells = [[cell(value) for value in row] for row in table.rows]
    widths = [max(_wide(name), *(_wide(row[j]) for row in cells), 0) for j, name in enumerate(table.columns)]
    numeric = [all(_is_numeric(row[j]) for row in table.rows) for j in range(len(table.columns))]
    blocks = _blocks(widths, _width() if width is None else width, table.lead)
    lines = [emphasised(table.title)] if table.title else []
    for number, block in enumerate(blocks):
        lines += [""] * (number > 0)
        lines.append(emphasised(_line(list(table.columns), widths, numeric, block)))
        lines += [_line(row, widths, numeric, block) for row in cells]
    return "\n".join([*lines, *table.notes])


def _is_numeric(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _line(texts: list[str], widths: list[int], numeric: list[bool], block: list[int]) -> str:
    gaps = {j: " " * (widths[j] - _wide(texts[j])) for j in block}
    return "  ".join(gaps[j] + texts[j] if numeric[j] else texts[j] + gaps[j] for j in block).rstrip()


def _wide(text: str) -> int:
    """Columns on the screen: a mark that combines with the letter before it takes none."""
    return sum(not unicodedata.combining(letter) for letter in text)


def _blocks(widths: list[int], limit: int, lead: int) -> list[list[int]]:
    blocks = [list(range(lead))]
    for j in range(lead, len(widths)):
        if sum(widths[i] + 2 for i in blocks[-1]) + widths[j] > limit and len(blocks[-1]) > lead:
            blocks.append(list(range(lead)))
        blocks[-1].append(j)
    return blocks


def _width() -> int:
    """Pipes and files have no edge; a terminal has one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if _is_nothing(value) else value for value in row] for row in table.rows])
    return text.getvalue().rstrip("\n")


def _is_nothing(value: object) -> bool:
    return value is None or value != value  # NaN is the number that differs from itself


def _markdown(table: Table) -> str:
    """The title above, the notes below, each a paragraph of its own."""
    rows = [list(table.columns), ["---"] * len(table.columns)]
    rows += [[cell(value).replace("|", "\\|") for value in row] for row in table.rows]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    headline, *more = table.title.splitlines() or [""]
    return "\n\n".join([f"**{headline}**"] * bool(headline) + [*more, body, *table.notes])
