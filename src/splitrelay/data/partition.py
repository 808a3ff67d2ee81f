"""A partition: which positions of the training set each client holds. Every sample is dealt exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.errors import ContractBroken, InputError, OutOfRange

Ints = NDArray[np.int64]
Labels = NDArray[Any]

TITLES = {
    "exdir": "ExDir({C}, {alpha}), {form} form",
    "dirichlet": "Dirichlet({alpha})",
    "pathological": "{C} classes a client",
    "shards": "{shards} shards a client",
    "iid": "iid",
}


@dataclass(frozen=True, eq=False)
class Partition:
    """Client m holds the positions `indices[m]`; kind and settings say how they were drawn."""

    indices: tuple[Ints, ...]
    labels: Labels | None = None
    kind: str = "given"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        views = tuple(positions.view() for positions in self.indices)
        for view in views:
            view.setflags(write=False)
        object.__setattr__(self, "indices", views)

    def __eq__(self, other: object) -> bool:
        """The same clients hold the same samples in the same order; how they were drawn does not matter."""
        if not isinstance(other, Partition) or self.M != other.M:
            return False
        return all(np.array_equal(ours, theirs) for ours, theirs in zip(self.indices, other.indices, strict=True))

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    @property
    def title(self) -> str:
        """How it was drawn, in a few words."""
        s = {name: f"{value:g}" if isinstance(value, float) else value for name, value in self.settings.items()}
        law = TITLES.get(self.kind, "{file}" if "file" in s else self.kind).format(**s)
        return f"{law}, {self.M} clients"

    @property
    def M(self) -> int:
        """The number of clients, empty ones included."""
        return len(self.indices)

    @property
    def N(self) -> int:
        """The number of samples that were dealt."""
        return int(self.sizes.sum())

    @cached_property
    def sizes(self) -> Ints:
        """Samples per client."""
        return np.array([len(positions) for positions in self.indices], dtype=np.int64)

    @property
    def empty(self) -> tuple[int, ...]:
        """The clients without a sample."""
        return tuple(np.flatnonzero(self.sizes == 0).tolist())

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that hold samples: the only ones that may be drawn for training."""
        return tuple(np.flatnonzero(self.sizes).tolist())

    @cached_property
    def classes(self) -> Labels:
        """The labels that occur, in order."""
        return np.unique(self._labels())

    @cached_property
    def counts(self) -> Ints:
        """Samples per client and class, M rows."""
        n = len(self.classes)
        owner = np.repeat(np.arange(self.M), self.sizes)
        column = np.searchsorted(self.classes, self._labels()[np.concatenate(self.indices)])
        return np.bincount(owner * n + column, minlength=self.M * n).reshape(self.M, n)

    def labelled(self, labels: Labels) -> Partition:
        """The same partition with the training set's labels beside it."""
        if len(labels) != self.N:
            raise InputError(
                f"the partition deals {self.N} samples and the training set has {len(labels)}",
                hint="Name the data set that was dealt: data=NAME.",
            )
        if self.labels is not None and not np.array_equal(self.labels, labels):
            raise InputError(
                "the labels of the partition are not those of the training set",
                hint="Name the data set that was dealt: data=NAME.",
            )
        return Partition(self.indices, labels, self.kind, self.settings)

    def _labels(self) -> Labels:
        if self.labels is None:
            raise InputError("the partition carries no labels", hint="Name the data set that was dealt: data=NAME.")
        return self.labels


def from_owners(owner: Ints, M: int, labels: Labels, kind: str, settings: Mapping[str, Any]) -> Partition:
    """The partition in which sample j belongs to client owner[j]; a client's positions ascend."""
    by_client = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=M))
    return Partition(tuple(np.split(by_client, ends[:-1])), labels, kind, settings)


def check_partition(partition: Partition, N: int | None = None) -> None:
    """The promise of every partition: N samples (as many as there are labels, if not said), each with one client."""
    N = _promised(partition) if N is None else N
    if partition.M < 1 or N < 1:
        raise ContractBroken("a partition has clients and samples", value=f"M = {partition.M}, N = {N}")
    positions = np.concatenate(partition.indices)
    if positions.dtype.kind not in "iu" or any(held.ndim != 1 for held in partition.indices):
        raise ContractBroken("the positions of a client must be a row of whole numbers", value=positions.dtype)
    outside = positions[(positions < 0) | (positions >= N)]
    if len(outside):
        raise ContractBroken("a position outside the training set", value=int(outside[0]), limit=f"0 to {N - 1}")
    _check_dealt_once(partition, np.bincount(positions, minlength=N))


def _promised(partition: Partition) -> int:
    return partition.N if partition.labels is None else len(partition.labels)


def _check_dealt_once(partition: Partition, times: Ints) -> None:
    if (times > 1).any():
        sample = int(np.argmax(times > 1))
        holders = [m for m, held in enumerate(partition.indices) for j in held if j == sample]
        raise ContractBroken(f"sample {sample} was dealt {times[sample]} times, to clients {holders}", limit="once")
    if (times == 0).any():
        missing = np.flatnonzero(times == 0)
        raise ContractBroken(f"{len(missing)} samples were dealt to nobody, the first of them {missing[0]}")


def whole(name: str, value: int, low: int, high: int | None = None, why: str = "") -> int:
    """A whole number within its limits, or an error that names them."""
    limit = f"{name} >= {low}" if high is None else f"{low} <= {name} <= {high}"
    if value != int(value) or value < low or (high is not None and value > high):
        raise OutOfRange(f"{name} out of range", value=value, limit=limit + (f" ({why})" if why else ""))
    return int(value)
