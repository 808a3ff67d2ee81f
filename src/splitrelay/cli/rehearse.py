"""`splitrelay rehearse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, format_tick, note
from splitrelay.cli.deploy_options import away_option, insecure_option, warn_insecure
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.spec_arguments import check_device, device_option, list_spec_keys, load_spec_arguments
from splitrelay.errors import InputError, WorkError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.deploy.rehearsal import Hosts, RehearsalOptions
    from splitrelay.runs.spec import Spec

COLUMNS = ("same weights", "same record", "programs", "deployed s", "simulated s")


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay rehearse first.toml R=3 --out rehearsed")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True,
              help="The run directory; keys and logs are in its folder rehearsal.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(min=1), help="Number of client programs (default: one per client).")
@click.option("--faults", type=click.Path(path_type=Path), help="A fault plan: a TOML file, see docs/faults.md.")
@click.option("--random", "seed", type=int, help="Draw a fault plan at random with this seed.")
@click.option("--plans", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of random plans, with consecutive seeds.")  # fmt: skip
@click.option("--namespaces", is_flag=True, help="Run each program in its own network namespace; needs root.")
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.0, show_default=True,
              help="Probability that a packet is duplicated, reordered or dropped (needs --namespaces).")  # fmt: skip
@insecure_option
@click.option("--direct", is_flag=True, help="Clients send their half directly to the next client (peer to peer).")
@click.option("--fed-server", is_flag=True, help="Start a fed server, which averages encrypted client halves.")
@away_option
@click.option("--lease", type=float, help="Seconds that a client may be absent (default: 60, with faults 5).")
@click.option("--patience", type=float, default=600, show_default=True, help="Seconds for the deployed run.")
@device_option
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
    device: str,
    shape: str,
) -> None:
    """Deploy a run on this machine and compare it with the simulation.

    The server and M clients run as separate processes over mutual TLS. The weights must be identical to those of
    `splitrelay run`, and so must every row of the record. The exit code is 1 if they are not.
    """
    check_device(device)
    from splitrelay.deploy.rehearsal import Rehearsal, RehearsalOptions

    spec = load_spec_arguments("rehearse", settings)
    warn_insecure(insecure)
    has_faults = faults is not None or seed is not None
    _check_options(spec, direct, fed_server, insecure, hosts, namespaces, noise, has_faults)
    lease = lease or (5.0 if has_faults else 60.0)
    options = RehearsalOptions(spec, out, hosts, insecure, patience, away, lease, direct, fed_server, device=device)
    if has_faults:
        _run_plans(options, faults, seed or 0, plans, shape)
        return
    verdict = Rehearsal(options, note, _build_namespaces(noise) if namespaces else None).run()
    row: list[Any] = [format_tick(verdict.weights), format_tick(verdict.rows), verdict.programs]
    row += [round(verdict.seconds, 1), round(verdict.simulated, 1)]
    emit(Table(COLUMNS, [row]), asdict(verdict), shape)
    if not verdict.is_same:
        hint = f"Compare {out} with {out / 'rehearsal' / 'simulated'}, and please report it."
        raise WorkError("the deployed run differs from the simulation", hint=hint)
    note(f"kept: {out}")


def _check_options(
    spec: Spec,
    direct: bool,
    fed: bool,
    insecure: bool,
    hosts: int | None,
    namespaces: bool,
    noise: float,
    has_faults: bool,
) -> None:
    """Raise an InputError if options exclude each other."""
    if direct and (spec.route != "peer-to-peer" or insecure or hosts is not None):
        raise InputError(
            "--direct needs route=peer-to-peer, keys, and one program per client",
            hint="Add route=peer-to-peer, and leave out --insecure and --hosts.",
        )
    if fed:
        from splitrelay.deploy.fed_averaging import check_fed_spec

        check_fed_spec(spec)
        if insecure or namespaces:
            hint = "Leave out --insecure and --namespaces."
            raise InputError("--fed-server needs keys, and all programs on one host", hint=hint)
    if namespaces and has_faults:
        hint = "Leave out --namespaces, or --faults and --random."
        raise InputError("faults cannot be combined with --namespaces", hint=hint)
    if noise and not namespaces:
        raise InputError("--noise needs --namespaces", hint="Add --namespaces.")


def _build_namespaces(noise: float) -> Hosts:
    from splitrelay.chaos.network_namespaces import NamespaceHosts, Noise

    return NamespaceHosts(Noise(noise, noise, noise))


def _run_plans(options: RehearsalOptions, file: Path | None, seed: int, plans: int, shape: str) -> None:
    from splitrelay.chaos.fault_plans import COLUMNS as PLAN_COLUMNS
    from splitrelay.chaos.fault_plans import run_plans

    rows = list(run_plans(options, file, seed, plans, note))
    emit(Table(PLAN_COLUMNS, [tuple(row.values()) for row in rows]), rows, shape)
    wrong = [str(row["plan"]) for row in rows if not row["sound"]]
    if wrong:
        hint = f"See {options.out}, and please report it."
        raise WorkError("some fault plans changed the run or did not happen", value=", ".join(wrong), hint=hint)
