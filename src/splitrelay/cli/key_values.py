"""key=value on the command line: numbers, counts, choices; comma lists and ranges `from:to[:log|lin][:points]`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from splitrelay.errors import InputError, OutOfRange, UnknownName

if TYPE_CHECKING:  # click.ParamType is generic in its newer releases only
    from click.shell_completion import CompletionItem

    TextParam = click.ParamType[str]
else:
    TextParam = click.ParamType

POINTS = 25  # of a range without a number of points
MOST_POINTS = 1_000_000  # of a range with one


@dataclass(frozen=True)
class Key:
    """A key: its name, the function that reads a value, and its help text."""

    name: str
    read: Callable[[str, str], Any]
    help: str = ""
    many: bool = True  # lists and ranges allowed


Keys = Iterable[Key] | Callable[[], Iterable[Key]]  # a function loads the keys only when they are needed


def list_keys(keys: Keys) -> list[Key]:
    """Return the keys, loading them if necessary."""
    return list(keys() if callable(keys) else keys)


def number(name: str, text: str) -> float:
    """Read a finite number, or a fraction such as 4/3."""
    from fractions import Fraction

    numerator, slash, denominator = text.partition("/")
    try:  # Fraction refuses 1/1.8 as a whole
        value = float(Fraction(numerator) / Fraction(denominator)) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} must be a number", value=repr(text)) from None
    if not math.isfinite(value):
        raise InputError(f"{name} must be a finite number", value=repr(text))
    return value


def count(name: str, text: str) -> int:
    """Read a whole number from 1 on, also in the form 1e6."""
    value = number(name, text)
    if value != int(value) or value < 1:
        raise OutOfRange(f"{name} must be a whole number", value=text, limit=f"{name} >= 1")
    return int(value)


def seed(name: str, text: str) -> int:
    """Read a whole number from 0 on."""
    value = number(name, text)
    if value != int(value) or value < 0:
        raise OutOfRange(f"{name} must be a whole number", value=text, limit=f"{name} >= 0")
    return int(value)


def words(name: str, text: str) -> str:
    """Return the text unchanged."""
    return text


NUMBERS = (number, count, seed)  # keys of these types accept ranges


def choice(*allowed: str) -> Callable[[str, str], str]:
    """Return a function that reads one of these words."""

    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise UnknownName(name, text, allowed)
        return text

    return read


def parse_settings(settings: Sequence[str], keys: Iterable[Key], points: int = POINTS) -> dict[str, list[Any]]:
    """Return the given keys with their values in order. A range without a number of points has `points` points."""
    known = {key.name: key for key in keys}
    found: dict[str, list[Any]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"'{setting}' is not of the form key=value", hint=f"Keys: {', '.join(known)}.")
        if name not in known:
            raise UnknownName("key", name, known)
        if name in found:
            is_list = known[name].many and known[name].read is not words
            again = f"a list instead: {name}=a,b" if is_list else "it once"
            raise InputError(f"{name} is given twice", hint=f"Give {again}.")
        found[name] = _parse_values(known[name], text, points)
    return found


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the given values. The last key changes fastest."""
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def _parse_values(key: Key, text: str, points: int) -> list[Any]:
    if key.read is words:  # a path may hold commas and colons
        return [key.read(key.name, text)]
    values = [value for part in text.split(",") for value in _parse_range(key, part.strip(), points)]
    if len(values) > 1 and not key.many:
        raise InputError(f"{key.name} takes one value", value=repr(text))
    return values


def _parse_range(key: Key, text: str, points: int) -> list[Any]:
    if ":" not in text or key.read not in NUMBERS:
        return [key.read(key.name, text)]
    start, stop, logarithmic, stated = _parse_range_parts(key, text)
    points = stated or points
    values = [_interpolate(start, stop, logarithmic, j / max(points - 1, 1)) for j in range(points)]
    if key.read in (count, seed):
        return sorted({key.read(key.name, str(round(value))) for value in values})
    return values


def _parse_range_parts(key: Key, text: str) -> tuple[float, float, bool, int | None]:
    start, stop, *rest = text.split(":")
    words = [word for word in rest if word in ("log", "lin")]
    others = [word for word in rest if word not in ("log", "lin")]
    if len(words) > 1 or len(others) > 1 or any(word[:1].isalpha() for word in others):
        raise InputError(f"{key.name}={text} is not a range", hint="Ranges: from:to, from:to:log, from:to:log:50.")
    points = [count(f"points of {key.name}", word) for word in others]
    if points and points[0] > MOST_POINTS:
        raise OutOfRange(f"points of {key.name}", limit=f"at most {MOST_POINTS:,}", value=f"{points[0]:,}")
    low, high = number(key.name, start), number(key.name, stop)
    if words == ["log"] and min(low, high) <= 0:
        raise OutOfRange(f"{key.name}: a log range", limit="ends above 0", value=text)
    return low, high, words == ["log"], points[0] if points else None


def _interpolate(start: float, stop: float, logarithmic: bool, share: float) -> float:
    if share in (0.0, 1.0):
        return stop if share else start
    if logarithmic:
        return math.exp(math.log(start) * (1 - share) + math.log(stop) * share)
    return start * (1 - share) + stop * share


class Settings(TextParam):
    """The key=value arguments of a command, for the help text and the completion in the shell."""

    name = "key=value"

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the keys that start with this text."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(f"{key.name}=", help=key.help)
            for key in list_keys(self.keys)
            if f"{key.name}=".startswith(incomplete)
        ]


def settings_argument(keys: Keys, metavar: str = "[KEY=VALUE]...") -> Callable[[Any], Any]:
    """Return the argument for the key=value settings of a command."""
    return click.argument("settings", nargs=-1, type=Settings(keys), metavar=metavar)
