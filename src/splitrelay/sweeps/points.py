"""The points of a sweep: every combination of the given values, each of them a spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.errors import InputError
from splitrelay.runs.spec import Spec, load_spec

if TYPE_CHECKING:
    from splitrelay.data.images import DataSet
    from splitrelay.data.partition import Partition

MAX_NAME = 80  # characters of a point's readable name
PLAIN = ("preset", "algorithm", "data", "model", "partition", "protocol")  # keys whose values need no name
Settings = tuple[tuple[str, str], ...]
Values = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Point:
    """One spec of a sweep, and the settings in which it differs from the others."""

    spec: Spec
    settings: Settings

    @property
    def label(self) -> str:
        """Return the settings that vary, for tables and messages."""
        return _format_settings(self.settings) or self.spec.algorithm

    @property
    def name(self) -> str:
        """Return a folder name: the settings that vary, and the hash. It has no =, which marks settings."""
        words = []
        for name, text in self.settings or (("algorithm", self.spec.algorithm),):  # eta0.1, ssl, order-replacement
            words.append(f"{name}{text}" if _is_number(text) else text if name in PLAIN else f"{name}-{text}")
        plain = re.sub(r"[^\w.+-]+", "-", "-".join(words)).strip("-.")
        return f"{plain[:MAX_NAME]}-{self.spec.hash}"


@dataclass(frozen=True)
class Points:
    """All points in order, the last key varying fastest, and descriptions of the duplicates that were dropped."""

    points: list[Point]
    dropped: list[str]


def expand_points(file: Path | None, values: Values, varying: Collection[str] | None = None) -> Points:
    """Return a point for every combination of values.

    Args:
        file: The spec to start from, or None for the default spec.
        values: The values of each key.
        varying: The keys that name the points (default: those with several values).

    Raises:
        InputError: A combination is not a valid spec. The error names the point.
    """
    several = [name for name, texts in values.items() if len(texts) > 1] if varying is None else varying
    combinations = [tuple(zip(values, texts, strict=True)) for texts in product(*values.values())]
    points = []
    for number, settings in enumerate(combinations):
        own = tuple((name, text) for name, text in settings if name in several)
        try:
            points.append(Point(load_spec(file, [f"{name}={text}" for name, text in settings]), own))
        except InputError as error:
            raise _name_point(error, number, len(combinations), _format_settings(own)) from None
    return drop_duplicates(points)


def drop_duplicates(points: Sequence[Point]) -> Points:
    """Keep one point per hash. R is not part of the hash: the run with more rounds includes the other."""
    kept: dict[str, Point] = {}
    for point in points:
        if point.spec.hash not in kept or point.spec.R > kept[point.spec.hash].spec.R:
            kept[point.spec.hash] = point
    dropped = [point for point in points if kept[point.spec.hash] is not point]
    return Points(list(kept.values()), [f"{p.label}, the same run as {kept[p.spec.hash].label}" for p in dropped])


def check_points(points: Sequence[Point], device: str = "cpu") -> Points:
    """Resolve the engine of each point, and check that each point can start.

    Data, partition, network, engine, algorithm and order of each point are built once. The evaluator is not: it takes
    the longest time and has nothing to check.

    Raises:
        InputError: A point cannot start. The error names the point.
    """
    cache: dict[Hashable, Any] = {}
    checked = []
    for number, point in enumerate(points):
        try:
            checked.append(replace(point, spec=_check_spec(point.spec, cache, device)))
        except InputError as error:
            raise _name_point(error, number, len(points), point.label) from None
    return drop_duplicates(checked)


def _check_spec(spec: Spec, cache: dict[Hashable, Any], device: str) -> Spec:
    # Imported here because torch takes seconds to import, and a wrong key should be reported at once.
    from splitrelay.runs.build import build_partition, load_data, resolve_spec  # noqa: PLC0415

    def once(key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in cache:
            cache[key] = make()
        return cache[key]

    spec = spec.model_copy(update={"threads": spec.threads or 1})  # parallel jobs use the cores
    resolved = once((spec.data, spec.model, spec.engine, spec.partition, spec.S), lambda: resolve_spec(spec, device)[0])
    spec = spec.model_copy(update={"engine": resolved.engine, "partition": resolved.partition})
    data = once(("data", spec.data), lambda: load_data(spec.data))
    division = (spec.data, spec.partition, spec.seed if spec.partition.seed is None else None)
    partition = once(division, lambda: build_partition(spec, data))
    without_seed = spec.model_copy(update={"seed": 0, "R": 1}).hash
    once((without_seed, division if spec.data.validation else None), lambda: _build_parts(spec, data, partition))
    return spec


def _build_parts(spec: Spec, data: DataSet, partition: Partition) -> None:
    from splitrelay.models.weights_io import load_weights  # noqa: PLC0415
    from splitrelay.runs.build import build_algorithm, build_engine, build_network, build_order  # noqa: PLC0415

    network, _ = build_network(spec, data, partition)
    build_engine(spec, network)
    build_algorithm(spec, network, partition)
    build_order(spec, partition)
    if spec.model.init is not None:
        load_weights(Path(spec.model.init), network.model_spec.layout(network.dtype))


def _name_point(error: InputError, number: int, total: int, label: str) -> InputError:
    """Return the error with the name of its point, unless there is only one."""
    return InputError(f"point {number + 1} of {total}, {label}: {error}") if total > 1 else error


def _format_settings(settings: Settings) -> str:
    return " ".join(f"{name}={text}" for name, text in settings)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
