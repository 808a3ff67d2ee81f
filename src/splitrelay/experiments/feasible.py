"""Specs looked through before a sweep begins: data, partition, model, algorithm and order of every point are made."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from splitrelay.data import load
from splitrelay.errors import InputError
from splitrelay.experiments.assembly import algorithm_of, engine_of, network_of, order_of
from splitrelay.experiments.points import Point, placed
from splitrelay.experiments.running import partition_of, trial_of
from splitrelay.experiments.spec import Spec
from splitrelay.models.files import load_weights


def refuse_impossible(points: Sequence[Point]) -> None:
    """Whatever would be refused when a point starts is refused now, by the point's name."""
    seen: dict[Hashable, Any] = {}
    for number, point in enumerate(points):
        try:
            _look_through(point.spec, seen)
        except InputError as error:
            where = f"point {number + 1} of {len(points)}, {point.label}" if len(points) > 1 else ""
            raise placed(where, error) from None


def _look_through(spec: Spec, seen: dict[Hashable, Any]) -> None:
    """All but the evaluator, which takes longest to make and refuses nothing; what points share is made once."""
    of_data = ("data", spec.data.name)
    data = seen[of_data] if of_data in seen else seen.setdefault(of_data, load(spec.data.name))
    dealt = (of_data, spec.partition, spec.seed if spec.partition.seed is None else None)
    partition = seen[dealt] if dealt in seen else seen.setdefault(dealt, partition_of(spec, data))
    everything = spec.model_copy(update={"seed": 0, "R": 1}).hash, dealt if spec.data.validation else None
    if everything in seen:
        return
    trial = trial_of(spec)
    network, _ = network_of(trial, data, partition)
    engine_of(trial, network)
    algorithm_of(trial, network, partition)
    order_of(trial, partition)
    if trial.init is not None:
        load_weights(Path(trial.init), network.blueprint.layout(network.dtype))
    seen[everything] = True
