"""`splitrelay publish`: records to hand out."""

from __future__ import annotations

from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say


@click.command(cls=Command, example="splitrelay publish results --to evidence")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, metavar="FOLDER|FILE.tar.xz",
              help="Where the records go: a folder, or one archive.")  # fmt: skip
def publish(folder: Path, target: Path) -> None:
    """Copy the records of all finished runs in a folder, without weights: a few kB each.

    The copy has the spec, the environment, the rows and the checksum of the model. The commands verify, table, figure,
    show and compare need no more. They read an archive such as evidence/cells.tar.xz as if it were the folder
    evidence/cells. To unpack an archive, publish it to a folder; the command report needs a folder.
    """
    from splitrelay.runs import records

    runs, size = records.publish(folder, target)
    say(f"{target}: {runs} runs, {size / 1e6:.2f} MB")
