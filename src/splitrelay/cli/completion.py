"""`splitrelay completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say


@click.command(cls=Command, example="splitrelay completion bash >> ~/.bash_completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and keys in your shell."""
    from splitrelay.cli.main import app

    found = get_completion_class(shell)
    assert found is not None  # click ships these three
    say(found(app, {}, "splitrelay", "_SPLITRELAY_COMPLETE").source())
