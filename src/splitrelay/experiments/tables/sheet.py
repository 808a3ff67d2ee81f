"""One table, many shapes: LaTeX (booktabs), Markdown, CSV and JSON of the numbers behind it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.experiments.tables.latex import escaped, tabular
from splitrelay.files import write_text


@dataclass(frozen=True)
class Piece:
    """A few letters of a cell; bold marks the better value."""

    text: str
    bold: bool = False


Entry = tuple[Piece, ...]


@dataclass(frozen=True)
class Head:
    """A column's name, and the group of columns under whose line it stands."""

    name: str
    group: str = ""
    numeric: bool = False

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


def entry(text: object) -> Entry:
    """A plain cell."""
    return (Piece(str(text)),)


def plain(cell: Entry) -> str:
    """For a terminal: the better value between stars."""
    return "".join(f"*{piece.text}*" if piece.bold else piece.text for piece in cell)


def latex(sheet: Sheet) -> str:
    """A table environment with booktabs' rules; that package is all it needs."""
    cells = [["".join(_bold(piece) for piece in cell) for cell in row] for row in sheet.rows]
    spans = [(escaped(group), len(list(found))) for group, found in groupby(head.group for head in sheet.heads)]
    names = [escaped(head.name) for head in sheet.heads]
    columns = "".join("r" if head.numeric else "c" if head.group else "l" for head in sheet.heads)
    body = tabular(columns, spans, names, cells)
    caption, label = f"\\caption{{{escaped(sheet.said)}}}", f"\\label{{tab:{sheet.name}}}"
    form = "\\centering\\small\\setlength{\\tabcolsep}{4pt}"  # eight columns in the width of a page
    head = ["% \\usepackage{booktabs}", "\\begin{table}", form, caption, label, "\\par\\smallskip"]
    return "\n".join([*head, *body, "\\end{table}", ""])


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


def _bold(piece: Piece) -> str:
    return f"\\textbf{{{escaped(piece.text)}}}" if piece.bold else escaped(piece.text)


def _starred(piece: Piece) -> str:
    return f"**{piece.text}**" if piece.bold else piece.text
