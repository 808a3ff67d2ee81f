"""Print results, notes and tables; handle Ctrl-C."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # --help needs none of them
    from pathlib import Path
    from types import FrameType

    from splitrelay.table import Table


@dataclass
class Mood:
    """The three global flags."""

    quiet: bool = False
    verbose: bool = False
    traceback: bool = False


mood = Mood()


def has_colours() -> bool:
    """Return whether stdout is a terminal with colours and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def emphasize(text: str) -> str:
    """Return the text in bold if stdout has colours."""
    return click.style(text, bold=True) if has_colours() else text


def say(text: str) -> None:
    """Print a line of the result."""
    click.echo(text, color=has_colours())


def note(text: str) -> None:
    """Print a note to stderr, unless -q is set."""
    if not mood.quiet:
        click.echo(text, err=True)


def detail(text: str) -> None:
    """Print a note to stderr if -v is set."""
    if mood.verbose:
        click.echo(text, err=True)


def is_progress_hidden() -> bool:
    """Return whether progress bars are disabled: with -q, or if stderr is not a terminal."""
    return mood.quiet or not sys.stderr.isatty()


STOPPED = 130  # exit code of a command that was stopped before its end (Ctrl-C, SIGTERM)
FINISHING = "finishing this visit; once more stops at once."


@contextmanager
def stopping(words: str | None = FINISHING) -> Iterator[Event]:
    """Yield an event that the first signal sets. The second signal raises KeyboardInterrupt.

    Args:
        words: The note that is printed at the first signal, if any.
    """
    import signal

    stop = Event()

    def first(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if words is not None:
            note(words)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


FORMATS = ("table", "csv", "markdown", "json")


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --format to a command."""
    return click.option(
        "--format", "shape", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print it."
    )(command)


def emit(table: Table, payload: object, shape: str) -> None:
    """Print a table in one of FORMATS; as JSON the payload."""
    from splitrelay.table import format_json

    texts: dict[str, Callable[[], str]] = {
        "json": lambda: format_json(payload),
        "csv": table.to_csv,
        "markdown": table.to_markdown,
        "table": lambda: format_terminal(table),
    }
    say(texts[shape]().rstrip("\n"))


def format_terminal(table: Table) -> str:
    """Return the table as text for the terminal; pipes and files have no width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    return table.to_text(width, emphasize)


def format_tick(holds: bool) -> str:
    """Return a sign for yes or no, in letters if the output cannot carry the sign."""
    mark = "✓" if holds else "✗"
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "yes" if holds else "NO"
    return mark


def prepare_folder(folder: Path) -> None:
    """Make a folder and check that it can be written to, before the work rather than after it."""
    from tempfile import TemporaryFile

    from splitrelay.atomic_files import build_write_error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise build_write_error(folder, error) from None
