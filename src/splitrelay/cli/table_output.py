"""Tables on the terminal: the option --format, and the width and the signs of the output."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from splitrelay.atomic_files import build_write_error
from splitrelay.cli.console import emphasised, say
from splitrelay.table import Table, format_cell, format_json

__all__ = ["FORMATS", "Table", "cell", "emit", "format_option", "format_terminal", "format_tick", "prepare_folder"]

FORMATS = ("table", "csv", "markdown", "json")
cell = format_cell


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --format to a command."""
    return click.option(
        "--format", "shape", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print it."
    )(command)


def emit(table: Table, payload: object, shape: str) -> None:
    """Print a table in one of FORMATS; as JSON the payload."""
    texts: dict[str, Callable[[], str]] = {
        "json": lambda: format_json(payload),
        "csv": table.to_csv,
        "markdown": table.to_markdown,
        "table": lambda: format_terminal(table),
    }
    say(texts[shape]().rstrip("\n"))


def format_terminal(table: Table) -> str:
    """Return the table as text for the terminal; pipes and files have no width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    return table.to_text(width, emphasised)


def format_tick(holds: bool) -> str:
    """Return a sign for yes or no, in letters if the output cannot carry the sign."""
    mark = "✓" if holds else "✗"
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "yes" if holds else "NO"
    return mark


def prepare_folder(folder: Path) -> None:
    """Make a folder and check that it can be written to, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise build_write_error(folder, error) from None
