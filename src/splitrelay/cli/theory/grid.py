"""The settings of a command: the fixed keys, the varying keys, and every combination of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from splitrelay.cli.key_values import POINTS, Key, parsed
from splitrelay.cli.table_output import cell
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import Problem

FIGURE_POINTS = 241  # points of a range in a figure; a table has POINTS
MAX_PANELS = 9  # of a figure
CHOICES = ("constants", "horizon")  # keys whose values are names
OTHERS = ("eta", "eta_tilde", "eps", "r2", "DF", "G2", "E", "E_mean")  # numbers that do not belong to a Problem


@dataclass(frozen=True)
class Grid:
    """The values of every given key. A key with one value is fixed, a key with more values varies."""

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """The number of settings."""
        return prod(len(values) for values in self.values.values())

    @property
    def is_single(self) -> bool:
        """Whether there is only one setting."""
        return self.size == 1

    @property
    def varying(self) -> tuple[str, ...]:
        """The keys with more than one value."""
        return tuple(name for name, values in self.values.items() if len(values) > 1)

    @property
    def fixed(self) -> dict[str, Any]:
        """The keys with one value."""
        return {name: values[0] for name, values in self.values.items() if len(values) == 1}

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every setting as a dict of all keys. The last key changes fastest."""
        return [dict(zip(self.values, row, strict=True)) for row in product(*self.values.values())]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """One column for each varying key, in the order of `settings`."""
        columns = zip(*product(*(self.values[name] for name in self.varying)), strict=True)
        return {name: list(column) for name, column in zip(self.varying, columns, strict=True)}

    @property
    def choices(self) -> dict[str, Any]:
        """The values of constants= and horizon=, if given."""
        return {name: value for name, value in self.fixed.items() if name in CHOICES}

    @property
    def others(self) -> dict[str, Any]:
        """The steps and further numbers that do not belong to the problem."""
        return {name: value for name, value in (self.fixed | self.columns).items() if name in OTHERS}

    @property
    def problem(self) -> Problem:
        """The checked problem: a number for a fixed key and a column for a varying key."""
        from splitrelay.theory import Problem

        numbers = self.fixed | self.columns
        return Problem(**{name: value for name, value in numbers.items() if name not in (*OTHERS, *CHOICES)})

    @property
    def caption(self) -> str:
        """The fixed quantities on one line."""
        return ", ".join(f"{name}={cell(value)}" for name, value in self.fixed.items() if name not in CHOICES)

    @property
    def longest(self) -> str:
        """The key with the most values, which is on the x axis of a figure."""
        return max(self.varying, key=lambda name: len(self.values[name]))

    @property
    def abscissa(self) -> Sequence[Any]:
        """The values on the x axis. A single setting has one value without a meaning."""
        return [1.0] if self.is_single else self.values[self.longest]

    def split_panels(self, limit: int = MAX_PANELS) -> list[Grid]:
        """Return one grid for every combination of the varying keys other than the longest one."""
        rest = [name for name in self.varying if name != self.longest] if not self.is_single else []
        count = prod(len(self.values[name]) for name in rest)
        if count > limit:
            raise InputError(
                f"a figure shows at most {limit} panels", value=count, hint=f"Vary fewer of: {', '.join(rest)}."
            )
        return [
            Grid({**self.values, **{name: [value] for name, value in zip(rest, row, strict=True)}})
            for row in product(*(self.values[name] for name in rest))
        ]


def read_grid(
    settings: Sequence[str], keys: Iterable[Key], points: int = POINTS, other_keys: Mapping[str, str] | None = None
) -> Grid:
    """Read the key=value settings of a command.

    Args:
        points: the number of points of a range that does not state it.
        other_keys: keys that belong to related commands, with a hint for each.
    """
    for name, hint in (other_keys or {}).items():
        if any(setting.startswith(f"{name}=") for setting in settings):
            raise InputError(f"this command does not take {name}", hint=hint)
    return Grid(parsed(settings, keys, points))
