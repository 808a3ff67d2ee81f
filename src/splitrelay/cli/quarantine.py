"""`splitrelay quarantine`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.deploy.quarantine import Conduct

COLUMNS = ("client", "strikes", "in quarantine", "s since", "s to probation", "last strike")


@click.command(cls=Command, example="splitrelay quarantine run")
@click.argument("run", metavar="RUNDIR", type=click.Path(path_type=Path))
@click.option("--lift", type=click.IntRange(min=0), multiple=True, metavar="M",
              help="Release client M and forgive its strikes. Repeatable.")  # fmt: skip
@format_option
def quarantine(run: Path, lift: Sequence[int], shape: str) -> None:
    """List the clients of a deployed run that have strikes or are in quarantine, and release them.

    Run this where the run's directory is. A server that is running releases a client within a second or two; otherwise
    the server does so when it is started next.
    """
    from splitrelay.deploy.quarantine import read_lifts, read_record, request_lift

    folder = run / "relay"
    if not folder.is_dir():
        hint = "Give the --out directory of splitrelay serve."
        raise InputError("not the directory of a deployed run", value=run, limit="RUNDIR/relay", hint=hint)
    clients = read_record(folder)
    for m in lift:
        if m not in clients:
            hint = f"Show those that have: splitrelay quarantine {run}"
            raise InputError(f"client {m} has no strikes", value=f"--lift {m}", hint=hint)
    for m in lift:
        request_lift(folder, m)
        note(f"client {m} will be released.")
    lifted = set(read_lifts(folder))
    rows = [_build_row(m, one, m in lifted) for m, one in sorted(clients.items())]
    title = f"{run}: {sum(one.is_confined for one in clients.values())} clients in quarantine"
    emit(Table(COLUMNS, [tuple(row.values()) for row in rows], title), {"clients": rows}, shape)


def _build_row(m: int, conduct: Conduct, is_lifted: bool) -> dict[str, Any]:
    """Return one client as JSON gives it, in the order of the columns."""
    now, confined = time.time(), conduct.is_confined
    state = "no" if not confined else "is being released" if is_lifted else "yes"
    return {
        "client": m,
        "strikes": conduct.strikes,
        "in_quarantine": state,
        "since": round(now - conduct.since) if confined else None,
        "probation_in": max(round(conduct.until - now), 0) if confined else None,
        "why": conduct.why,
    }
