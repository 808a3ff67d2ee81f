"""Points looked through before a sweep begins: data, partition, model, engine, algorithm and order of each are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.errors import InputError
from splitrelay.models.weights_io import load_weights
from splitrelay.runs.build import (
    build_algorithm,
    build_engine,
    build_network,
    build_order,
    build_partition,
    resolve_spec,
)
from splitrelay.runs.spec import Spec
from splitrelay.sweeps.points import Point, Points, placed, without_twins


def settled(points: Sequence[Point]) -> Points:
    """The points with their engines written out, as runs are named by them.

    Whatever would be refused when a point starts is refused now, by the point's name.
    """
    once = _Once()
    found = []
    for number, point in enumerate(points):
        try:
            found.append(replace(point, spec=_looked_through(point.spec, once)))
        except InputError as error:
            where = f"point {number + 1} of {len(points)}, {point.label}" if len(points) > 1 else ""
            raise placed(where, error) from None
    return without_twins(found)


class _Once:
    """What points share is made once."""

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


def _looked_through(spec: Spec, once: _Once) -> Spec:
    """All but the evaluator is made, which takes longest and refuses nothing."""
    engine = once((spec.data, spec.model, spec.engine), lambda: resolve_spec(spec)[0].engine)
    spec = spec.model_copy(update={"engine": engine})
    data = once(spec.data.name, lambda: load(spec.data.name))
    dealt = (spec.data.name, spec.partition, spec.seed if spec.partition.seed is None else None)
    partition = once(dealt, lambda: build_partition(spec, data))
    but_for_the_seed = spec.model_copy(update={"seed": 0, "R": 1}).hash, dealt if spec.data.validation else None
    once(but_for_the_seed, lambda: _build_parts(spec, data, partition))
    return spec


def _build_parts(spec: Spec, data: DataSet, partition: Partition) -> None:
    network, _ = build_network(spec, data, partition)
    build_engine(spec, network)
    build_algorithm(spec, network, partition)
    build_order(spec, partition)
    if spec.model.init is not None:
        load_weights(Path(spec.model.init), network.model_spec.layout(network.dtype))
