"""Measure the heterogeneity of a partition: sizes, classes, and distances of label distributions.

If all pairs of classes have distance one, the earth mover's distance is the total variation, which is half the L1
distance. Papers since Zhao et al. (2018) print the L1 distance, twice as much, under the name earth mover's distance.
`earth_movers` follows these papers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.data.partition import Ints, Partition

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Five statistics of many values. The standard deviation sd divides by the number of values."""

    min: float
    median: float
    mean: float
    max: float
    sd: float


@dataclass(frozen=True)
class Heterogeneity:
    """The sizes are over all clients. All other measures are over the clients with samples, with equal weights."""

    sizes: Spread
    classes_per_client: Spread
    clients_per_class: Spread
    total_variation: Spread
    earth_movers: Spread
    one_class_clients: int
    empty: tuple[int, ...]


def measure_heterogeneity(partition: Partition) -> Heterogeneity:
    """Compute all measures of a partition with labels."""
    held = partition.counts > 0
    distances = compute_total_variation(partition.counts)
    per_client = held.sum(axis=1)
    return Heterogeneity(
        sizes=compute_spread(partition.sizes),
        classes_per_client=compute_spread(per_client[partition.sizes > 0]),
        clients_per_class=compute_spread(held.sum(axis=0)),
        total_variation=compute_spread(distances),
        earth_movers=compute_spread(2 * distances),
        one_class_clients=int((per_client == 1).sum()),
        empty=partition.empty,
    )


def compute_total_variation(counts: Ints) -> Floats:
    """Return half the L1 distance between the label distributions of each client with samples and of the whole set."""
    sizes, N = counts.sum(axis=1, keepdims=True), int(counts.sum())
    # With the common denominator size * N all terms are integers, so equal clients get exactly equal distances.
    apart = np.abs(counts * N - sizes * counts.sum(axis=0)).sum(axis=1, keepdims=True)
    held = sizes > 0
    return np.asarray(apart[held] / (2 * N * sizes[held]))


def compute_spread(values: NDArray[np.int64] | Floats) -> Spread:
    """Return min, median, mean, max and standard deviation. Equal values have sd = 0 in spite of rounding."""
    low, high = values.min(), values.max()
    five = (low, np.median(values), values.mean(), high, values.std() if low < high else 0.0)
    return Spread(*(float(value) for value in five))


def describe_partition(partition: Partition, measures: Heterogeneity) -> dict[str, Any]:
    """Return counts and measures as JSON data."""
    return {
        "kind": partition.kind,
        "settings": dict(partition.settings),
        "M": partition.M,
        "N": partition.N,
        "classes": partition.classes,
        "measures": asdict(measures),
        "counts": partition.counts,
    }
