"""Options, log and warnings that the commands of a deployment share."""

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
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Seconds(click.FloatRange):
    """A number of seconds in a range; NaN is not accepted."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the text of an option."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def get_timeouts() -> Timeouts:
    """Return the timeouts with which a rehearsal has started this command, or the usual ones."""
    return click.get_current_context().find_object(Timeouts) or Timeouts()


insecure_option: Decorator = click.option(
    "--insecure", is_flag=True, help="Run without keys and encryption; only for tests on one machine."
)
log_option: Decorator = click.option(
    "--log", type=click.Choice(LOGS), default="lines", show_default=True, help="Log lines of text, or JSON objects."
)
away_option: Decorator = click.option(
    "--away",
    type=click.Choice(["wait", "retry", "skip"]),
    default="wait",
    show_default=True,
    help="What the server does when a client is absent longer than --lease.",
)


def keys_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --keys and --insecure."""
    keys = click.option(
        "--keys", type=click.Path(path_type=Path), help="This program's folder of keys (from splitrelay keys issue)."
    )
    return keys(insecure_option(command))


def build_logger(form: str, **fields: Any) -> Callable[[str], None]:
    """Return a function that logs a message on stderr unless -q is given.

    Args:
        form: One of LOGS.
        fields: Values in front of each line, or further keys of each JSON object.
    """

    def log(text: str) -> None:
        if not mood.quiet:
            _log(form, fields, text)

    return log


def build_alarm(form: str, **fields: Any) -> Callable[[str], None]:
    """Return a function that logs a message as an error, also if -q is given."""
    return lambda text: _log(form, {**fields, "level": "error"}, text)


def _log(form: str, fields: dict[str, Any], text: str) -> None:
    now, text = datetime.now(UTC), escape_unprintable(text)
    if form == "json":
        line = json.dumps({"time": now.isoformat(timespec="milliseconds"), **fields, "message": text})
    else:
        line = f"{now:%H:%M:%S} {' '.join(str(value) for value in fields.values())}: {text}"
    click.echo(line, err=True)


def warn_insecure(insecure: bool, form: str = "lines", **fields: Any) -> None:
    """Print a warning if keys and encryption are switched off."""
    text = "INSECURE: anyone who can reach this port can read everything and impersonate any participant."
    if insecure and form == "json":
        _log(form, {**fields, "level": "warning"}, text)
    elif insecure:
        click.echo(click.style(text, fg="red", bold=True) if sys.stderr.isatty() else text, err=True)


def notify_systemd(state: str = "READY=1") -> None:
    """Send the state to systemd if it has started this program as a service of type notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.connect("\0" + address[1:] if address.startswith("@") else address)
            notifier.sendall(state.encode())
