"""`splitrelay rehearse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note
from splitrelay.cli.deploy_options import warn_insecure
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.spec_arguments import list_spec_keys, load_spec_arguments
from splitrelay.cli.table_output import Table, emit, format_option, format_tick
from splitrelay.errors import InputError, WorkError

if TYPE_CHECKING:
    from splitrelay.deploy.rehearsal import Plan, Rehearsal
    from splitrelay.runs.spec import Spec


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay rehearse first.toml R=3 --out rehearsed")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run's directory; keys and logs in it.")
@click.option("--hosts", type=click.IntRange(min=1), help="Programs that the clients share (default: one each).")
@click.option("--faults", type=click.Path(path_type=Path), help="A plan of faults: a TOML file, see docs/faults.md.")
@click.option("--random", "seed", type=int, help="A random plan of faults from this seed.")
@click.option("--plans", type=click.IntRange(min=1), default=1, show_default=True,
              help="So many random plans, from as many seeds.")  # fmt: skip
@click.option("--namespaces", is_flag=True, help="A network namespace for the server and for each client; needs root.")
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.0, show_default=True,
              help="With --namespaces: the share of packets doubled, of those overtaken, of those lost.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Without keys or encryption.")
@click.option("--direct", is_flag=True, help="Peer to peer: clients bring the half straight to each other.")
@click.option("--fed-server", is_flag=True, help="One more program averages the clients' halves, sealed.")
@click.option("--away", type=click.Choice(["wait", "retry", "skip"]), default="wait", show_default=True,
              help="What the server does about a client that stays away.")  # fmt: skip
@click.option("--lease", type=float, help="Seconds that a client may be away (default: 60, with faults 5).")
@click.option("--patience", type=float, default=600, show_default=True, help="Seconds for the deployed part.")
@format_option
def rehearse(
    settings: Sequence[str],
    out: Path,
    hosts: int | None,
    faults: Path | None,
    seed: int | None,
    plans: int,
    namespaces: bool,
    noise: float,
    insecure: bool,
    direct: bool,
    fed_server: bool,
    away: str,
    lease: float | None,
    patience: float,
    shape: str,
) -> None:
    """Deploy a spec on this machine, then compare: server and M clients as real processes over mutual TLS.

    The weights must be those of `splitrelay run` to the bit, and so must every row of the record. Exit code 1 if not.
    """
    from splitrelay.deploy.rehearsal import Plan, Rehearsal

    spec = load_spec_arguments("rehearse", settings)
    warn_insecure(insecure)
    _refuse_indirect(spec, direct, insecure, hosts)
    _refuse_unfed(spec, fed_server, insecure or namespaces)
    _refuse_mixed(namespaces, noise, faults is not None or seed is not None)
    calm = faults is None and seed is None
    plan = Plan(spec, out, hosts, insecure, patience, away, lease or (60.0 if calm else 5.0), direct, fed_server)
    if not calm:
        _troubled(plan, faults, seed or 0, plans, shape)
        return
    for verdict in (_separate(plan, noise) if namespaces else Rehearsal(plan, note)).play():
        row: list[Any] = [format_tick(verdict.weights), format_tick(verdict.rows), verdict.programs]
        row += [round(verdict.seconds, 1), round(verdict.simulated, 1)]
        columns = ("same weights", "same record", "programs", "deployed s", "simulated s")
        emit(Table(columns, [row]), asdict(verdict), shape)
        if not verdict.same:
            hint = f"Compare {out} with {out / 'rehearsal' / 'simulated'}, and please report it."
            raise WorkError("deployed and simulated differ", hint=hint)
    note(f"kept: {out}")


def _separate(plan: Plan, noise: float) -> Rehearsal:
    from splitrelay.chaos.namespace_rehearsal import NamespaceRehearsal

    return NamespaceRehearsal(plan, note, noise)


def _refuse_indirect(spec: Spec, direct: bool, insecure: bool, hosts: int | None) -> None:
    if direct and (spec.route != "peer-to-peer" or insecure or hosts is not None):
        raise InputError(
            "--direct is for clients with keys and a program each, peer to peer", hint="Add route=peer-to-peer."
        )


def _refuse_unfed(spec: Spec, fed: bool, otherwise: bool) -> None:
    if not fed:
        return
    from splitrelay.deploy.fed_averaging import refuse_unfit

    refuse_unfit(spec)
    if otherwise:
        hint = "Leave --insecure and --namespaces out."
        raise InputError("a fed server is rehearsed with keys, on one host", hint=hint)


def _refuse_mixed(namespaces: bool, noise: float, troubled: bool) -> None:
    if namespaces and troubled:
        raise InputError("faults are made by proxies on one host", hint="Leave --namespaces out, or the faults.")
    if noise and not namespaces:
        raise InputError("noise is made on the links of network namespaces", hint="Add --namespaces.")


def _troubled(plan: Plan, file: Path | None, seed: int, plans: int, shape: str) -> None:
    """Rehearsals with faults: each in a folder of its own where there are several."""
    from splitrelay.chaos.fault_plans import COLUMNS, played

    rows = list(played(plan, file, seed, plans, note))
    emit(Table(COLUMNS, [tuple(row.values()) for row in rows]), rows, shape)
    wrong = [str(row["plan"]) for row in rows if not row["sound"]]
    if wrong:
        hint = f"See {plan.out}, and please report it."
        raise WorkError("plans of faults that changed the run, or did not happen", value=", ".join(wrong), hint=hint)
