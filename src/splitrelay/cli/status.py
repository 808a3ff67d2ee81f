"""`splitrelay status` and `splitrelay collect`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note, say
from splitrelay.cli.deploy_options import Seconds, keys_options, warn_insecure
from splitrelay.cli.table_output import Table, emit, format_option
from splitrelay.errors import InputError

COLUMNS = ("client", "is", "", "samples", "visits", "MB up", "MB down", "s computing", "s waiting", "MB memory")
DAY = 86_400  # seconds
MANY = 10  # waits that the table lists
STALLED = 3  # exit code for a run that waits for somebody


@click.command(cls=Command, example="splitrelay status s.example.org:7443 --keys observer")
@click.argument("address", metavar="HOST:PORT")
@keys_options
@click.option("--watch", is_flag=True, help="Ask again every few seconds, until the run is finished.")
@click.option("--every", type=Seconds(0.1, DAY), default=2, show_default=True, help="Seconds between two questions.")
@format_option
def status(address: str, keys: Path | None, insecure: bool, watch: bool, every: float, shape: str) -> None:
    """How a run goes: who is here, whose turn it is, round, loss, bytes, and the time that is left.

    The exit code is 0 for a run that goes on, and 3 for a run that is stalled: it has waited for a client, the
    evaluator or the fed server longer than serve --stalled-after. The answer says for whom, since when, why, and what
    to do. With --watch the exit code is 0 when the run is finished.
    """
    from splitrelay.deploy.status_client import ask_status

    _refuse_folder(address)
    warn_insecure(insecure)
    for report in _reports(lambda: ask_status(address, keys, insecure), every):
        emit(_table(report), report, shape)
        if not watch and report.get("stalled"):
            sys.exit(STALLED)
        if not watch or report["phase"] == "finished":
            return


@click.command(cls=Command, example="splitrelay collect s.example.org:7443 --keys observer --out model.safetensors")
@click.argument("address", metavar="HOST:PORT")
@keys_options
@click.option("--out", type=click.Path(path_type=Path), default=Path("model.safetensors"), show_default=True,
              help="Where to write it.")  # fmt: skip
def collect(address: str, keys: Path | None, insecure: bool, out: Path) -> None:
    """The final model of a run, for whoever may have it (serve --model-for); plain torch loads it."""
    from splitrelay.deploy.status_client import collect_model

    warn_insecure(insecure)
    size = collect_model(address, keys, insecure, out)
    note(f"{size} bytes")
    say(str(out))


def _reports(ask: Callable[[], dict[str, Any]], every: float) -> Iterator[dict[str, Any]]:
    """One after another; a server that has answered once may be away for a while, which is said once."""
    from splitrelay.network.status_rpc import NoAnswer

    yield ask()
    away = False
    while True:
        time.sleep(every)
        try:
            report = ask()
        except NoAnswer as error:
            if not away:
                note(f"{error.what}; asking again every {every:g} s, Ctrl-C ends it.")
            away = True
            continue
        away = False
        yield report


def _refuse_folder(address: str) -> None:
    if Path(address).is_dir():
        hint = f"splitrelay sweep --status {address} tells how far a sweep is, splitrelay show {address} a run."
        raise InputError("not a server's address, but a folder", value=address, limit="HOST:PORT", hint=hint)


def _table(report: dict[str, Any]) -> Table:
    title = f"{report['algorithm']}, {report['route']}, spec {report['spec']}: {report['phase']}"
    awaited = report.get("awaited", 0)
    if awaited:
        title += f" for {awaited} more client{'s' * (awaited > 1)}"
    else:
        title += f", round {report['round']} of {report['rounds']}"
    judge = {True: "the evaluator is here", False: "the evaluator is away"}.get(report["evaluator"], "")
    stalled = [one for one in report.get("waiting_for", ()) if one["stalled"]]
    clients, waits = report["clients"], [_wait(one) for one in stalled[:MANY]]
    waits += [f"STALLED: {len(stalled) - MANY} more; --format json lists all"] * (len(stalled) > MANY)
    if not any(one["visits"] for one in clients):  # nobody has paid anything yet
        return Table(COLUMNS[:4], [_row(one)[:4] for one in clients], title, tuple(filter(None, [judge, *waits])))
    notes = (_seen(report), judge, _left(report), *waits)
    return Table(COLUMNS, [_row(one) for one in clients], title, tuple(filter(None, notes)))


def _wait(one: dict[str, Any]) -> str:
    return f"STALLED: waiting {one['since']:.0f} s for {one['who']}: {one['why']}. {one['remedy']}"


def _seen(report: dict[str, Any]) -> str:
    loss, accuracy = report["test_loss"], report["test_accuracy"]
    seen = "" if loss is None else f"; test loss {loss:.4f}, accuracy {accuracy:.2%}"
    return f"{report['bytes_up'] / 1e6:.1f} MB up, {report['bytes_down'] / 1e6:.1f} MB down{seen}"


def _left(report: dict[str, Any]) -> str:
    left = report["seconds_left"]
    return "" if left is None else f"{report['seconds']:.0f} s, about {left:.0f} s left"


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    """One client: where it is, what it brings, what it has paid so far."""
    is_ = "here" if one["here"] else "away"
    where = (
        f"{is_}, in quarantine" if one.get("quarantine") else is_,
        "its turn" if one["turn"] else "",
        one["samples"],
    )
    bytes_ = (one["socket_bytes_up"], one["socket_bytes_down"])
    moved = tuple(None if number is None else round(number / 1e6, 2) for number in bytes_)
    seconds = (round(one["computing_seconds"], 1), round(one["waiting_seconds"], 1))
    return (one["client"], *where, one["visits"], *moved, *seconds, round(one["memory_bytes"] / 1e6))
