"""`splitrelay rehearse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from splitrelay.cli.console import note
from splitrelay.cli.deployed import warn_insecure
from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, emit, format_option, tick
from splitrelay.cli.run import KEYS
from splitrelay.cli.serve import spec_from
from splitrelay.cli.settings import settings_argument
from splitrelay.errors import WorkError


@click.command(cls=Command, keys=KEYS, example="splitrelay rehearse first.toml R=3 --out rehearsed")
@settings_argument(KEYS, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run's directory; keys and logs in it.")
@click.option("--hosts", type=click.IntRange(min=1), help="Programs that the clients share (default: one each).")
@click.option("--insecure", is_flag=True, help="Without keys or encryption.")
@click.option("--patience", type=float, default=600, show_default=True, help="Seconds for the deployed part.")
@format_option
def rehearse(
    settings: Sequence[str], out: Path, hosts: int | None, insecure: bool, patience: float, shape: str
) -> None:
    """Deploy a spec on this machine, then compare: server and M clients as real processes over mutual TLS.

    The weights must be those of `splitrelay run` to the bit, and so must every row of the record. Exit code 1 if not.
    """
    from splitrelay.deploy.rehearsal import Plan, Rehearsal

    spec = spec_from(settings)
    warn_insecure(insecure)
    for verdict in Rehearsal(Plan(spec, out, hosts, insecure, patience), note).play():
        row: list[Any] = [tick(verdict.weights), tick(verdict.rows), verdict.programs]
        row += [round(verdict.seconds, 1), round(verdict.simulated, 1)]
        columns = ("same weights", "same record", "programs", "deployed s", "simulated s")
        emit(Table(columns, [row]), asdict(verdict), shape)
        if not verdict.same:
            way_out = f"Compare {out} with {out / 'rehearsal' / 'simulated'}, and please report it."
            raise WorkError("deployed and simulated differ", way_out=way_out)
    note(f"kept: {out}")
