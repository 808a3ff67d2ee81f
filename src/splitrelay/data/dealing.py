"""The second level: a class's samples are cut into shares and dealt to its holders, every sample exactly once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from splitrelay.data.allocation import TRIES, Bools, Floats
from splitrelay.data.partition import Ints, Labels
from splitrelay.errors import InputError, OutOfRange, WorkError


def class_sizes(labels: Labels) -> Ints:
    """Samples per class, in the order of np.unique(labels); labels that cannot be dealt are refused."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise InputError("labels must be one row of whole numbers", value=f"{labels.dtype} of shape {labels.shape}")
    if not len(labels):
        raise InputError("there are no samples to deal")
    return np.asarray(np.unique(labels, return_counts=True)[1])


def dirichlet_weights(alpha: float, k: int, rng: np.random.Generator) -> Floats:
    """k weights, proportional to a draw of Dirichlet(alpha, ..., alpha), largest near 1; exact for every alpha > 0.

    Gamma(alpha) is Gamma(alpha + 1) * U^(1/alpha). Its logarithm is never formed whole, since log(U)/alpha leaves
    the range of doubles; only differences to the largest U are. So no alpha gives 0/0.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise OutOfRange("alpha out of range", value=alpha, limit="0 < alpha < infinity")
    logs = np.log(rng.standard_gamma(alpha + 1, k))
    behind = rng.standard_exponential(k)  # -log U
    leader = int(np.argmin(behind))
    with np.errstate(over="ignore"):  # a lag of 1e-3 over an alpha of 1e-308 is infinite, and its weight 0
        logs += -logs[leader] - (behind - behind[leader]) / alpha
    return np.asarray(np.exp(logs - logs.max()))


def cut(weights: Floats, n: int) -> Ints:
    """n samples cut in proportion to the weights at floor(n * cumulated weight), the usual way: sums to n exactly.

    Dividing by the last cumulated weight itself makes it exactly 1: no sample is left over for a weight of 0.
    """
    cumulated = np.cumsum(weights)
    ends = np.floor(cumulated / cumulated[-1] * n).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0))


def even(n: int, k: int) -> Ints:
    """n samples cut into k parts whose sizes differ by one at most."""
    return np.asarray(np.diff(np.arange(k + 1) * n // k))


def shares(holds: Bools, sizes: Ints, alpha: float, rng: np.random.Generator) -> Ints:
    """Samples per client and class: p_c ~ Dir(alpha q_c), q_c the 0/1 indicator of the holders of class c."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = np.flatnonzero(holds[:, c])
        counts[holders, c] = cut(dirichlet_weights(alpha, len(holders), rng), n)
    return counts


def redrawn(draw: Callable[[], Ints], least: int, N: int, M: int, law: str) -> Ints:
    """The first of up to TRIES draws of counts in which each of M clients has at least `least` of N samples."""
    if least * M > N:
        raise OutOfRange(
            f"{M} clients with at least {least} samples each need {least * M} samples",
            value=N,
            hint=f"Take M <= {N // least} or min_size <= {N // M}.",
        )
    for _ in range(TRIES):
        counts = draw()
        if counts.sum(axis=1).min() >= least:
            return counts
    raise WorkError(
        f"in {TRIES} draws of {law} over {M} clients, none left every client {least} of the {N} samples",
        hint="Take a larger alpha, a smaller M or min_size (0 asks for none), or another seed.",
    )


def owners(counts: Ints, labels: Labels, rng: np.random.Generator) -> Ints:
    """Who holds each sample, when client m is to have counts[m, c] random samples of class c."""
    owner = np.empty(len(labels), dtype=np.int64)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts.sum(axis=0))[:-1])
    for c, positions in enumerate(by_class):
        owner[rng.permutation(positions)] = np.repeat(np.arange(len(counts)), counts[:, c])
    return owner
