"""What the programs that talk to other hosts share: keys, addresses, and their log."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from splitrelay.cli.console import mood
from splitrelay.errors import escape_unprintable
from splitrelay.network.limits import Timeouts

LOGS = ("lines", "json")


class Seconds(click.FloatRange):
    """So many seconds, within a range that not-a-number is not in."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, if it is one."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def get_timeouts() -> Timeouts:
    """Return the timeouts with which a rehearsal has started this command, or the usual ones."""
    return click.get_current_context().find_object(Timeouts) or Timeouts()


def keys_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--keys, or the word that does without."""
    insecure = click.option("--insecure", is_flag=True, help="Without keys or encryption: for tests on one machine.")
    keys = click.option(
        "--keys", type=click.Path(path_type=Path), help="The folder that splitrelay keys issue made for this program."
    )
    return keys(insecure(command))


def log_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--log, for people or for machines."""
    return click.option(
        "--log", type=click.Choice(LOGS), default="lines", show_default=True, help="How to say what happens."
    )(command)


def logger(form: str, **who: Any) -> Callable[[str], None]:
    """Says what happens on stderr: a line, or a JSON object per line; silent under -q."""

    def say(text: str) -> None:
        if not mood.quiet:
            _log(form, who, text)

    return say


def alarm(form: str, **who: Any) -> Callable[[str], None]:
    """Says what somebody must see to, -q or not."""
    return lambda text: _log(form, {**who, "level": "error"}, text)


def _log(form: str, who: dict[str, Any], text: str) -> None:
    now, text = datetime.now(UTC), escape_unprintable(text)
    if form == "json":
        line = json.dumps({"time": now.isoformat(timespec="milliseconds"), **who, "message": text})
    else:
        line = f"{now:%H:%M:%S} {' '.join(str(value) for value in who.values())}: {text}"
    click.echo(line, err=True)


def warn_insecure(insecure: bool, form: str = "lines", **who: Any) -> None:
    """Nothing weaker than mutual TLS goes unsaid."""
    text = "INSECURE: anybody who reaches this port can read everything and be anyone."
    if insecure and form == "json":
        _log(form, {**who, "level": "warning"}, text)
    elif insecure:
        click.echo(click.style(text, fg="red", bold=True) if sys.stderr.isatty() else text, err=True)


def ready(state: str = "READY=1") -> None:
    """Tell systemd, where it asks to be told."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.connect("\0" + address[1:] if address.startswith("@") else address)
            line.sendall(state.encode())
