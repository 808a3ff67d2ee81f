"""`splitrelay doctor`."""

from __future__ import annotations

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option
from splitrelay.table import Table


@click.command(cls=Command, example="splitrelay doctor")
@format_option
def doctor(shape: str) -> None:
    """Show the CPU, the engines and the cores of this machine, and measure speed for two seconds."""
    from splitrelay.runs.machine import describe_machine

    rows = list(describe_machine())
    emit(Table(("what", "seen"), rows, "This machine"), dict(rows), shape)
