"""`splitrelay status` and `splitrelay collect`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, say
from splitrelay.cli.deploy_options import Seconds, keys_options, warn_insecure
from splitrelay.errors import InputError
from splitrelay.table import Table

COLUMNS = ("client", "is", "", "samples", "visits", "MB up", "MB down", "s computing", "s waiting", "MB memory")
DAY = 86_400  # seconds
MAX_WAITS = 10  # listed in the table
STALLED = 3  # exit code for a run that waits for somebody


@click.command(cls=Command, example="splitrelay status s.example.org:7443 --keys observer")
@click.argument("address", metavar="HOST:PORT")
@keys_options
@click.option("--watch", is_flag=True, help="Ask repeatedly until the run is finished.")
@click.option("--every", type=Seconds(0.1, DAY), default=2, show_default=True, help="Seconds between two requests.")
@format_option
def status(address: str, keys: Path | None, insecure: bool, watch: bool, every: float, shape: str) -> None:
    """Show the status of a run: connected clients, current visit, round, loss, bytes, and the remaining time.

    The exit code is 3 if the run is stalled: it has waited for a client, the evaluator or the fed server longer than
    serve --stalled-after. The output then says for which one, how long, why, and what to do. Otherwise the exit code is
    0. With --watch it is 0 when the run is finished.
    """
    from splitrelay.deploy.status_client import ask_status, build_report_error

    if Path(address).is_dir():
        hint = f"For a sweep use splitrelay sweep --status {address}, for a run splitrelay show {address}."
        raise InputError("the address of a server is needed, not a folder", value=address, limit="HOST:PORT", hint=hint)
    warn_insecure(insecure)
    for report in _poll_reports(lambda: ask_status(address, keys, insecure), every):
        try:
            table = build_table(report)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):  # the server may send anything
            raise build_report_error() from None
        emit(table, report, shape)
        if not watch and report.get("stalled"):
            sys.exit(STALLED)
        if not watch or report["phase"] == "finished":
            return


@click.command(cls=Command, example="splitrelay collect s.example.org:7443 --keys observer --out model.safetensors")
@click.argument("address", metavar="HOST:PORT")
@keys_options
@click.option("--out", type=click.Path(path_type=Path), default=Path("model.safetensors"), show_default=True,
              help="The file to write.")  # fmt: skip
def collect(address: str, keys: Path | None, insecure: bool, out: Path) -> None:
    """Download the final model of a run. The server decides who may do so (serve --model-for)."""
    from splitrelay.deploy.status_client import collect_model

    warn_insecure(insecure)
    size = collect_model(address, keys, insecure, out)
    note(f"{size} bytes")
    say(str(out))


def _poll_reports(ask: Callable[[], dict[str, Any]], every: float) -> Iterator[dict[str, Any]]:
    """Yield reports forever. If the server does not answer after the first report, print a note and try again."""
    from splitrelay.network.status_rpc import NoAnswer

    yield ask()
    is_away = False
    while True:
        time.sleep(every)
        try:
            report = ask()
        except NoAnswer as error:
            if not is_away:
                note(f"{error.what}; retrying every {every:g} s (Ctrl-C stops).")
            is_away = True
            continue
        is_away = False
        yield report


def build_table(report: dict[str, Any]) -> Table:
    title = f"{report['algorithm']}, {report['route']}, spec {report['spec']}: {report['phase']}"
    awaited = report.get("awaited", 0)
    if awaited:
        title += f" for {awaited} more client{'s' * (awaited > 1)}"
    else:
        title += f", round {report['round']} of {report['rounds']}"
    evaluator = {True: "the evaluator is here", False: "the evaluator is away"}.get(report["evaluator"], "")
    stalled = [one for one in report.get("waiting_for", ()) if one["stalled"]]
    clients, waits = report["clients"], [_format_wait(one) for one in stalled[:MAX_WAITS]]
    waits += [f"STALLED: {len(stalled) - MAX_WAITS} more; --format json lists all"] * (len(stalled) > MAX_WAITS)
    if not any(one["visits"] for one in clients):  # no usage yet
        return Table(
            COLUMNS[:4], [_build_row(one)[:4] for one in clients], title, tuple(filter(None, [evaluator, *waits]))
        )
    notes = (_format_progress(report), evaluator, _format_remaining(report), *waits)
    return Table(COLUMNS, [_build_row(one) for one in clients], title, tuple(filter(None, notes)))


def _format_wait(one: dict[str, Any]) -> str:
    return f"STALLED: waiting {one['since']:.0f} s for {one['who']}: {one['why']}. {one['remedy']}"


def _format_progress(report: dict[str, Any]) -> str:
    loss, accuracy = report["test_loss"], report["test_accuracy"]
    seen = "" if loss is None else f"; test loss {loss:.4f}, accuracy {accuracy:.2%}"
    return f"{report['bytes_up'] / 1e6:.1f} MB up, {report['bytes_down'] / 1e6:.1f} MB down{seen}"


def _format_remaining(report: dict[str, Any]) -> str:
    left = report["seconds_left"]
    return "" if left is None else f"{report['seconds']:.0f} s, about {left:.0f} s left"


def _build_row(one: dict[str, Any]) -> tuple[Any, ...]:
    """Return the row of one client: its state, number of samples and usage."""
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
