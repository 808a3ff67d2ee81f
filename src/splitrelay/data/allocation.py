"""The first level of ExDir: every client draws C classes, given that every class ends up with enough holders.

For one holder the condition is met exactly and without rejection. Classes are exchangeable, so all that the future
needs to know is how many classes are still uncovered, u: a Markov chain whose step, the number j of new classes
among C, is hypergeometric. A client's step is weighted by the probability that the clients after it cover the
remaining u - j; which j of the uncovered and which C - j of the covered classes is then uniform. The probabilities
are kept as logarithms: 1000!/1000^1000 is no double.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splitrelay.data.partition import Ints
from splitrelay.errors import OutOfRange, WorkError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

TRIES = 1000  # redraws before we say that a condition is out of reach
SURE = -1e-12  # log-probability from which on covering everything counts as certain


def covering(M: int, C: int, n: int, rng: np.random.Generator) -> Bools:
    """M clients' sets of C out of n classes (rows), uniform over all draws in which every class has a holder."""
    return Covering(M, C, n).draw(rng)


class Covering:
    """The chain for M clients, C of n classes each; `draw` may be called any number of times."""

    def __init__(self, M: int, C: int, n: int) -> None:
        if n > M * C:
            raise OutOfRange(
                f"{M} clients with {C} classes each cannot hold all {n} classes",
                value=f"M*C = {M * C}",
                limit=f"M*C >= {n}",
                hint=f"Take C >= {-(-n // M)} or M >= {-(-n // C)}.",
            )
        self.M, self.C, self.n = M, C, n
        self.steps, self.completions = hypergeometric(C, n), log_completions(M, C, n)

    def draw(self, rng: np.random.Generator) -> Bools:
        """Client after client while classes are uncovered, the rest of them at once."""
        holds = np.zeros((self.M, self.n), dtype=bool)
        uncovered = np.ones(self.n, dtype=bool)
        for m in range(self.M):
            if not uncovered.any():
                holds[m:] = free(self.M - m, self.C, self.n, rng)
                break
            j = self._new_classes(int(uncovered.sum()), self.M - 1 - m, rng)
            for among, drawn in ((uncovered, j), (~uncovered, self.C - j)):
                holds[m, rng.choice(np.flatnonzero(among), drawn, replace=False, shuffle=False)] = True
            uncovered &= ~holds[m]
        return holds

    def _new_classes(self, u: int, later: int, rng: np.random.Generator) -> int:
        """How many of the u uncovered classes this client takes, given that the later clients take the rest."""
        j = np.arange(min(u, self.C) + 1)
        logs = self.steps[u, j] + self.completions[min(later, len(self.completions) - 1)][u - j]
        reached = np.cumsum(np.exp(logs - logs.max()))
        return int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))


def free(M: int, C: int, n: int, rng: np.random.Generator) -> Bools:
    """M clients' sets of C out of n classes, without any condition."""
    chosen = np.argpartition(rng.random((M, n)), C - 1, axis=1)[:, :C]
    holds = np.zeros((M, n), dtype=bool)
    np.put_along_axis(holds, chosen, True, axis=1)
    return holds


def covering_often(M: int, C: int, n: int, least: int, rng: np.random.Generator) -> Bools:
    """The same, given that every class has at least `least` holders: exact for one holder, else by rejection."""
    if least <= 1:
        return covering(M, C, n, rng)
    for _ in range(TRIES):
        holds = free(M, C, n, rng)
        if holds.sum(axis=0).min() >= least:
            return holds
    raise WorkError(
        f"in {TRIES} draws of {C} of {n} classes for {M} clients, none gave every class {least} holders",
        hint="Take a larger C or M, or form=paper, which asks for one holder.",
    )


def hypergeometric(C: int, n: int) -> Floats:
    """log P(a set of C out of n classes holds j of u given ones), rows u = 0..n, columns j = 0..C."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    u, j = np.arange(n + 1)[:, None], np.arange(C + 1)[None, :]
    possible = (j <= u) & (C - j <= n - u)
    u, j = np.broadcast_arrays(u, j)
    table = np.full(possible.shape, -np.inf)
    table[possible] = _log_ways(u[possible], j[possible], C, n, log_factorial)
    return np.asarray(table - np.logaddexp.reduce(table, axis=1, keepdims=True))


def _log_ways(u: Ints, j: Ints, C: int, n: int, log_factorial: Floats) -> Floats:
    """The logarithm of (u over j) times (n - u over C - j)."""
    new = log_factorial[u] - log_factorial[j] - log_factorial[u - j]
    old = log_factorial[n - u] - log_factorial[C - j] - log_factorial[n - u - C + j]
    return np.asarray(new + old)


def log_completions(M: int, C: int, n: int) -> Floats:
    """log P(r clients cover u given classes), rows r = 0, 1, ... up to M - 1 or until all of it is certain."""
    steps = hypergeometric(C, n)
    left = np.maximum(np.arange(n + 1)[:, None] - np.arange(C + 1)[None, :], 0)  # u - j, where it is possible at all
    row = np.where(np.arange(n + 1) == 0, 0.0, -np.inf)
    rows = [row]
    while len(rows) < M and row.min() < SURE:
        row = np.logaddexp.reduce(steps + row[left], axis=1)
        rows.append(row)
    return np.array(rows)
