"""A partition: the positions of the training set that each client holds. Every sample belongs to exactly one client."""

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

NAME_THE_DATA = "Name the data set that was divided: data=NAME."
TITLES = {
    "exdir": "ExDir({C}, {alpha}), {form} form",
    "dirichlet": "Dirichlet({alpha})",
    "pathological": "{C} classes a client",
    "shards": "{shards} shards a client",
    "iid": "iid",
}


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client.

    Attributes:
        indices: Client m holds the positions indices[m]. The arrays are read-only.
        labels: The labels of the training set, if they are known.
        kind: The name of the scheme, or "given".
        settings: The settings of the scheme.
    """

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
        """Compare the positions of all clients. The kind and the settings do not matter."""
        if not isinstance(other, Partition) or self.M != other.M:
            return False
        return all(np.array_equal(ours, theirs) for ours, theirs in zip(self.indices, other.indices, strict=True))

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    @property
    def title(self) -> str:
        """The scheme and the number of clients in a few words."""
        s = {name: f"{value:g}" if isinstance(value, float) else value for name, value in self.settings.items()}
        law = TITLES.get(self.kind, "{file}" if "file" in s else self.kind).format(**s)
        return f"{law}, {self.M} clients"

    @property
    def M(self) -> int:
        """The number of clients, including clients without samples."""
        return len(self.indices)

    @property
    def N(self) -> int:
        """The number of samples of all clients."""
        return int(self.sizes.sum())

    @cached_property
    def sizes(self) -> Ints:
        """The number of samples of each client."""
        return np.array([len(positions) for positions in self.indices], dtype=np.int64)

    @property
    def empty(self) -> tuple[int, ...]:
        """The clients without samples."""
        return tuple(np.flatnonzero(self.sizes == 0).tolist())

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients with samples. Only these can train."""
        return tuple(np.flatnonzero(self.sizes).tolist())

    @cached_property
    def classes(self) -> Labels:
        """The labels that occur, in order."""
        return np.unique(self._require_labels())

    @cached_property
    def counts(self) -> Ints:
        """The number of samples per client (row) and class (column)."""
        n = len(self.classes)
        owner = np.repeat(np.arange(self.M), self.sizes)
        column = np.searchsorted(self.classes, self._require_labels()[np.concatenate(self.indices)])
        return np.bincount(owner * n + column, minlength=self.M * n).reshape(self.M, n)

    def with_labels(self, labels: Labels) -> Partition:
        """Return the partition with the labels of the training set. Raise InputError if they do not fit."""
        if len(labels) != self.N:
            what = f"the partition has {self.N} samples, but the training set has {len(labels)}"
            raise InputError(what, hint=NAME_THE_DATA)
        if self.labels is not None and not np.array_equal(self.labels, labels):
            raise InputError("the labels of the partition are not those of the training set", hint=NAME_THE_DATA)
        return Partition(self.indices, labels, self.kind, self.settings)

    def _require_labels(self) -> Labels:
        if self.labels is None:
            raise InputError("the partition has no labels", hint=NAME_THE_DATA)
        return self.labels


def build_partition(owner: Ints, M: int, labels: Labels, kind: str, settings: Mapping[str, Any]) -> Partition:
    """Return the partition in which sample j belongs to client owner[j]. The positions of a client are sorted."""
    by_client = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=M))
    return Partition(tuple(np.split(by_client, ends[:-1])), labels, kind, settings)


def collect_partition(given: Any, labels: Labels, kind: str = "given") -> Partition:
    """Make a partition of the client of each sample, or of the positions of each client.

    Args:
        given: A partition, one client (a number or a name) for each sample, or one row of positions for each client.
        labels: The labels of the training set.
        kind: The name of the partition.

    Raises:
        InputError: It is neither of them, or a sample has no client or several.

    Example:
        >>> collect_partition(["a", "b", "b"], np.array([0, 1, 1])).sizes.tolist()
        [1, 2]
    """
    if isinstance(given, Partition):
        return given if given.labels is not None else given.with_labels(labels)
    hint = "Give the client of each sample, or one row of positions for each client."
    try:
        items = list(given)
        if items and all(np.ndim(item) == 1 for item in items):
            indices = tuple(np.asarray(item, dtype=np.int64) for item in items)
        else:
            names, owner = np.unique(np.asarray(items), return_inverse=True)
            indices = tuple(np.flatnonzero(owner == m) for m in range(len(names)))
        partition = Partition(indices, labels, kind)
        check_partition(partition, len(labels))
    except (TypeError, ValueError) as error:
        raise InputError("this is not a partition", value=type(given).__name__, hint=hint) from error
    except ContractBroken as error:
        raise InputError(f"this is not a partition: {error.what}", value=error.value, hint=hint) from None
    check_no_empty_client(partition)
    return partition


def check_no_empty_client(partition: Partition) -> None:
    """Raise InputError if a client of a user's partition has no samples. Only drawn partitions have such clients."""
    if partition.empty:
        value = f"client {partition.empty[0]}"
        raise InputError("a client of the partition has no samples", value=value, hint="Leave it out.")


def check_partition(partition: Partition, N: int | None = None) -> None:
    """Raise ContractBroken unless each of N samples belongs to exactly one client.

    Args:
        partition: The partition to check.
        N: The size of the training set. The default is the number of labels.
    """
    if N is None:
        N = partition.N if partition.labels is None else len(partition.labels)
    if partition.M < 1 or N < 1:
        raise ContractBroken("a partition must have clients and samples", value=f"M = {partition.M}, N = {N}")
    positions = np.concatenate(partition.indices)
    if positions.dtype.kind not in "iu" or any(held.ndim != 1 for held in partition.indices):
        raise ContractBroken("the positions of a client must be a row of integers", value=positions.dtype)
    outside = positions[(positions < 0) | (positions >= N)]
    if len(outside):
        raise ContractBroken("a position is outside the training set", value=int(outside[0]), limit=f"0 to {N - 1}")
    times = np.bincount(positions, minlength=N)
    if (times > 1).any():
        sample = int(np.argmax(times > 1))
        holders = [m for m, held in enumerate(partition.indices) for j in held if j == sample]
        raise ContractBroken(f"sample {sample} occurs {times[sample]} times, in clients {holders}", limit="once")
    if (times == 0).any():
        missing = np.flatnonzero(times == 0)
        raise ContractBroken(f"{len(missing)} samples belong to no client, the first of them is {missing[0]}")


def check_int(name: str, value: int, low: int, high: int | None = None, why: str = "") -> int:
    """Return the value as an int. Raise OutOfRange if it is not an integer from low to high."""
    limit = f"{name} >= {low}" if high is None else f"{low} <= {name} <= {high}"
    if not isinstance(value, int | float | np.number):
        raise OutOfRange(f"{name} must be a whole number", value=repr(value), limit=limit)
    if value != int(value) or value < low or (high is not None and value > high):
        raise OutOfRange(f"{name} is out of range", value=value, limit=limit + (f" ({why})" if why else ""))
    return int(value)
