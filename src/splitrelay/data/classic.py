"""The partitions that others use: equal shares at random, Dirichlet, C classes a client, shards of the sorted set."""

from __future__ import annotations

from functools import partial

import numpy as np

from splitrelay.data.allocation import covering
from splitrelay.data.dealing import class_sizes, even, owners, redrawn, shares
from splitrelay.data.partition import Labels, Partition, from_owners, whole
from splitrelay.errors import OutOfRange
from splitrelay.randomness import Purpose, rng


def iid(labels: Labels, *, M: int, seed: int = 1) -> Partition:
    """M random parts whose sizes differ by one at most."""
    N = int(class_sizes(labels).sum())
    M = whole("M", M, 1, N, "the number of samples")
    owner = np.empty(N, dtype=np.int64)
    owner[rng(seed, Purpose.PARTITION).permutation(N)] = np.repeat(np.arange(M), even(N, M))
    return from_owners(owner, M, labels, "iid", {"M": M, "seed": seed})


def dirichlet(labels: Labels, *, M: int, alpha: float, seed: int = 1, min_size: int = 0) -> Partition:
    """Every class is dealt to all clients with p_c ~ Dir(alpha): the same draw as ExDir(number of classes, alpha)."""
    sizes = class_sizes(labels)
    M, least = whole("M", M, 1), whole("min_size", min_size, 0)
    generator = rng(seed, Purpose.PARTITION)
    holds = covering(M, len(sizes), len(sizes), generator)  # all ones; drawn as in ExDir, so that the numbers agree
    draw = partial(shares, holds, sizes, alpha, generator)
    counts = redrawn(draw, least, int(sizes.sum()), M, f"Dirichlet({alpha:g})")
    settings = {"M": M, "alpha": float(alpha), "seed": seed, "min_size": least}
    return from_owners(owners(counts, labels, generator), M, labels, "dirichlet", settings)


def pathological(labels: Labels, *, M: int, C: int, seed: int = 1) -> Partition:
    """C classes a client, every class in equal shares to its holders: ExDir(C, alpha) for alpha to infinity."""
    sizes = class_sizes(labels)
    M, C = whole("M", M, 1), whole("C", C, 1, len(sizes), "the number of classes")
    generator = rng(seed, Purpose.PARTITION)
    holds = covering(M, C, len(sizes), generator)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = generator.permutation(np.flatnonzero(holds[:, c]))  # so that nobody is always rounded up
        counts[holders, c] = even(n, len(holders))
    return from_owners(owners(counts, labels, generator), M, labels, "pathological", {"M": M, "C": C, "seed": seed})


def shards(labels: Labels, *, M: int, shards: int = 2, seed: int = 1) -> Partition:
    """The set sorted by label, cut into M * shards even pieces, dealt at random, `shards` of them to each client."""
    N = int(class_sizes(labels).sum())
    M, pieces = whole("M", M, 1), whole("shards", shards, 1) * M
    if pieces > N:
        raise OutOfRange(f"{M} clients with {shards} shards each", value=f"{N} samples", limit=f"at least {pieces}")
    generator = rng(seed, Purpose.PARTITION)
    shuffled = generator.permutation(N)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]  # which sample of a class is where, is random
    holder = generator.permutation(np.repeat(np.arange(M), shards))
    owner = np.empty(N, dtype=np.int64)
    owner[by_class] = np.repeat(holder, even(N, pieces))
    return from_owners(owner, M, labels, "shards", {"M": M, "shards": shards, "seed": seed})
