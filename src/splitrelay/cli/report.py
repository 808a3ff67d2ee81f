"""`splitrelay report`."""

from __future__ import annotations

from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say


@click.command(cls=Command, example="splitrelay report results")
@click.argument("path", metavar="RUN|FOLDER", type=click.Path(path_type=Path))
def report(path: Path) -> None:
    """Write report.html: settings, curves, classes, partition, bytes, times, environment, commands.

    The report is one file that opens offline, without scripts. The report of a folder shows all curves, the accuracy
    table, and links to the pages of the runs. Missing and outdated pages of runs are written, too.
    """
    from splitrelay.reports.html_report import write_report

    say(f"report: {write_report(path)}")
