"""`splitrelay partition show|export`: what was saved, by us or by the authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note
from splitrelay.cli.key_values import Key, parsed, settings_argument
from splitrelay.cli.partition.options import DATA, bubbles_option, deliver, figure_option, training_set
from splitrelay.cli.table_output import format_option
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.data.partition import Partition

KEYS = (Key("data", DATA.read, "the data set that was dealt [what the file says]", many=False),)


@click.command(cls=Command, keys=KEYS, example="splitrelay partition show p.json data=digits --figure p.pdf")
@click.argument("file", type=click.Path(path_type=Path))
@settings_argument(KEYS)
@figure_option
@bubbles_option
@format_option
def show(file: Path, settings: Sequence[str], figure: Path | None, bubbles: Path | None, shape: str) -> None:
    """Report on a saved partition. A JSON file carries no labels: name the set that it deals, data=NAME."""
    deliver(_read(file, settings), shape, figure, bubbles)


@click.command(cls=Command, keys=KEYS, example="splitrelay partition export p.json data=digits --to clients")
@click.argument("file", type=click.Path(path_type=Path))
@settings_argument(KEYS)
@click.option("--to", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A folder that is not there.")
def export(file: Path, settings: Sequence[str], to: Path) -> None:
    """Write one folder per client (client-0003/data.npz with x and y, and meta.json) for a real deployment."""
    from splitrelay.data.partition_export import export_partition, told

    found = _read(file, settings)
    if "data" not in found.settings:
        raise InputError(f"{file} does not say which data set it deals", hint="Name it: data=NAME.")
    train = training_set(found.settings["data"])
    export_partition(found.labelled(train.y), train.x, told(train.y, train.classes), to)
    empty = f"; {len(found.empty)} without samples have none" if found.empty else ""
    note(f"written: {to}, {len(found.clients)} clients' folders{empty}")


def _read(file: Path, settings: Sequence[str]) -> Partition:
    """The partition; where the set is named, with its labels and its name."""
    from splitrelay.data.partition_files import load_partition

    given = parsed(settings, KEYS)
    if "data" not in given:
        return load_partition(file)
    data = given["data"][0]
    found = load_partition(file, training_set(data).y)
    return replace(found, settings={**found.settings, "data": data})
