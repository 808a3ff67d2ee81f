"""The arguments and keys that the theory commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import format_option
from splitrelay.cli.key_values import Key, TextParam, choice, count, number, settings_argument
from splitrelay.errors import InputError, UnknownName
from splitrelay.notation import describe_symbol

# Copies of the names in splitrelay.theory. Importing them would load numpy for every --help. A test compares them.
ALGORITHMS = ("ssl", "ssl-swor", "fedavg", "fedavg-swor", "fedavg-swr")
CASES = ("strongly-convex", "general-convex", "non-convex")
CONSTANTS = ("sharp", "proved", "printed", "tight")
HORIZONS = ("R", "R+1")

QUANTITIES = (
    Key("L", number, describe_symbol("L")),
    Key("mu", number, describe_symbol("mu")),
    Key("sigma2", number, "variance of a stochastic gradient"),
    Key("zeta2", number, "heterogeneity: zeta_*^2 if convex, zeta^2 if non-convex"),
    Key("B2", number, "factor of ||grad F||^2 in the bound on heterogeneity"),
    Key("M", count, describe_symbol("M")),
    Key("S", count, describe_symbol("S")),
    Key("K", count, describe_symbol("K")),
    Key("R", count, describe_symbol("R")),
    Key("D2", number, describe_symbol("D2")),
    Key("A", number, describe_symbol("A")),
)
ZETA2_STAR = Key("zeta2_star", number, "heterogeneity at the optimum, if it differs from zeta2")
SIGMA2_STAR = Key("sigma2_star", number, "variance of a stochastic gradient at the optimum")
ETA, ETA_TILDE = (Key(name, number, describe_symbol(name)) for name in ("eta", "eta_tilde"))
CONSTANTS_KEY = Key(
    "constants",
    choice(*CONSTANTS),
    "sharp (default if convex), proved (default if non-convex), printed (as in the paper), tight (simple constants)",
    many=False,
)
HORIZON_KEY = Key(
    "horizon", choice(*HORIZONS), "R (default, as in the theorems) or R+1 (sharper, as proved)", many=False
)


class NameParam(TextParam):
    """One of a few names. An unknown name is an error with the nearest known name."""

    def __init__(self, kind: str, known: Sequence[str]) -> None:
        self.name, self.known = kind, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name if it is known."""
        if value in self.known:
            return value
        if "=" in value:
            raise InputError(f"the {self.name} is missing before '{value}'", hint=f"One of: {', '.join(self.known)}.")
        raise UnknownName(self.name, value, self.known)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that start with the given text."""
        return [CompletionItem(name) for name in self.known if name.startswith(incomplete)]


class NameListParam(NameParam):
    """One or more names with commas between them. A group name stands for several names."""

    def __init__(self, kind: str, known: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__(kind, (*known, *groups))
        self.groups = groups

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names without repetition, in the given order."""
        names = [super(NameListParam, self).convert(part, param, ctx) for part in value.split(",")]
        return tuple(dict.fromkeys(name for part in names for name in self.groups.get(part, (part,))))


algorithm_argument = click.argument("alg", type=NameParam("algorithm", ALGORITHMS), metavar="ALG")
case_argument = click.argument("case", type=NameParam("case", CASES), metavar="CASE")
figure_option = click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a figure (.pdf, .png or .svg). The result is printed, too, only if --format is given.",
)


def grid_command(
    keys: Sequence[Key], example: str, *arguments: Callable[[Any], Any], metavar: str = "[KEY=VALUE]..."
) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command with arguments, key=value settings, --format and --figure."""

    def declare(function: Callable[..., None]) -> click.Command:
        for decorator in (figure_option, format_option, settings_argument(keys, metavar), *reversed(arguments)):
            function = decorator(function)
        return click.command(cls=Command, keys=keys, example=f"splitrelay theory {example}")(function)

    return declare
