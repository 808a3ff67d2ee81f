"""`splitrelay notation`."""

from __future__ import annotations

from dataclasses import asdict

import click

from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, emit, format_option

TITLES = {
    "theory": "Key symbols (the paper's first table)",
    "cut": "Symbols of the cut model (the paper's second table)",
    "ours": "Further symbols used here",
}


@click.command(cls=Command, example="splitrelay notation")
@format_option
def notation(shape: str) -> None:
    """The paper's symbols beside our names: everywhere (API, spec files, records, plots) the same."""
    from splitrelay.notation import SYMBOLS

    if shape == "json":
        emit(Table((), ()), [asdict(symbol) for symbol in SYMBOLS], shape)
        return
    for table, title in TITLES.items():
        rows = [(s.plain, s.name, s.meaning, s.unit) for s in SYMBOLS if s.table == table]
        emit(Table(("paper", "here", "meaning", "unit"), rows, title), None, shape)
        click.echo()
