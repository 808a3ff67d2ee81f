"""Partition schemes by name: ExDir, iid, Dirichlet, pathological and shards.

ExDir(C, alpha) is the Extended Dirichlet partition of the paper. It has two levels. First, every client draws C
classes. Then the samples of each class are divided among its holders.

First level. The draw is conditioned on every class having a holder. For one holder per class this is exact and needs
no rejection. The classes are exchangeable, so the future depends only on the number u of classes without a holder.
This is a Markov chain. The number j of new classes among the C classes of a client is hypergeometric, weighted by the
probability that the later clients cover the remaining u - j classes. Given j, the choice of classes is uniform. The
probabilities are stored as logarithms, because 1000!/1000^1000 is too small for a double.

Second level. The samples of class c are divided with weights p_c ~ Dirichlet(alpha) over its holders.

The form "paper" is exactly this. The form "balanced" adds what the authors' later code does: each class has at least
max(C*M // classes // 5, 1) holders; classes are divided one after another, and a client that already has N/M samples
gets none of the next class; the shares (not the classes) are drawn again until every client has `min_size` samples.
If all holders of a class are full, their code divides 0 by 0. Here the class is divided among all its holders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.data.partition import Ints, Labels, Partition, build_partition, check_int
from splitrelay.errors import InputError, OutOfRange, UnknownName, WorkError
from splitrelay.randomness import Purpose, rng

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

FORMS = ("paper", "balanced")
MIN_SIZE = 10  # of the balanced form; the authors' constant
TRIES = 1000  # draws before a condition counts as unreachable
CERTAIN = -1e-12  # log-probability above which an event counts as certain


def exdir(
    labels: Labels, *, M: int, C: int, alpha: float, form: str = "paper", seed: int = 1, min_size: int | None = None
) -> Partition:
    """Draw the partition ExDir(C, alpha) over M clients.

    Args:
        labels: The labels of the training set.
        M: The number of clients.
        C: The number of classes that each client draws.
        alpha: The concentration. Smaller values give more uneven shares.
        form: "paper" or "balanced", as described above.
        seed: The seed of the draw.
        min_size: The smallest number of samples of a client. Only for form="balanced"; its default is 10.

    Example:
        >>> exdir(np.repeat(np.arange(10), 100), M=5, C=2, alpha=1.0).title
        'ExDir(2, 1), paper form, 5 clients'
    """
    sizes = count_classes(labels)
    M = check_int("M", M, 1)
    C = check_int("C", C, 1, len(sizes), "the number of classes")
    settings = {"M": M, "C": C, "alpha": float(alpha), "form": form, "seed": seed}
    generator = rng(seed, Purpose.PARTITION)
    if form == "paper":
        if min_size:
            what = "min_size has no effect with form=paper"
            raise OutOfRange(what, value=f"min_size={min_size}", hint="Use form=balanced.")
        holds = draw_covering(M, C, len(sizes), generator)
        counts = draw_shares(holds, sizes, alpha, generator)
    elif form == "balanced":
        least = settings["min_size"] = MIN_SIZE if min_size is None else check_int("min_size", min_size, 0)
        holds = draw_covering(M, C, len(sizes), generator, holders=max(C * M // len(sizes) // 5, 1))
        counts = _draw_until_large_enough(
            lambda: _draw_balanced_shares(holds, sizes, alpha, generator),
            least,
            int(sizes.sum()),
            M,
            f"the balanced ExDir({C}, {alpha:g})",
        )
    else:
        raise UnknownName("form", form, FORMS)
    return build_partition(_assign_owners(counts, labels, generator), M, labels, "exdir", settings)


def iid(labels: Labels, *, M: int, seed: int = 1) -> Partition:
    """Divide the training set at random into M parts whose sizes differ by at most one."""
    N = int(count_classes(labels).sum())
    M = check_int("M", M, 1, N, "the number of samples")
    owner = np.empty(N, dtype=np.int64)
    owner[rng(seed, Purpose.PARTITION).permutation(N)] = np.repeat(np.arange(M), split_evenly(N, M))
    return build_partition(owner, M, labels, "iid", {"M": M, "seed": seed})


def dirichlet(labels: Labels, *, M: int, alpha: float, seed: int = 1, min_size: int = 0) -> Partition:
    """Divide every class among all clients with weights from Dirichlet(alpha). Equals ExDir with C = all classes."""
    sizes = count_classes(labels)
    M, least = check_int("M", M, 1), check_int("min_size", min_size, 0)
    generator = rng(seed, Purpose.PARTITION)
    holds = draw_covering(M, len(sizes), len(sizes), generator)  # all True; drawn so that the numbers equal ExDir's
    counts = _draw_until_large_enough(
        lambda: draw_shares(holds, sizes, alpha, generator), least, int(sizes.sum()), M, f"Dirichlet({alpha:g})"
    )
    settings = {"M": M, "alpha": float(alpha), "seed": seed, "min_size": least}
    return build_partition(_assign_owners(counts, labels, generator), M, labels, "dirichlet", settings)


def pathological(labels: Labels, *, M: int, C: int, seed: int = 1) -> Partition:
    """Give C classes to each client, and divide each class evenly among its holders: ExDir for alpha to infinity."""
    sizes = count_classes(labels)
    M, C = check_int("M", M, 1), check_int("C", C, 1, len(sizes), "the number of classes")
    generator = rng(seed, Purpose.PARTITION)
    holds = draw_covering(M, C, len(sizes), generator)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = generator.permutation(np.flatnonzero(holds[:, c]))  # so that rounding up favours no client
        counts[holders, c] = split_evenly(n, len(holders))
    settings = {"M": M, "C": C, "seed": seed}
    return build_partition(_assign_owners(counts, labels, generator), M, labels, "pathological", settings)


def shards(labels: Labels, *, M: int, shards: int = 2, seed: int = 1) -> Partition:
    """Sort the training set by label, cut it into M * shards even pieces, and give `shards` pieces to each client."""
    N = int(count_classes(labels).sum())
    M, pieces = check_int("M", M, 1), check_int("shards", shards, 1) * M
    if pieces > N:
        raise OutOfRange(f"{M} clients with {shards} shards each", value=f"{N} samples", limit=f"at least {pieces}")
    generator = rng(seed, Purpose.PARTITION)
    shuffled = generator.permutation(N)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]  # random within each class
    holder = generator.permutation(np.repeat(np.arange(M), shards))
    owner = np.empty(N, dtype=np.int64)
    owner[by_class] = np.repeat(holder, split_evenly(N, pieces))
    return build_partition(owner, M, labels, "shards", {"M": M, "shards": shards, "seed": seed})


SCHEMES: Mapping[str, Callable[..., Partition]] = {
    "exdir": exdir,
    "iid": iid,
    "dirichlet": dirichlet,
    "pathological": pathological,
    "shards": shards,
}


def draw_partition(kind: str, labels: Labels, **settings: Any) -> Partition:
    """Draw a partition with the scheme `kind`. Raise InputError for unknown or missing settings."""
    keys = list_settings(kind)
    for name in settings:
        if name not in keys:
            raise UnknownName(f"setting of partition {kind}", name, keys)
    missing = [name for name, require_cached in keys.items() if require_cached and name not in settings]
    if missing:
        raise InputError(f"partition {kind} needs {', '.join(missing)}", hint=f"Settings: {', '.join(keys)}.")
    return SCHEMES[kind](labels, **settings)


def list_settings(kind: str) -> dict[str, bool]:
    """Return the settings of a scheme, and for each whether it is required."""
    if not isinstance(kind, str) or kind not in SCHEMES:
        raise UnknownName("partition", kind, SCHEMES)
    parameters = signature(SCHEMES[kind]).parameters.values()
    return {p.name: p.default is Parameter.empty for p in parameters if p.kind is Parameter.KEYWORD_ONLY}


def count_classes(labels: Labels) -> Ints:
    """Return the number of samples of each class, in the order of np.unique(labels)."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise InputError("labels must be one row of integers", value=f"{labels.dtype} of shape {labels.shape}")
    if not len(labels):
        raise InputError("the training set has no samples")
    return np.asarray(np.unique(labels, return_counts=True)[1])


