"""`splitrelay publish`: records to hand out."""

from __future__ import annotations

from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say


@click.command(cls=Command, example="splitrelay publish results --to evidence")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="Where the records go.")
def publish(folder: Path, target: Path) -> None:
    """Copy the records of all finished runs in a folder, without weights: a few kB each.

    What is copied (spec, environment, rows, the model's checksum) is what splitrelay verify, table, figure, show,
    compare and report need.
    """
    from splitrelay.runs.records import publish as published

    runs, size = published(folder, target)
    say(f"{target}: {runs} runs, {size / 1e6:.2f} MB")
