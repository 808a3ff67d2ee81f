"""The settings of a call: what is fixed, what varies, and every combination of it as columns."""

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

FINE = 241  # points of a range in a figure, where a table has POINTS
PANELS = 9  # that a figure can show
WORDS = ("constants", "horizon")
OTHERS = ("eta", "eta_tilde", "r2", "DF", "G2", "E", "E_mean")  # numbers that are no part of a problem


@dataclass(frozen=True)
class Grid:
    """Every key that was given with its values; one value is fixed, more of them vary."""

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """How many settings there are."""
        return prod(len(values) for values in self.values.values())

    @property
    def single(self) -> bool:
        """Whether one setting is asked for: then the answer is one, not a list."""
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
    def columns(self) -> dict[str, list[Any]]:
        """Every combination of what varies, one column a key, the last key turning fastest."""
        names = self.varying
        columns = zip(*product(*(self.values[name] for name in names)), strict=True)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    @property
    def numbers(self) -> dict[str, Any]:
        """What the calculator takes: a number for a fixed key, a column for one that varies."""
        given = {name: value for name, value in self.fixed.items() if name not in WORDS}
        return given | self.columns

    @property
    def words(self) -> dict[str, Any]:
        """constants= and horizon=, where given."""
        return {name: value for name, value in self.fixed.items() if name in WORDS}

    @property
    def others(self) -> dict[str, Any]:
        """The steps and further quantities, where given."""
        return {name: value for name, value in self.numbers.items() if name in OTHERS}

    @property
    def problem(self) -> Problem:
        """The quantities of the problem, checked."""
        from splitrelay.theory import Problem

        return Problem(**{name: value for name, value in self.numbers.items() if name not in OTHERS})

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Each setting in full, as JSON shows it."""
        names, rows = list(self.values), product(*self.values.values())
        return [dict(zip(names, row, strict=True)) for row in rows]

    @property
    def caption(self) -> str:
        """What is fixed, in a line."""
        return ", ".join(f"{name}={cell(value)}" for name, value in self.fixed.items() if name not in WORDS)

    @property
    def longest(self) -> str:
        """The key with the most values: the abscissa of a figure."""
        return max(self.varying, key=lambda name: len(self.values[name]))

    @property
    def abscissa(self) -> Sequence[Any]:
        """The values of the longest key; one setting has a single one, of no meaning."""
        return [1.0] if self.single else self.values[self.longest]

    def panels(self, limit: int = PANELS) -> list[Grid]:
        """One grid for every combination of what varies beside the longest key."""
        rest = [name for name in self.varying if name != self.longest] if not self.single else []
        many = prod(len(self.values[name]) for name in rest)
        if many > limit:
            raise InputError(
                f"a figure shows at most {limit} panels", value=many, hint=f"Vary fewer of: {', '.join(rest)}."
            )
        return [self._with(dict(zip(rest, row, strict=True))) for row in product(*(self.values[n] for n in rest))]

    def _with(self, chosen: Mapping[str, Any]) -> Grid:
        return Grid({name: [chosen[name]] if name in chosen else values for name, values in self.values.items()})


def read_grid(
    settings: Sequence[str], keys: Iterable[Key], points: int = POINTS, elsewhere: Mapping[str, str] | None = None
) -> Grid:
    """The key=value words of a command; `elsewhere` are keys of its neighbours, with what to do instead."""
    for name, instead in (elsewhere or {}).items():
        if any(word.startswith(f"{name}=") for word in settings):
            raise InputError(f"{name} has no place here", hint=instead)
    return Grid(parsed(settings, keys, points))


def column(value: Any, size: int) -> list[Any]:
    """A result as one value per setting."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    return plain if isinstance(plain, list) else [plain] * size
