"""Groups and commands that load late, fail in one line, and carry an example in their help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import click

from splitrelay.cli.key_values import Keys, list_keys
from splitrelay.errors import UnknownName, suggest_name


class Command(click.Command):
    """A command with an example, run by the tests, and with the keys of its key=value words."""

    def __init__(self, *args: Any, example: str = "", keys: Keys = (), **kwargs: Any) -> None:
        self.example, self.keys = example, keys
        super().__init__(*args, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The keys above the options."""
        keys = list_keys(self.keys)
        if keys:
            with formatter.section("Keys"):
                formatter.write_dl([(key.name, key.help) for key in keys])
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The example below the options."""
        if self.example:
            with formatter.section("Example"):
                formatter.write(f"  {self.example}\n")
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """`lazy` maps a command's name to (module:attribute, one line of help); the module is imported when called."""

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were written down."""
        return list(self.lazy) + list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it if need be."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.lazy[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown command gets the nearest known one."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise click.UsageError(f"unknown command '{args[0]}'. {suggest_name(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing one."""
        rows = [(name, line) for name, (_, line) in self.lazy.items()]
        rows += [(name, command.get_short_help_str(limit=90)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def kind_argument(what: str, kinds: Iterable[str]) -> Callable[..., Any]:
    """KIND, one of these; an unknown one is named before anything that is missing."""
    known = list(kinds)

    def chosen(ctx: click.Context, parameter: click.Parameter, kind: str) -> str:
        if kind not in known:
            raise UnknownName(what, kind, known)
        return kind

    return click.argument("kind", metavar=f"[{'|'.join(known)}]", callback=chosen)
