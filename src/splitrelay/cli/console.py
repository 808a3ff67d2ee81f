"""Where words go: results to stdout, notes to stderr, colour only on a terminal that wants it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import click


@dataclass
class Mood:
    """The three flags that hold for every command."""

    quiet: bool = False
    verbose: bool = False
    traceback: bool = False


mood = Mood()


def colour_wanted() -> bool:
    """NO_COLOR and pipes get plain text."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def emphasised(text: str) -> str:
    """Bold where there is a terminal that shows it."""
    return click.style(text, bold=True) if colour_wanted() else text


def say(text: str) -> None:
    """A line of the result."""
    click.echo(text, color=colour_wanted())


def note(text: str) -> None:
    """A remark beside the result: silent under -q."""
    if not mood.quiet:
        click.echo(text, err=True)


def detail(text: str) -> None:
    """A remark that only -v asks for."""
    if mood.verbose:
        click.echo(text, err=True)


def progress_hidden() -> bool:
    """Progress bars are for people at a terminal."""
    return mood.quiet or not sys.stderr.isatty()
