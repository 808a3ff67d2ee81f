"""`splitrelay report`."""

from __future__ import annotations

from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say


@click.command(cls=Command, example="splitrelay report results")
@click.argument("path", metavar="RUN|FOLDER", type=click.Path(path_type=Path))
def report(path: Path) -> None:
    """Make report.html again: what was run, curves, classes, partition, bytes, times, environment, commands.

    One file that opens offline, without scripts, light or dark. Of a folder: all curves, the accuracy table, and a link
    to each run's own page, which is made where it is missing or older than its rows.
    """
    from splitrelay.reports.html_report import write_report

    say(f"report: {write_report(path)}")
