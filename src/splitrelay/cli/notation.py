"""`splitrelay notation`."""

from __future__ import annotations

from dataclasses import asdict

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, say
from splitrelay.table import Table

TITLES = {
    "theory": "Key symbols (the paper's first table)",
    "cut": "Symbols of the cut model (the paper's second table)",
    "ours": "Further symbols used here",
}


@click.command(cls=Command, example="splitrelay notation")
@format_option
def notation(shape: str) -> None:
    """Print the symbols of the paper and our names for them in the API, spec files, records and plots."""
    from splitrelay.notation import SYMBOLS

    if shape in ("json", "csv"):
        every = [(s.table, s.plain, s.name, s.meaning, s.unit) for s in SYMBOLS]
        emit(Table(("table", "paper", "here", "meaning", "unit"), every), [asdict(s) for s in SYMBOLS], shape)
        return
    for number, (table, title) in enumerate(TITLES.items()):
        if number:
            say("")
        rows = [(s.plain, s.name, s.meaning, s.unit) for s in SYMBOLS if s.table == table]
        emit(Table(("paper", "here", "meaning", "unit"), rows, title), None, shape)
