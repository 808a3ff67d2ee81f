"""The points of a sweep: every combination of the given values, each a spec that could be run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.runs.spec import Spec, load_spec

LONGEST = 80  # letters of a point's readable name
PLAIN = ("preset", "algorithm", "data", "model", "partition", "protocol")  # whose values say what they are
Settings = tuple[tuple[str, str], ...]
Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Point:
    """One spec of a sweep, and the settings in which it differs from the others."""

    spec: Spec
    settings: Settings

    @property
    def label(self) -> str:
        """For tables and messages: the settings that vary."""
        return _label(self.settings) or self.spec.algorithm

    @property
    def name(self) -> str:
        """For folders: the settings that vary and the run's hash. No =, which marks settings on a command line."""
        words = [_told(name, text) for name, text in self.settings] or [self.spec.algorithm]
        plain = re.sub(r"[^\w.+-]+", "-", "-".join(words)).strip("-.")
        return f"{plain[:LONGEST]}-{self.spec.hash}"


@dataclass(frozen=True)
class Points:
    """All points in order, the last key turning fastest, and what was left out because it was there already."""

    points: list[Point]
    dropped: list[str]


def points_of(file: Path | None, values: Values, varying: Collection[str] | None = None) -> Points:
    """Every combination of the values; one that no spec allows is refused by its name.

    Points are called by the keys that have several values, or by those that `varying` names.
    """
    several = [name for name, texts in values.items() if len(texts) > 1] if varying is None else varying
    chosen = [tuple(zip(values, texts, strict=True)) for texts in product(*values.values())]
    points = []
    for number, settings in enumerate(chosen):
        telling = tuple((name, text) for name, text in settings if name in several)
        where = f"point {number + 1} of {len(chosen)}, {_label(telling)}" if len(chosen) > 1 else ""
        points.append(_point(file, settings, telling, where))
    return without_twins(points)


def without_twins(points: Sequence[Point]) -> Points:
    """R is not in a run's hash: of two points that differ only in it, the longer run holds the other."""
    found: dict[str, Point] = {}
    for point in points:
        if point.spec.hash not in found or point.spec.R > found[point.spec.hash].spec.R:
            found[point.spec.hash] = point
    twins = [point for point in points if found[point.spec.hash] is not point]
    return Points(list(found.values()), [f"{p.label}, the same run as {found[p.spec.hash].label}" for p in twins])


def _point(file: Path | None, settings: Settings, telling: Settings, where: str) -> Point:
    try:
        return Point(load_spec(file, [f"{name}={text}" for name, text in settings]), telling)
    except InputError as error:
        raise placed(where, error) from None


def placed(where: str, error: InputError) -> InputError:
    """The same error, with the point it belongs to."""
    return InputError(f"{where}: {error}") if where else error


def _told(name: str, text: str) -> str:
    """eta0.1, ssl, order-replacement."""
    return f"{name}{text}" if is_number(text) else text if name in PLAIN else f"{name}-{text}"


def _label(settings: Settings) -> str:
    return " ".join(f"{name}={text}" for name, text in settings)


def is_number(text: str) -> bool:
    """Whether a setting reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def grouped(points: Sequence[Point], key: str) -> dict[Settings, list[Point]]:
    """The points in groups that differ in nothing but this key."""
    groups: dict[Settings, list[Point]] = {}
    for point in points:
        rest = tuple(setting for setting in point.settings if setting[0] != key)
        groups.setdefault(rest, []).append(point)
    return groups
