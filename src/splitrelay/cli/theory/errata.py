"""`splitrelay theory errata`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, emphasize, format_option, say
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.theory import Erratum

COUNT = 30  # a copy of len(ERRATA), so that completion does not load numpy


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    numbers = [f"E{number}" for number in range(1, COUNT + 1)]
    return [CompletionItem(number) for number in numbers if number.startswith(incomplete.upper())]


@click.command(cls=Command, example="splitrelay theory errata E14")
@click.argument("number", required=False, shell_complete=_complete, metavar="[NUMBER]")
@format_option
def errata(number: str | None, shape: str) -> None:
    """List the errors in the paper, E1 to E30: the place, the printed text, the correction, and the kind of each.

    With a NUMBER, show this one in full. E5, E7, E11, E13, E14, E19 and E26 have a counterexample that is computed
    when you call the command.
    """
    from splitrelay.theory import ERRATA, erratum
    from splitrelay.theory.errata import SEVERITIES

    if number is not None:
        _print_one(erratum(number), shape)
    elif shape == "table":
        say(
            _format_columns(
                [
                    (e.name + "*" * (e.counterexample is not None), f"{e.where} ({e.severity})", e.printed, e.right)
                    for e in ERRATA
                ]
            )
        )
        counts = ", ".join(f"{sum(e.severity == kind for e in ERRATA)} {kind}" for kind in SEVERITIES)
        say(f"\n{len(ERRATA)} entries: {counts}. * has a counterexample: splitrelay theory errata NUMBER computes it.")
    else:
        rows = [(e.name, e.where, e.printed, e.right, e.severity) for e in ERRATA]
        columns = ("number", "where", "printed", "right", "severity")
        emit(Table(columns, rows), [_build_record(e) for e in ERRATA], shape)


def _build_record(entry: Erratum) -> dict[str, Any]:
    from splitrelay.theory.errata import SEVERITIES

    return {
        "number": entry.name,
        "where": entry.where,
        "printed": entry.printed,
        "right": entry.right,
        "severity": entry.severity,
        "meaning": SEVERITIES[entry.severity],
        "example": entry.example or None,
        "counterexample": entry.counterexample() if entry.counterexample else None,
    }


def _print_one(entry: Erratum, shape: str) -> None:
    record = _build_record(entry)
    computed = record["counterexample"] or {}
    if shape != "table":
        fields = [(name, value) for name, value in record.items() if name != "counterexample" and value is not None]
        emit(Table(("field", "value"), [*fields, *computed.items()]), record, shape)
        return
    say(emphasize(textwrap.fill(f"{entry.name}: {entry.where}", 80)))
    severity = f"{entry.severity}, {record['meaning']}"
    for label, text in (("printed", entry.printed), ("right", entry.right), ("severity", severity)):
        say(textwrap.fill(text, 80, initial_indent=f"{label:<10}", subsequent_indent=" " * 10))
    if computed:
        say("\n" + textwrap.fill(f"Counterexample: {entry.example}", 80))
        emit(Table(("computed now", "value"), list(computed.items())), None, shape)


def _format_columns(rows: list[tuple[str, ...]]) -> str:
    """Format four columns that share the width of the page, and wrap each cell in its column."""
    page = min(shutil.get_terminal_size().columns if sys.stdout.isatty() else 120, 160)
    widths = [4, (page - 10) * 3 // 10, (page - 10) * 3 // 10, (page - 10) * 4 // 10]
    lines = [emphasize(_format_line(("no.", "where", "printed", "right"), widths))]
    for row in rows:
        cells = [textwrap.wrap(text, width) for text, width in zip(row, widths, strict=True)]
        for j in range(max(map(len, cells))):
            lines.append(_format_line([part[j] if j < len(part) else "" for part in cells], widths))
    return "\n".join(lines)


def _format_line(texts: Any, widths: list[int]) -> str:
    return "  ".join(f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()
