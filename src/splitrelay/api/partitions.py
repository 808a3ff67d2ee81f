"""Ways to divide samples among clients, as objects: `sr.ExDir(M=10, C=2)`, `sr.IID(M=5)`, ...

`Partition` objects and functions are accepted in their place (see `divide`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from splitrelay.data.partition import Partition, collect_partition
from splitrelay.data.partition_schemes import draw_partition


@dataclass(frozen=True)
class ExDir:
    """Divide as ExDir(C, alpha) of the paper: each client holds C classes, in shares drawn from Dir(alpha).

    Args:
        M: The number of clients.
        C: Classes per client.
        alpha: The parameter of the Dirichlet distribution; large values give equal shares.
        form: "paper", or "balanced" as in the authors' code.
        seed: The seed; None means the seed of the run.

    Example:
        >>> ExDir(M=5, C=1)
        ExDir(M=5, C=1, alpha=10.0, form='paper', seed=None)
    """

    kind: ClassVar[str] = "exdir"
    M: int = 10
    C: int = 2
    alpha: float = 10.0
    form: str = "paper"
    seed: int | None = None


@dataclass(frozen=True)
class IID:
    """Divide at random into M parts of equal size.

    Args:
        M: The number of clients.
        seed: The seed; None means the seed of the run.
    """

    kind: ClassVar[str] = "iid"
    M: int = 10
    seed: int | None = None


@dataclass(frozen=True)
class Dirichlet:
    """Divide each class by weights from Dir(alpha) over all clients; small values of alpha give uneven clients.

    Args:
        M: The number of clients.
        alpha: The parameter of the Dirichlet distribution.
        seed: The seed; None means the seed of the run.
    """

    kind: ClassVar[str] = "dirichlet"
    M: int = 10
    alpha: float = 10.0
    seed: int | None = None


@dataclass(frozen=True)
class Pathological:
    """Give each client C classes, and divide each class evenly among its clients.

    Args:
        M: The number of clients.
        C: Classes per client.
        seed: The seed; None means the seed of the run.
    """

    kind: ClassVar[str] = "pathological"
    M: int = 10
    C: int = 2
    seed: int | None = None


@dataclass(frozen=True)
class Shards:
    """Sort the samples by class, cut them into pieces, and give each client some of the pieces.

    Args:
        M: The number of clients.
        shards: Pieces per client.
        seed: The seed; None means the seed of the run.
    """

    kind: ClassVar[str] = "shards"
    M: int = 10
    shards: int = 2
    seed: int | None = None


Scheme = ExDir | IID | Dirichlet | Pathological | Shards
SCHEMES = (ExDir, IID, Dirichlet, Pathological, Shards)
Divide = Callable[[Any], Any]  # a function of the user: y -> the client of each sample, or the positions of each client


def list_scheme_settings(scheme: Scheme) -> dict[str, Any]:
    """Return the spec keys of a scheme."""
    settings = {name: value for name, value in asdict(scheme).items() if value is not None}
    seed = settings.pop("seed", None)
    return {"partition": scheme.kind, **settings, **({} if seed is None else {"partition.seed": seed})}


def names_clients(partition: Any, n: int) -> bool:
    """Return whether a partition is the client of each of n samples."""
    if isinstance(partition, str) or callable(partition) or not hasattr(partition, "__len__"):
        return False
    return len(partition) == n and all(np.ndim(each) == 0 for each in partition)


def divide(partition: Any, y: Any, seed: int) -> Partition:
    """Divide samples with targets y among clients.

    Args:
        partition: A scheme, a `Partition`, a function of y, the client of each sample, or the positions of each client.
        y: The targets of the training set.
        seed: The seed of a scheme that has none of its own.

    Raises:
        InputError: The result is not a partition of these samples.

    Example:
        >>> divide([0, 1, 1, 0], np.array([3, 3, 4, 4]), seed=1).sizes.tolist()
        [2, 2]
    """
    if isinstance(partition, Partition):
        return partition.with_labels(np.asarray(y)) if partition.labels is None else partition
    if isinstance(partition, SCHEMES):
        settings = {**asdict(partition), "seed": seed if partition.seed is None else partition.seed}
        return draw_partition(partition.kind, np.asarray(y), **settings)
    return collect_partition(partition(np.asarray(y)) if callable(partition) else partition, np.asarray(y))
