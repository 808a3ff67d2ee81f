"""How unlike the clients' data are: sizes, classes, and the distance of each client's label law from the global one.

Over the n classes as points that are all one apart, moving earth costs what must be moved: the earth mover's
distance is the total variation, half the L1 distance. What the field's papers print under that name since Zhao et
al. (2018) is the L1 distance itself, twice as much: so is `earth_movers` here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitrelay.data.allocation import Floats
from splitrelay.data.partition import Ints, Partition


@dataclass(frozen=True)
class Spread:
    """Five numbers for many; sd divides by the number of values, not by one less."""

    min: float
    median: float
    mean: float
    max: float
    sd: float


@dataclass(frozen=True)
class Heterogeneity:
    """Sizes over all clients; everything else over the clients that hold samples, each counted once."""

    sizes: Spread
    classes_per_client: Spread
    clients_per_class: Spread
    total_variation: Spread
    earth_movers: Spread
    one_class_clients: int
    empty: tuple[int, ...]


def heterogeneity(partition: Partition) -> Heterogeneity:
    """All measures of one partition, which must carry its labels."""
    held = partition.counts > 0
    distances = total_variation(partition.counts)
    per_client = held.sum(axis=1)
    return Heterogeneity(
        sizes=spread(partition.sizes),
        classes_per_client=spread(per_client[partition.sizes > 0]),
        clients_per_class=spread(held.sum(axis=0)),
        total_variation=spread(distances),
        earth_movers=spread(2 * distances),
        one_class_clients=int((per_client == 1).sum()),
        empty=partition.empty,
    )


def total_variation(counts: Ints) -> Floats:
    """Half the L1 distance between each client's label law and that of the whole set, for clients with samples."""
    sizes, N = counts.sum(axis=1, keepdims=True), int(counts.sum())
    # Over the common denominator size * N everything is a whole number: equal clients get equal distances.
    apart = np.abs(counts * N - sizes * counts.sum(axis=0)).sum(axis=1, keepdims=True)
    held = sizes > 0
    return np.asarray(apart[held] / (2 * N * sizes[held]))


def spread(values: NDArray[np.int64] | Floats) -> Spread:
    """Min, median, mean, max and standard deviation; equal values have none, whatever rounding says."""
    low, high = values.min(), values.max()
    five = (low, np.median(values), values.mean(), high, values.std() if low < high else 0.0)
    return Spread(*(float(value) for value in five))
