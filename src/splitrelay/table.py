"""One table in many formats: aligned text, CSV, Markdown and JSON. `reports.latex` adds LaTeX.

A cell is any value, or a tuple of `Piece`s if a part of it is bold. Tables of records also carry the numbers behind
their cells (`records`). CSV and JSON then contain these numbers instead of the printed cells.
"""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard


@dataclass(frozen=True)
class Piece:
    """A part of the text of a cell; bold marks the better value."""

    text: str
    bold: bool = False


Cell = str | tuple[Piece, ...]


@dataclass(frozen=True)
class Heading:
    """The heading of a column.

    Args:
        name: The name of the column.
        group: Adjacent columns of one group share a heading above their names.
        is_numeric: Whether the column is aligned to the right. Columns of numbers are in any case.
        is_label: Whether the column says which row it is. If no column does: those without a group, or the first.
    """

    name: str
    group: str = ""
    is_numeric: bool = False
    is_label: bool = False

    @property
    def full_name(self) -> str:
        """Group and name, for formats with one line of headings."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Table:
    """Columns, rows, and the text around them.

    Args:
        columns: Headings, or plain names.
        rows: One value for each column.
        title: A headline.
        notes: Sentences below the table.
        lead: Columns that are repeated in every block of a table that is wider than the terminal.
        caption: A sentence above the table.
        name: The label in LaTeX and JSON.
        records: The numbers behind the cells.
    """

    columns: Sequence[str | Heading]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    lead: int = 1
    caption: str = ""
    name: str = ""
    records: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def headings(self) -> list[Heading]:
        """All columns as headings."""
        return [column if isinstance(column, Heading) else Heading(column) for column in self.columns]

    @property
    def description(self) -> str:
        """The caption and all notes as one paragraph."""
        return " ".join([self.caption, *self.notes])

    def to_text(self, width: float = math.inf, emphasise: Callable[[str], str] = str) -> str:
        """Return the columns side by side; if they are wider than `width`, in blocks that repeat the leading ones."""
        cells = [[format_cell(value) for value in row] for row in self.rows]
        names = [heading.full_name for heading in self.headings]
        widths = [
            max(_count_columns(name), *(_count_columns(row[j]) for row in cells), 0) for j, name in enumerate(names)
        ]
        right = [h.is_numeric or all(_is_number(row[j]) for row in self.rows) for j, h in enumerate(self.headings)]

        def align(texts: Sequence[str], block: Sequence[int]) -> str:
            gaps = {j: " " * (widths[j] - _count_columns(texts[j])) for j in block}
            return "  ".join(gaps[j] + texts[j] if right[j] else texts[j] + gaps[j] for j in block).rstrip()

        lines = [emphasise(text) for text in (self.title, self.caption) if text]
        for number, block in enumerate(self._split(widths, width)):
            lines += [""] * (number > 0)
            lines.append(emphasise(align(names, block)))
            lines += [align(row, block) for row in cells]
        return "\n".join([*lines, *self.notes])

    def _split(self, widths: Sequence[int], limit: float) -> list[list[int]]:
        ungrouped = sum(not heading.group for heading in self.headings)
        lead = list(range(self.lead if ungrouped == len(self.headings) else ungrouped))
        blocks = [[*lead]]
        for j in range(len(lead), len(widths)):
            if sum(widths[i] + 2 for i in blocks[-1]) + widths[j] > limit and len(blocks[-1]) > len(lead):
                blocks.append([*lead])
            blocks[-1].append(j)
        return blocks

    def to_markdown(self) -> str:
        """Return the title and the caption above the table and the notes below it, each a paragraph of its own."""
        rows = [[heading.full_name for heading in self.headings]]
        rows.append(["---:" if heading.is_numeric else "---" for heading in self.headings])
        rows += [[format_cell(value, "**").replace("|", "\\|") for value in row] for row in self.rows]
        body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        headline, *more = self.title.splitlines() or [""]
        above = [f"**{headline}**" if headline else "", *more, self.caption]
        return "\n\n".join([*filter(None, above), body, *self.notes]) + "\n"

    def to_csv(self) -> str:
        """Return the numbers behind the cells, or the cells themselves; a missing value is an empty field."""
        names: list[str] = [heading.full_name for heading in self.headings]
        rows = self.rows
        if self.records:
            names = list(dict.fromkeys(name for record in self.records for name in record))
            rows = [[record.get(name) for name in names] for record in self.records]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if is_missing(value) else value for value in row] for row in rows])
        return text.getvalue()

    def to_json(self) -> str:
        """Return caption, notes and the numbers behind the cells."""
        rows = [dict(record) for record in self.records]
        return format_json({"table": self.name, "caption": self.caption, "notes": list(self.notes), "rows": rows})


def format_cell(value: object, star: str = "*") -> str:
    """Return the text of a cell: a float in five digits, a missing value as a dash, bold pieces between stars."""
    if _has_pieces(value):
        return "".join(f"{star}{piece.text}{star}" if piece.bold else piece.text for piece in value)
    if is_missing(value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def get_pieces(value: object) -> tuple[Piece, ...]:
    """Return the pieces of a cell; a plain value is one piece."""
    return value if _has_pieces(value) else (Piece(format_cell(value)),)


def _has_pieces(value: object) -> TypeGuard[tuple[Piece, ...]]:
    return isinstance(value, tuple) and all(isinstance(piece, Piece) for piece in value)


def format_json(payload: object) -> str:
    """Return a value as JSON: NaN becomes null and infinity a word, since JSON has neither."""
    return json.dumps(make_finite(payload), indent=2, ensure_ascii=False) + "\n"


def make_finite(payload: Any) -> Any:
    """Return a value without NaN and infinity; arrays become lists."""
    if hasattr(payload, "tolist"):
        return make_finite(payload.tolist())
    if isinstance(payload, dict):
        return {str(key): make_finite(value) for key, value in payload.items()}
    if isinstance(payload, list | tuple):
        return [make_finite(value) for value in payload]
    if isinstance(payload, float) and not math.isfinite(payload):
        return None if math.isnan(payload) else ("inf" if payload > 0 else "-inf")
    return payload


def is_missing(value: object) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _count_columns(text: str) -> int:
    """Return the columns that a text takes on the screen: a combining mark takes none."""
    return sum(not unicodedata.combining(letter) for letter in text)