# First level: the classes of each client.


def draw_covering(M: int, C: int, n: int, generator: np.random.Generator, holders: int = 1) -> Bools:
    """Draw C of n classes for each of M clients, conditioned on every class having at least `holders` holders.

    The draw is exact for one holder. For more holders it uses rejection.

    Returns:
        Which client (row) holds which class (column).
    """
    if holders <= 1:
        return Covering(M, C, n).draw(generator)
    for _ in range(TRIES):
        holds = _draw_unconditioned(M, C, n, generator)
        if holds.sum(axis=0).min() >= holders:
            return holds
    raise WorkError(
        f"in {TRIES} draws of {C} of {n} classes for {M} clients, none gave every class {holders} holders",
        hint="Take a larger C or M, or form=paper, which asks for one holder.",
    )


class Covering:
    """The Markov chain for M clients with C of n classes each. `draw` may be called any number of times."""

    def __init__(self, M: int, C: int, n: int) -> None:
        if n > M * C:
            raise OutOfRange(
                f"{M} clients with {C} classes each cannot hold all {n} classes",
                value=f"M*C = {M * C}",
                limit=f"M*C >= {n}",
                hint=f"Take C >= {-(-n // M)} or M >= {-(-n // C)}.",
            )
        self.M, self.C, self.n = M, C, n
        self.steps, self.completions = compute_log_hypergeometric(C, n), compute_log_completions(M, C, n)

    def draw(self, generator: np.random.Generator) -> Bools:
        """Draw for one client after another until every class has a holder, then for all other clients at once."""
        holds = np.zeros((self.M, self.n), dtype=bool)
        uncovered = np.ones(self.n, dtype=bool)
        for m in range(self.M):
            if not uncovered.any():
                holds[m:] = _draw_unconditioned(self.M - m, self.C, self.n, generator)
                break
            j = self._draw_new_classes(int(uncovered.sum()), self.M - 1 - m, generator)
            for among, number in ((uncovered, j), (~uncovered, self.C - j)):
                holds[m, generator.choice(np.flatnonzero(among), number, replace=False, shuffle=False)] = True
            uncovered &= ~holds[m]
        return holds

    def _draw_new_classes(self, u: int, later: int, generator: np.random.Generator) -> int:
        """Draw how many of the u uncovered classes a client gets, if `later` clients must cover the rest."""
        j = np.arange(min(u, self.C) + 1)
        logs = self.steps[u, j] + self.completions[min(later, len(self.completions) - 1)][u - j]
        cumulated = np.cumsum(np.exp(logs - logs.max()))
        return int(np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right"))


def _draw_unconditioned(M: int, C: int, n: int, generator: np.random.Generator) -> Bools:
    chosen = np.argpartition(generator.random((M, n)), C - 1, axis=1)[:, :C]
    holds = np.zeros((M, n), dtype=bool)
    np.put_along_axis(holds, chosen, True, axis=1)
    return holds


def compute_log_hypergeometric(C: int, n: int) -> Floats:
    """Return log P(C of n classes contain j of u given classes) with rows u = 0..n and columns j = 0..C."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])

    def log_binomial(a: Ints, b: Ints) -> Floats:
        return np.asarray(log_factorial[a] - log_factorial[b] - log_factorial[a - b])

    u, j = np.broadcast_arrays(np.arange(n + 1)[:, None], np.arange(C + 1)[None, :])
    possible = (j <= u) & (C - j <= n - u)
    u, j = u[possible], j[possible]
    table = np.full(possible.shape, -np.inf)
    table[possible] = log_binomial(u, j) + log_binomial(n - u, C - j)
    return np.asarray(table - np.logaddexp.reduce(table, axis=1, keepdims=True))


def compute_log_completions(M: int, C: int, n: int) -> Floats:
    """Return log P(r clients cover u given classes) with rows r = 0, 1, ..., M - 1, or until all is certain."""
    steps = compute_log_hypergeometric(C, n)
    left = np.maximum(np.arange(n + 1)[:, None] - np.arange(C + 1)[None, :], 0)  # u - j if it is possible
    row = np.where(np.arange(n + 1) == 0, 0.0, -np.inf)
    rows = [row]
    while len(rows) < M and row.min() < CERTAIN:
        row = np.logaddexp.reduce(steps + row[left], axis=1)
        rows.append(row)
    return np.array(rows)


# Second level: the samples of each class.


def draw_shares(holds: Bools, sizes: Ints, alpha: float, generator: np.random.Generator) -> Ints:
    """Draw the number of samples per client and class: weights from Dirichlet(alpha) over the holders of a class."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = np.flatnonzero(holds[:, c])
        counts[holders, c] = split_by_weights(draw_dirichlet_weights(alpha, len(holders), generator), n)
    return counts


def _draw_balanced_shares(holds: Bools, sizes: Ints, alpha: float, generator: np.random.Generator) -> Ints:
    """Draw shares class by class. Leave out clients with N/M or more samples, unless all holders have as many."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    totals = np.zeros(len(holds), dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = np.flatnonzero(holds[:, c])
        has_room = totals[holders] * len(holds) < sizes.sum()
        takers = holders[has_room] if has_room.any() else holders
        # A Dirichlet distribution renormalized over a subset is again Dirichlet.
        counts[takers, c] = split_by_weights(draw_dirichlet_weights(alpha, len(takers), generator), n)
        totals += counts[:, c]
    return counts


def draw_dirichlet_weights(alpha: float, k: int, generator: np.random.Generator) -> Floats:
    """Draw k weights proportional to Dirichlet(alpha, ..., alpha), with the largest near 1.

    The draw is valid for every alpha > 0. Gamma(alpha) is Gamma(alpha + 1) * U^(1/alpha), but log(U)/alpha can exceed
    the range of doubles. Only differences to the largest U are computed, so no alpha gives 0/0.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise OutOfRange("alpha is out of range", value=alpha, limit="0 < alpha < infinity")
    logs = np.log(generator.standard_gamma(alpha + 1, k))
    exponentials = generator.standard_exponential(k)  # -log U
    leader = int(np.argmin(exponentials))
    with np.errstate(over="ignore"):  # a difference of 1e-3 divided by an alpha of 1e-308 is infinite; weight 0
        logs += -logs[leader] - (exponentials - exponentials[leader]) / alpha
    return np.asarray(np.exp(logs - logs.max()))


def split_by_weights(weights: Floats, n: int) -> Ints:
    """Split n samples in proportion to the weights, at floor(n * cumulated weight). The parts sum to n exactly.

    The division by the last cumulated weight makes the last quotient exactly 1, so no sample is left over.
    """
    cumulated = np.cumsum(weights)
    ends = np.floor(cumulated / cumulated[-1] * n).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0))


def split_evenly(n: int, k: int) -> Ints:
    """Split n samples into k parts whose sizes differ by at most one."""
    return np.asarray(np.diff(np.arange(k + 1) * n // k))


def _draw_until_large_enough(draw: Callable[[], Ints], least: int, N: int, M: int, law: str) -> Ints:
    """Return the first of up to TRIES draws of counts in which every client has at least `least` samples."""
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
        f"in {TRIES} draws of {law} over {M} clients, none gave every client {least} of the {N} samples",
        hint="Take a larger alpha, a smaller M or min_size (0 asks for none), or another seed.",
    )


def _assign_owners(counts: Ints, labels: Labels, generator: np.random.Generator) -> Ints:
    """Return the client of each sample, such that client m gets counts[m, c] random samples of class c."""
    owner = np.empty(len(labels), dtype=np.int64)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts.sum(axis=0))[:-1])
    for c, positions in enumerate(by_class):
        owner[generator.permutation(positions)] = np.repeat(np.arange(len(counts)), counts[:, c])
    return owner
