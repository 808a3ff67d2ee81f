"""The constants of every statement, one row each, as they stand in the paper or in its mended argument.

A bound is
    optimization        x  mu D^2 exp(-mu eta_tilde R / 2)  |  D^2 / (eta_tilde R)  |  A / (eta_tilde R)
  + noise               x  eta_tilde   sigma^2 / (M K)      (partial participation: / (S K))
  + sampling            x  eta_tilde   v zeta^2             (partial participation only)
  + noise drift         x  eta_tilde^2 L sigma^2 / (M K)    (FedAvg: / K)
  + heterogeneity drift x  eta_tilde^2 L zeta^2 / M         (FedAvg: / 1)
with one more factor L in all but the first in the non-convex case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from splitrelay.errors import InputError, UnknownName
from splitrelay.theory.problem import Asked
from splitrelay.theory.results import ALGORITHMS, CASES, CONSTANTS
from splitrelay.theory.scalar_or_array import Array

SC, GC, NC = CASES
POWER = {"noise": 1, "sampling": 1, "noise drift": 2, "heterogeneity drift": 2}  # of eta_tilde
MEASURE = {SC: "E F(xbar) - F*", GC: "E F(xbar) - F*", NC: "min_r E||grad F(x^r)||^2"}


@dataclass(frozen=True)
class Statement:
    """The constants of one bound, in printed order."""

    where: str
    optimization: float
    noise: float
    noise_drift: float
    heterogeneity_drift: float
    sampling: float | None = None
    one_more_round: bool = False  # prints R + 1 where the theorems print R


#                     where                     optimization, noise, noise drift, heterogeneity drift
SSL = {
    SC: Statement("Theorem 1, strongly convex", 3, 6, 45 / 4, 15 / 2),
    GC: Statement("Theorem 1, general convex", 2, 6, 45 / 4, 15 / 2),
    NC: Statement("Theorem 1, non-convex", 3, 3, 27 / 8, 9 / 4),
}
SSL_TIGHT = {  # drift 9/2 -> 3, so b = 3/4: Theorem 2's constants
    SC: Statement("Theorem 1 tightened, strongly convex", 2, 4, 15 / 2, 5),
    GC: Statement("Theorem 1 tightened, general convex", 4 / 3, 4, 15 / 2, 5),
    NC: Statement("Theorem 1 with the wider range, non-convex", 3, 3, 27 / 8, 9 / 4),
}
FEDAVG = {
    SC: Statement("Theorem 2, strongly convex", 2, 4, 15 / 2, 5),
    GC: Statement("Theorem 2, general convex", 4 / 3, 4, 15 / 2, 5),
    NC: Statement("Theorem 2, non-convex", 3, 3, 27 / 8, 9 / 4),
}
PARTIAL_PRINTED = {SC: Statement("corollary on partial participation, as printed", 27 / 8, 4, 6, 4, 4, True)}
PARTIAL = {SC: Statement("corollary on partial participation, mended (E6)", 27 / 8, 9, 27 / 2, 9, 9, True)}
MINIBATCH = {  # Theorem 2's argument for one step a round: nothing drifts (derived, not printed)
    SC: Statement("Theorem 2 without drift, strongly convex", 2, 4, 0, 0),
    GC: Statement("Theorem 2 without drift, general convex", 4 / 3, 4, 0, 0),
    NC: Statement("Theorem 2 without drift, non-convex", 3, 3, 0, 0),
}

TABLE: Mapping[str, Mapping[str, Mapping[str, Statement]]] = {
    "ssl": {"printed": SSL, "proved": SSL, "tight": SSL_TIGHT},
    "fedavg": {"printed": FEDAVG, "proved": FEDAVG, "tight": FEDAVG},
    "fedavg-swor": {"printed": PARTIAL_PRINTED, "proved": PARTIAL, "tight": PARTIAL},
    "fedavg-swr": {"printed": PARTIAL_PRINTED, "proved": PARTIAL, "tight": PARTIAL},
    "minibatch-sgd": {"printed": MINIBATCH, "proved": MINIBATCH, "tight": MINIBATCH},
}


@dataclass(frozen=True)
class Recursion:
    """The simplified recursion of a round: r_{t+1} <= (1 - a g) r_t - b g s_t + c1 g^2 + c2 g^3, with g = eta_tilde.

    c1 and c2 are these constants times the same units as in a bound; a theorem's constants are c / b.
    """

    b: float
    noise: float
    noise_drift: float
    heterogeneity_drift: float
    sampling: float | None = None


#                      b,     c1: noise, c2: noise drift, heterogeneity drift
CONVEX_SSL = Recursion(1 / 2, 3, 45 / 8, 15 / 4)
CONVEX_TIGHT = Recursion(3 / 4, 3, 45 / 8, 15 / 4)  # also FedAvg's
CONVEX_PARTIAL = Recursion(4 / 9, 4, 6, 4, 4)
CONVEX_MINIBATCH = Recursion(3 / 4, 3, 0, 0)
NONCONVEX = Recursion(1 / 3, 1, 9 / 8, 3 / 4)
NONCONVEX_MINIBATCH = Recursion(1 / 3, 1, 0, 0)


def statement(algorithm: str, case: str, constants: str) -> Statement:
    """The row of an algorithm, a case and a choice of constants."""
    check_choice("constants", constants, CONSTANTS)
    rows = TABLE[algorithm][constants]
    if case not in rows:
        raise InputError(
            f"the paper prints no bound for {algorithm} {case}",
            hint=f"There is one for {algorithm} strongly-convex, and for fedavg (all clients take part) {case}.",
        )
    return rows[case]


def recursion(algorithm: str, case: str, constants: str) -> Recursion:
    """The simplified recursion behind that row."""
    statement(algorithm, case, constants)
    if algorithm == "minibatch-sgd":
        return NONCONVEX_MINIBATCH if case == NC else CONVEX_MINIBATCH
    if case == NC:
        return NONCONVEX
    if algorithm == "ssl":
        return CONVEX_TIGHT if constants == "tight" else CONVEX_SSL
    return CONVEX_TIGHT if algorithm == "fedavg" else CONVEX_PARTIAL


def error_constants(row: Statement | Recursion) -> dict[str, float]:
    """The constants of the error terms by name, in printed order."""
    values = (row.noise, row.sampling, row.noise_drift, row.heterogeneity_drift)
    return {name: value for name, value in zip(POWER, values, strict=True) if value is not None}


def units(algorithm: str, q: Asked) -> dict[str, Array]:
    """What the constants of the error terms multiply, beside the power of eta_tilde."""
    partial = algorithm.startswith("fedavg-")
    averaged, drifting = q.S if partial else q.M, q.M if algorithm == "ssl" else 1.0
    factor: Array | float = q.L if q.case == NC else 1.0
    parts = {"noise": factor * q.sigma2 / (averaged * q.K)}
    if partial:
        parts["sampling"] = sampling_factor(algorithm, q) * q.heterogeneity
    parts["noise drift"] = factor * q.L * q.sigma2 / (drifting * q.K)
    parts["heterogeneity drift"] = factor * q.L * q.heterogeneity / drifting
    return parts


def sampling_factor(algorithm: str, q: Asked) -> Array:
    """v, the variance of the mean of S drawn clients in units of the clients' own: SWOR or SWR."""
    if algorithm == "fedavg-swr":
        return 1 / q.S
    return (q.M - q.S) / (q.S * np.maximum(q.M - 1, 1))  # the only client there is has none


def check_algorithm(algorithm: str, case: str) -> None:
    """Known names only."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    check_choice("case", case, CASES)


def check_choice(kind: str, name: str, known: tuple[str, ...]) -> None:
    """One of a few words, or an error with the nearest."""
    if name not in known:
        raise UnknownName(kind, name, known)
