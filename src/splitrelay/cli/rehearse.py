"""`splitrelay rehearse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.console import note
from splitrelay.cli.deployed import warn_insecure
from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, emit, format_option, tick
from splitrelay.cli.run import KEYS
from splitrelay.cli.serve import spec_from
from splitrelay.cli.settings import settings_argument
from splitrelay.errors import WorkError

if TYPE_CHECKING:
    from splitrelay.deploy.rehearsal import Plan


@click.command(cls=Command, keys=KEYS, example="splitrelay rehearse first.toml R=3 --out rehearsed")
@settings_argument(KEYS, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run's directory; keys and logs in it.")
@click.option("--hosts", type=click.IntRange(min=1), help="Programs that the clients share (default: one each).")
@click.option("--faults", type=click.Path(path_type=Path), help="A plan of faults: a TOML file, see docs/deploy.md.")
@click.option("--random", "seed", type=int, help="A random plan of faults from this seed.")
@click.option("--plans", type=click.IntRange(min=1), default=1, show_default=True,
              help="So many random plans, from as many seeds.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Without keys or encryption.")
@click.option("--patience", type=float, default=600, show_default=True, help="Seconds for the deployed part.")
@format_option
def rehearse(
    settings: Sequence[str],
    out: Path,
    hosts: int | None,
    faults: Path | None,
    seed: int | None,
    plans: int,
    insecure: bool,
    patience: float,
    shape: str,
) -> None:
    """Deploy a spec on this machine, then compare: server and M clients as real processes over mutual TLS.

    The weights must be those of `splitrelay run` to the bit, and so must every row of the record. Exit code 1 if not.
    """
    from splitrelay.deploy.rehearsal import Plan, Rehearsal

    spec = spec_from(settings)
    warn_insecure(insecure)
    if faults is not None or seed is not None:
        _troubled(Plan(spec, out, None, insecure, patience), faults, seed or 0, plans, shape)
        return
    for verdict in Rehearsal(Plan(spec, out, hosts, insecure, patience), note).play():
        row: list[Any] = [tick(verdict.weights), tick(verdict.rows), verdict.programs]
        row += [round(verdict.seconds, 1), round(verdict.simulated, 1)]
        columns = ("same weights", "same record", "programs", "deployed s", "simulated s")
        emit(Table(columns, [row]), asdict(verdict), shape)
        if not verdict.same:
            way_out = f"Compare {out} with {out / 'rehearsal' / 'simulated'}, and please report it."
            raise WorkError("deployed and simulated differ", way_out=way_out)
    note(f"kept: {out}")


def _troubled(plan: Plan, file: Path | None, seed: int, plans: int, shape: str) -> None:
    """Rehearsals with faults: each in a folder of its own where there are several."""
    from splitrelay.deploy.faults import Troubled, plan_in, random_plan

    spec, rows = plan.spec, list[tuple[Any, ...]]()
    visits, clients = spec.R * (spec.S or spec.partition.M), range(spec.partition.M)
    for number in range(seed, seed + plans):
        faults = plan_in(file) if file is not None else random_plan(number, visits, clients)
        here = plan if plans == 1 else replace(plan, out=plan.out / f"plan-{number:04d}")
        trouble = Troubled(here, note, faults)
        for verdict in trouble.play():
            rows.append((number, len(trouble.done), verdict.weights, trouble.twice(), round(verdict.seconds, 1)))
            note(
                f"plan {number}: {'the same weights' if verdict.weights else 'OTHER WEIGHTS'}, {verdict.seconds:.1f} s"
            )
    columns = ("plan", "faults", "same weights", "committed twice", "seconds")
    emit(Table(columns, rows), [dict(zip(columns, row, strict=True)) for row in rows], shape)
    if any(not row[2] or row[3] for row in rows):
        raise WorkError("a plan of faults changed the run", way_out=f"See {plan.out}, and please report it.")
