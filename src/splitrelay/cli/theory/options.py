"""The words and keys of `splitrelay theory`: their names, how they are read, what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from splitrelay.cli.console import note, say
from splitrelay.cli.key_values import Key, TextParam, choice, count, number
from splitrelay.errors import InputError, UnknownName
from splitrelay.notation import describe_symbol

# The names of splitrelay.theory, written again: reading them there would cost every --help an import of numpy.
ALGORITHMS = ("ssl", "fedavg", "fedavg-swor", "fedavg-swr")
CASES = ("strongly-convex", "general-convex", "non-convex")
CONSTANTS = ("proved", "printed", "tight")
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
STARRED = (
    Key("zeta2_star", number, "heterogeneity at the optimum, where it differs from zeta2"),
    Key("sigma2_star", number, "variance of a stochastic gradient at the optimum"),
)
STEPS = (Key("eta", number, describe_symbol("eta")), Key("eta_tilde", number, describe_symbol("eta_tilde")))
CHOSEN_CONSTANTS = Key(
    "constants", choice(*CONSTANTS), "proved (default), printed (as displayed), tight (sharpened)", many=False
)
HORIZON = Key("horizon", choice(*HORIZONS), "R (default, as printed) or R+1 (as proved, a little sharper)", many=False)


class Word(TextParam):
    """One of a few words, with the nearest one where it is none of them."""

    def __init__(self, kind: str, known: Sequence[str]) -> None:
        self.name, self.known = kind, known

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word itself."""
        if value in self.known:
            return value
        if "=" in value:
            raise InputError(f"the {self.name} is missing before '{value}'", hint=f"One of: {', '.join(self.known)}.")
        raise UnknownName(self.name, value, self.known)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that begin like this."""
        return [CompletionItem(word) for word in self.known if word.startswith(incomplete)]


class Names(Word):
    """One or more of the words, with commas between; some words stand for several."""

    def __init__(self, kind: str, known: Sequence[str], together: Mapping[str, Sequence[str]]) -> None:
        super().__init__(kind, (*known, *together))
        self.together = together

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The words, each once, in the order given."""
        words = [super(Names, self).convert(word, param, ctx) for word in value.split(",")]
        return tuple(dict.fromkeys(name for word in words for name in self.together.get(word, (word,))))


def word_argument(name: str, kind: str, known: Sequence[str]) -> Callable[[Any], Any]:
    """A word before the key=value words."""
    return click.argument(name, type=Word(kind, known), metavar=name.upper())


algorithm_argument = word_argument("alg", "algorithm", ALGORITHMS)
case_argument = word_argument("case", "case", CASES)
figure_option = click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw it: the name ends in .pdf, .png or .svg. With --format it is printed too.",
)


def figure_alone(path: Path | None) -> bool:
    """Whether a figure is all that is asked for: one is named, and no format is."""
    source = click.get_current_context().get_parameter_source("shape")
    return path is not None and source is ParameterSource.DEFAULT


def announce(path: Path) -> None:
    """Where the figure went: on stdout if it is the answer, beside the answer otherwise."""
    (say if figure_alone(path) else note)(f"figure: {path}")
