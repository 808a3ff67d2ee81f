"""`splitrelay cost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, emit, format_option
from splitrelay.cli.run import KEYS
from splitrelay.cli.serve import spec_from
from splitrelay.cli.settings import settings_argument

COLUMNS = ("placement", "layers", "after", "parameters", "kB up", "kB down", "messages", "MFLOP")


@click.command(cls=Command, keys=KEYS, example="splitrelay cost data=digits model=lenet-small K=5")
@settings_argument(KEYS, metavar="[SPEC] [KEY=VALUE]...")
@format_option
def cost(settings: Sequence[str], shape: str) -> None:
    """What a client pays for one visit: bytes, messages and FLOPs for every cut, and for the whole model.

    Bytes are those that a run records, headers and labels included; FLOPs are the client's, forward and backward, a
    multiply-add counting two. Means over the clients of the spec's partition.
    """
    from splitrelay.deploy.cost import prices, table

    spec = spec_from(settings)
    rows = prices(spec)
    title = f"{spec.model.name} on {spec.data.name}, {spec.algorithm}: one visit, K={spec.K}"
    notes = ("* as in the spec", f"A round is {spec.S or spec.partition.M} visits.")
    emit(Table(COLUMNS, list(table(rows)), title, notes), [asdict(row) for row in rows], shape)
