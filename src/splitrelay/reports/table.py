"""One table, many shapes: LaTeX (booktabs), Markdown, CSV and JSON of the numbers behind it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.reports.latex_typeset import latex


@dataclass(frozen=True)
class Piece:
    """A few letters of a cell; bold marks the better value."""

    text: str
    bold: bool = False


Entry = tuple[Piece, ...]


@dataclass(frozen=True)
class Head:
    """A column's name, the group of columns under whose line it stands, and whether it says which row it is."""

    name: str
    group: str = ""
    numeric: bool = False
    names: bool = False  # where no column does: those without a group, or the first

    @property
    def full(self) -> str:
        """Both, where only one line is to be had."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Sheet:
    """Cells as they are printed, the numbers behind them (`records`), and what must be said with them."""

    name: str
    caption: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    records: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def said(self) -> str:
        """The caption and all notes, as one paragraph."""
        return " ".join([self.caption, *self.notes])

    def turned(self) -> Sheet:
        """A row for each column that stands in a group, a column for each row."""
        lead = [j for j, head in enumerate(self.heads) if not head.group]
        labels: list[list[str]] = []
        for row in self.rows:
            before = labels[-1] if labels else [""] * len(lead)
            labels.append([plain(row[j]) or text for j, text in zip(lead, before, strict=True)])
        heads = [Head("", names=True), Head("", names=True), *(self._turned_head(lead, label) for label in labels)]
        rows, above = [], ""
        for j, head in enumerate(self.heads):
            if head.group:
                first = entry(head.group if head.group != above else "")
                rows.append([first, entry(head.name), *(row[j] for row in self.rows)])
                above = head.group
        return replace(self, heads=heads, rows=rows)

    def _turned_head(self, lead: Sequence[int], label: Sequence[str]) -> Head:
        """What names a row, as a heading; a column without a name of its own tells rows of one name apart."""
        heads = [self.heads[j] for j in lead]
        words = [f"{h.name}={text}" if h.numeric else text for h, text in zip(heads, label, strict=True) if h.name]
        mark = " ".join(text for h, text in zip(heads, label, strict=True) if not h.name)
        return Head(mark, ", ".join(words)) if mark else Head(", ".join(words))


def entry(text: object) -> Entry:
    """A plain cell."""
    return (Piece(str(text)),)


def plain(cell: Entry) -> str:
    """For a terminal: the better value between stars."""
    return "".join(f"*{piece.text}*" if piece.bold else piece.text for piece in cell)


def markdown(sheet: Sheet) -> str:
    """The caption above, the notes below."""
    rows = [[head.full for head in sheet.heads], ["---:" if head.numeric else "---" for head in sheet.heads]]
    rows += [["".join(_starred(piece) for piece in cell).replace("|", "\\|") for cell in row] for row in sheet.rows]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n\n".join([sheet.caption, body, *sheet.notes]) + "\n"


def comma_separated(sheet: Sheet) -> str:
    """The numbers behind the cells, one line for each; nothing where there is none."""
    names = list(dict.fromkeys(name for record in sheet.records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if is_nothing(value) else value for name, value in record.items()} for record in sheet.records
    )
    return text.getvalue()


def payload(sheet: Sheet) -> dict[str, Any]:
    """Caption, notes and numbers, for JSON."""
    rows = [{name: None if is_nothing(value) else value for name, value in record.items()} for record in sheet.records]
    return {"table": sheet.name, "caption": sheet.caption, "notes": list(sheet.notes), "rows": rows}


def as_json(sheet: Sheet) -> str:
    """The payload as text."""
    return json.dumps(payload(sheet), indent=2, ensure_ascii=False) + "\n"


WRITERS: dict[str, Callable[[Sheet], str]] = {
    ".tex": latex,
    ".md": markdown,
    ".csv": comma_separated,
    ".json": as_json,
}


def write(sheet: Sheet, path: Path) -> Path:
    """In the form its name's ending asks for, whole or not at all."""
    write_text(path, writer_of(path)(sheet))
    return path


def writer_of(path: Path) -> Callable[[Sheet], str]:
    """Refused before the work, where the ending is none of ours."""
    if path.suffix not in WRITERS:
        raise InputError(f"a table's name must end in {', '.join(WRITERS)}", value=path.name)
    return WRITERS[path.suffix]


def is_nothing(value: object) -> bool:
    """None, or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _starred(piece: Piece) -> str:
    return f"**{piece.text}**" if piece.bold else piece.text
