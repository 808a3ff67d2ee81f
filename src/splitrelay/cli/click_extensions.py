"""Click commands with keys and an example in their help, and groups that import their commands lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from splitrelay.cli.key_values import Keys, list_keys
from splitrelay.errors import UnknownName, suggest_name


class Command(click.Command):
    """A command with an example, which the tests run, and with keys for its key=value arguments."""

    def __init__(self, *args: Any, example: str = "", keys: Keys = (), **kwargs: Any) -> None:
        self.example, self.keys = example, keys
        super().__init__(*args, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the keys above the options."""
        keys = list_keys(self.keys)
        if keys:
            with formatter.section("Keys"):
                formatter.write_dl([(key.name, key.help) for key in keys])
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example below the options."""
        if self.example:
            with formatter.section("Example"):
                formatter.write(f"  {self.example}\n")
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """A group whose commands are imported when they are called.

    Args:
        lazy: For each command (module:attribute, one line of help).
        sections: Titles in the help, each with the names of its commands (default: one section).
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy, self.sections = dict(lazy or {}), sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their definition."""
        return list(self.lazy) + list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module if necessary."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.lazy[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the nearest known name."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise click.UsageError(f"unknown command '{args[0]}'. {suggest_name(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands section by section, without importing them."""
        lines = {name: line for name, (_, line) in self.lazy.items()}
        lines |= {name: command.get_short_help_str(limit=90) for name, command in self.commands.items()}
        width = max(map(len, lines), default=0)
        for title, names in (self.sections or {"Commands": list(lines)}).items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), lines[name]) for name in names])


def kind_argument(what: str, kinds: Iterable[str]) -> Callable[..., Any]:
    """Return the argument KIND with these choices. An unknown kind is reported before missing arguments."""
    known = list(kinds)

    def chosen(ctx: click.Context, parameter: click.Parameter, kind: str) -> str:
        if kind not in known:
            raise UnknownName(what, kind, known)
        return kind

    return click.argument("kind", metavar=f"[{'|'.join(known)}]", callback=chosen)


def figure_options(command: Any) -> Any:
    """Add the options of commands that draw figures of a study."""
    for option in (
        click.option("--figures/--no-figures", default=True, show_default=True, help="Whether figures are drawn."),
        click.option("--ending", type=click.Choice(["png", "pdf", "svg"]), default="png", show_default=True,
                     help="Format of the figures."),
    ):  # fmt: skip
        command = option(command)
    return command
