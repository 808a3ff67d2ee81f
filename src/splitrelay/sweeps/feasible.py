"""Points looked through before a sweep begins: data, partition, model, engine, algorithm and order of each are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitrelay.data import load
from splitrelay.errors import InputError
from splitrelay.models.weights_io import load_weights
from splitrelay.runs.build import algorithm_of, engine_of, network_of, order_of
from splitrelay.runs.execute import partition_of, resolved, trial_of
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
    engine = once((spec.data, spec.model, spec.engine), lambda: resolved(spec)[0].engine)
    spec = spec.model_copy(update={"engine": engine})
    data = once(spec.data.name, lambda: load(spec.data.name))
    dealt = (spec.data.name, spec.partition, spec.seed if spec.partition.seed is None else None)
    partition = once(dealt, lambda: partition_of(spec, data))
    but_for_the_seed = spec.model_copy(update={"seed": 0, "R": 1}).hash, dealt if spec.data.validation else None
    once(but_for_the_seed, lambda: _made(spec, data, partition))
    return spec


def _made(spec: Spec, data: Any, partition: Any) -> None:
    trial = trial_of(spec)
    network, _ = network_of(trial, data, partition)
    engine_of(trial, network)
    algorithm_of(trial, network, partition)
    order_of(trial, partition)
    if trial.init is not None:
        load_weights(Path(trial.init), network.model_spec.layout(network.dtype))
