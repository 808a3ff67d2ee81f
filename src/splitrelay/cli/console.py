"""Print results to stdout and notes to stderr, with colour only on terminals that support it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import click


@dataclass
class Mood:
    """The three global flags."""

    quiet: bool = False
    verbose: bool = False
    traceback: bool = False


mood = Mood()


def colour_wanted() -> bool:
    """Return whether stdout is a terminal with colours and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def emphasised(text: str) -> str:
    """Return the text in bold if stdout has colours."""
    return click.style(text, bold=True) if colour_wanted() else text


def say(text: str) -> None:
    """Print a line of the result."""
    click.echo(text, color=colour_wanted())


def note(text: str) -> None:
    """Print a note to stderr, unless -q is set."""
    if not mood.quiet:
        click.echo(text, err=True)


def detail(text: str) -> None:
    """Print a note to stderr if -v is set."""
    if mood.verbose:
        click.echo(text, err=True)


def progress_hidden() -> bool:
    """Return whether progress bars are disabled: with -q, or if stderr is not a terminal."""
    return mood.quiet or not sys.stderr.isatty()
