"""Orders of convergence at tuned steps: unit constants, logarithms left out, terms in printed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.problem import Asked, Problem
from splitrelay.theory.results import CASES, CONSTANTS, DECAYS, Constants, Rate
from splitrelay.theory.scalar_or_array import Array, Values, plain
from splitrelay.theory.theorem_constants import GC, MEASURE, NC, SC, check_choice, sampling_factor


class Term(NamedTuple):
    """A term and how it falls with R: R^-power (infinite: exponentially)."""

    name: str
    value: Array
    power: float


Terms = Sequence[Term]
DECAY = dict(zip((1 / 2, 2 / 3, 1, 2, np.inf), DECAYS, strict=True))


def corollary_strongly_convex(q: Asked, drifting: Array | float) -> Terms:
    """Corollary 1; FedAvg's has drifting = 1 where SSL's has M."""
    mu, zeta2 = q.positive_mu, q.heterogeneity
    return (
        Term("noise", q.sigma2 / (mu * q.M * q.K * q.R), 1),
        Term("noise drift", q.L * q.sigma2 / (mu**2 * drifting * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * drifting * q.R**2), 2),
        Term("optimization", mu * q.D2 * np.exp(-mu * q.R / (12 * q.L)), np.inf),
    )


def corollary_general_convex(q: Asked, drifting: Array | float) -> Terms:
    """Corollary 1; FedAvg's has drifting = 1 where SSL's has M."""
    D4, zeta2 = q.D2**2, q.heterogeneity
    return (
        Term("noise", np.sqrt(q.sigma2 * q.D2 / (q.M * q.K * q.R)), 1 / 2),
        Term("noise drift", np.cbrt(q.L * q.sigma2 * D4 / (drifting * q.K * q.R**2)), 2 / 3),
        Term("heterogeneity drift", np.cbrt(q.L * zeta2 * D4 / (drifting * q.R**2)), 2 / 3),
        Term("optimization", q.L * q.D2 / q.R, 1),
    )


def corollary_non_convex(q: Asked, drifting: Array | float, slowing: Array) -> Terms:
    """Corollary 1; slowing is the factor of L A / R: B^2 as printed, 1 + B^2 in truth (E5)."""
    L2, A2 = q.L**2, q.A**2
    return (
        Term("noise", np.sqrt(q.sigma2 * q.L * q.A / (q.M * q.K * q.R)), 1 / 2),
        Term("noise drift", np.cbrt(L2 * q.sigma2 * A2 / (drifting * q.K * q.R**2)), 2 / 3),
        Term("heterogeneity drift", np.cbrt(L2 * q.heterogeneity * A2 / (drifting * q.R**2)), 2 / 3),
        Term("optimization", q.L * slowing * q.A / q.R, 1),
    )


def slowing(q: Asked, constants: str, drifting: Array | float) -> Array:
    """What B does to the last term of the non-convex rate."""
    if constants == "tight":  # the wider range: 1/(6 L sqrt(1 + B^2/M)) in SSL, without M in FedAvg
        return np.sqrt(1 + q.B2 / drifting)
    return q.B2 if constants == "printed" else 1 + q.B2


def partial_participation(algorithm: str, q: Asked) -> Terms:
    """FedAvg with S of M clients; the sampling term is what the paper marks in red."""
    mu, zeta2 = q.positive_mu, q.heterogeneity
    return (
        Term("noise", q.sigma2 / (mu * q.S * q.K * q.R), 1),
        Term("sampling", sampling_factor(algorithm, q) * zeta2 / (mu * q.R), 1),
        Term("noise drift", q.L * q.sigma2 / (mu**2 * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * q.R**2), 2),
        Term("optimization", mu * q.D2 * np.exp(-mu * q.R / (12 * q.L)), np.inf),
    )


def ssl_equal_compute(q: Asked) -> Terms:
    """SSL over S R / M rounds: as many local steps as R rounds of FedAvg with S clients. The paper keeps the first."""
    fewer = q.problem.over_rounds(q.S * q.R / q.M)
    return corollary_strongly_convex(fewer.asked_by(q.asker, q.case), q.M)


def table_row(q: Asked, sigma2: Array, zeta2: Array, drifting: Array | float, left: Array) -> Terms:
    """A row of Table 1 on local steps; left is the factor of exp(-mu R / L)."""
    mu = q.positive_mu
    return (
        Term("noise", sigma2 / (mu * q.M * q.K * q.R), 1),
        Term("noise drift", q.L * sigma2 / (mu**2 * drifting * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * drifting * q.R**2), 2),
        Term("optimization", left * np.exp(-mu * q.R / q.L), np.inf),
    )


def table_sgd(q: Asked) -> Terms:
    """Minibatch SGD with M K gradients a step: no local steps, no drift."""
    mu = q.positive_mu
    noise = Term("noise", q.sigma2 / (mu * q.M * q.K * q.R), 1)
    return noise, Term("optimization", q.L * q.D2 * np.exp(-mu * q.R / q.L), np.inf)


def table_koloskova(q: Asked) -> Terms:
    """Noise and heterogeneity at the optimum; sigma2 stands in, as an upper bound, where sigma2_star is not given."""
    sigma2 = q.sigma2 if q.problem.sigma2_star is None else q.sigma2_star
    return table_row(q, sigma2, q.heterogeneity, 1.0, q.L * q.K * q.D2)


def reshuffling(q: Asked) -> Terms:
    """Random reshuffling: SSL with K = 1 and sigma = 0."""
    mu = q.positive_mu
    drift = Term("heterogeneity drift", q.L * q.heterogeneity / (mu**2 * q.M * q.R**2), 2)
    return drift, Term("optimization", mu * q.D2 * np.exp(-mu * q.R / q.L), np.inf)


def reshuffling_quoted(q: Asked) -> Terms:
    """Mishchenko et al., as the paper quotes them: on the squared distance, with M in the exponent."""
    mu = q.positive_mu
    drift = Term("heterogeneity drift", q.L * q.heterogeneity / (mu**3 * q.M * q.R**2), 2)
    return drift, Term("optimization", q.D2 * np.exp(-mu * q.M * q.R / q.L), np.inf)


def lower_bound_quoted(q: Asked) -> Terms:
    """min{1, zeta_*^2 / (mu^2 M R^2)}, as the paper quotes it (on its source see E21)."""
    return (Term("lower bound", np.minimum(1.0, q.heterogeneity / (q.positive_mu**2 * q.M * q.R**2)), 2),)


class Row(NamedTuple):
    """A rate of the strongly convex case: where it stands, its terms, and what it is an order of."""

    where: str
    terms: Callable[[Asked], Terms]
    measure: str = MEASURE[SC]


ROWS: dict[str, Row] = {
    "fedavg-swor": Row("partial participation, without replacement", partial(partial_participation, "fedavg-swor")),
    "fedavg-swr": Row("partial participation, with replacement", partial(partial_participation, "fedavg-swr")),
    "ssl-equal-compute": Row("Corollary 1 over S R / M rounds", ssl_equal_compute),
    "table-sgd": Row("Table 1, SGD", table_sgd),
    "table-karimireddy": Row(
        "Table 1, FedAvg, Karimireddy et al.", lambda q: table_row(q, q.sigma2, q.zeta2, 1.0, q.mu * q.D2)
    ),
    "table-koloskova": Row("Table 1, FedAvg, Koloskova et al.", table_koloskova),
    "table-fedavg": Row(
        "Table 1, FedAvg, Theorem 2", lambda q: table_row(q, q.sigma2, q.heterogeneity, 1.0, q.mu * q.D2)
    ),
    "table-ssl": Row("Table 1, SSL, Theorem 1", lambda q: table_row(q, q.sigma2, q.heterogeneity, q.M, q.mu * q.D2)),
    "reshuffling": Row("random reshuffling as SSL with K = 1, sigma = 0", reshuffling),
    "reshuffling-quoted": Row("random reshuffling, quoted", reshuffling_quoted, "E||x^R - x*||^2"),
    "lower-bound-quoted": Row("lower bound, quoted", lower_bound_quoted),
}
RATES: tuple[str, ...] = ("ssl", "fedavg", *ROWS)


def rate(name: str, case: str, problem: Problem, *, constants: Constants = "proved") -> Rate:
    """An order by its name (one of RATES). Only ssl and fedavg have one beyond the strongly convex case.

    constants matter in the non-convex case alone: "printed" has L B^2 A / R, "proved" L (1 + B^2) A / R (E5),
    "tight" what the wider step range gives, L sqrt(1 + B^2/M) A / R in SSL.
    """
    check_choice("rate", name, RATES)
    check_choice("case", case, CASES)
    check_choice("constants", constants, CONSTANTS)
    q = problem.asked_by(f"the rate of {name} {case}", case)
    if name not in ("ssl", "fedavg") and case != SC:
        hint = f"There is one for {name} strongly-convex; ssl and fedavg have all three."
        raise InputError(f"the paper prints no rate for {name} {case}", hint=hint)
    with np.errstate(all="ignore"):  # what is not finite is refused
        if name in ROWS:
            return _finished(name, q, ROWS[name].where, ROWS[name].measure, ROWS[name].terms(q))
        where = "Corollary 1" if name == "ssl" else "Theorem 2, tuned"
        return _finished(name, q, where, MEASURE[case], _corollary(name, q, constants))


def table_one(problem: Problem) -> dict[str, Rate]:
    """The five rows of Table 1, in its order."""
    return {name: rate(name, SC, problem) for name in RATES if name.startswith("table-")}


def _corollary(name: str, q: Asked, constants: str) -> Terms:
    drifting = q.M if name == "ssl" else np.ones(())
    if q.case == NC:
        return corollary_non_convex(q, drifting, slowing(q, constants, drifting))
    return corollary_general_convex(q, drifting) if q.case == GC else corollary_strongly_convex(q, drifting)


def _finished(name: str, q: Asked, where: str, measure: str, terms: Terms) -> Rate:
    shape = q.problem.shape
    total = sum((term.value for term in terms), np.zeros(()))
    if np.any(np.isinf(total)):
        raise OutOfRange(f"{q.asker} leaves the range of double precision")
    values: dict[str, Values] = {term.name: plain(np.broadcast_to(term.value, shape)) for term in terms}
    return Rate(
        name=name,
        case=q.case,
        statement=where,
        measure=measure,
        total=plain(np.broadcast_to(total, shape)),
        terms=values,
        decay={term.name: DECAY[term.power] for term in terms},
    )
