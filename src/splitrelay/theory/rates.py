"""Orders of convergence at tuned steps, and the number of rounds until a bound reaches an accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.problem import Problem, Quantities, check_positive
from splitrelay.theory.results import (
    CASES,
    CONSTANTS,
    DECAYS,
    Algorithm,
    Array,
    Bools,
    Case,
    Constants,
    Horizon,
    Rate,
    StepSize,
    Values,
    unwrap_values,
)
from splitrelay.theory.sharp_bounds import TINY, compute_sampling_factors
from splitrelay.theory.stepsizes import choose_step
from splitrelay.theory.theorem_constants import GC, MEASURE, NC, SC, check_algorithm, check_choice, resolve_constants


class Term(NamedTuple):
    """A term and its decay with R: R^-power, or exponential if the power is infinite."""

    name: str
    value: Array
    power: float


Terms = Sequence[Term]
DECAY = dict(zip((1 / 2, 2 / 3, 1, 2, np.inf), DECAYS, strict=True))


def compute_strongly_convex(q: Quantities, drift_divisor: Array | float) -> Terms:
    """Compute Corollary 1. The drift divisor is M for SSL and 1 for FedAvg."""
    mu, zeta2 = q.positive_mu, q.heterogeneity
    return (
        Term("noise", q.sigma2 / (mu * q.M * q.K * q.R), 1),
        Term("noise drift", q.L * q.sigma2 / (mu**2 * drift_divisor * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * drift_divisor * q.R**2), 2),
        Term("optimization", mu * q.D2 * np.exp(-mu * q.R / (12 * q.L)), np.inf),
    )


def compute_general_convex(q: Quantities, drift_divisor: Array | float) -> Terms:
    """Compute Corollary 1. The drift divisor is M for SSL and 1 for FedAvg."""
    D4, zeta2 = q.D2**2, q.heterogeneity
    return (
        Term("noise", np.sqrt(q.sigma2 * q.D2 / (q.M * q.K * q.R)), 1 / 2),
        Term("noise drift", np.cbrt(q.L * q.sigma2 * D4 / (drift_divisor * q.K * q.R**2)), 2 / 3),
        Term("heterogeneity drift", np.cbrt(q.L * zeta2 * D4 / (drift_divisor * q.R**2)), 2 / 3),
        Term("optimization", q.L * q.D2 / q.R, 1),
    )


def compute_non_convex(q: Quantities, drift_divisor: Array | float, B_factor: Array) -> Terms:
    """Compute Corollary 1. B_factor multiplies L A / R: B^2 in the paper, 1 + B^2 after correction (E5)."""
    L2, A2 = q.L**2, q.A**2
    return (
        Term("noise", np.sqrt(q.sigma2 * q.L * q.A / (q.M * q.K * q.R)), 1 / 2),
        Term("noise drift", np.cbrt(L2 * q.sigma2 * A2 / (drift_divisor * q.K * q.R**2)), 2 / 3),
        Term("heterogeneity drift", np.cbrt(L2 * q.heterogeneity * A2 / (drift_divisor * q.R**2)), 2 / 3),
        Term("optimization", q.L * B_factor * q.A / q.R, 1),
    )


def compute_B_factor(q: Quantities, constants: str, drift_divisor: Array | float) -> Array:
    """Compute the factor by which B changes the last term of the non-convex rate."""
    if constants == "tight":  # the step limit is 1/(6 L sqrt(1 + B^2/M)) for SSL, and without M for FedAvg
        return np.sqrt(1 + q.B2 / drift_divisor)
    return q.B2 if constants == "printed" else 1 + q.B2


def compute_partial_participation(algorithm: str, q: Quantities) -> Terms:
    """Return the terms of the rate of FedAvg with S of M clients."""
    mu, zeta2 = q.positive_mu, q.heterogeneity
    return (
        Term("noise", q.sigma2 / (mu * q.S * q.K * q.R), 1),
        Term("sampling", compute_sampling_factors(algorithm, q.M, q.S)[0] * zeta2 / (mu * q.R), 1),
        Term("noise drift", q.L * q.sigma2 / (mu**2 * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * q.R**2), 2),
        Term("optimization", mu * q.D2 * np.exp(-mu * q.R / (12 * q.L)), np.inf),
    )


def compute_ssl_partial_participation(q: Quantities) -> Terms:
    """Compute SSL with S of M clients, from the sharp bound derived here: its drift is divided by S."""
    mu, zeta2 = q.positive_mu, q.heterogeneity
    return (
        Term("noise", q.sigma2 / (mu * q.S * q.K * q.R), 1),
        Term("sampling", compute_sampling_factors("ssl-swor", q.M, q.S)[0] * zeta2 / (mu * q.R), 1),
        Term("noise drift", q.L * q.sigma2 / (mu**2 * q.S * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * q.S * q.R**2), 2),
        Term("optimization", mu * q.D2 * np.exp(-mu * q.R / (12 * q.L)), np.inf),
    )


def compute_ssl_equal_compute(q: Quantities) -> Terms:
    """Compute SSL over S R / M rounds, which have as many local steps as R rounds of FedAvg with S clients.

    The paper states only the first term.
    """
    fewer = q.problem.with_rounds(q.S * q.R / q.M)
    return compute_strongly_convex(fewer.get_quantities(q.subject, q.case), q.M)


def compute_table_row(q: Quantities, sigma2: Array, zeta2: Array, drift_divisor: Array | float, start: Array) -> Terms:
    """Compute a row of Table 1 with local steps. `start` is the factor of exp(-mu R / L)."""
    mu = q.positive_mu
    return (
        Term("noise", sigma2 / (mu * q.M * q.K * q.R), 1),
        Term("noise drift", q.L * sigma2 / (mu**2 * drift_divisor * q.K * q.R**2), 2),
        Term("heterogeneity drift", q.L * zeta2 / (mu**2 * drift_divisor * q.R**2), 2),
        Term("optimization", start * np.exp(-mu * q.R / q.L), np.inf),
    )


def compute_table_sgd(q: Quantities) -> Terms:
    """Compute minibatch SGD with M K gradients per step. It has no local steps, so it has no drift."""
    mu = q.positive_mu
    noise = Term("noise", q.sigma2 / (mu * q.M * q.K * q.R), 1)
    return noise, Term("optimization", q.L * q.D2 * np.exp(-mu * q.R / q.L), np.inf)


def compute_table_koloskova(q: Quantities) -> Terms:
    """Compute the row with noise and heterogeneity at the optimum. sigma2 replaces a missing sigma2_star."""
    sigma2 = q.sigma2 if q.problem.sigma2_star is None else q.sigma2_star
    return compute_table_row(q, sigma2, q.heterogeneity, 1.0, q.L * q.K * q.D2)


def compute_reshuffling(q: Quantities) -> Terms:
    """Compute random reshuffling, which is SSL with K = 1 and sigma = 0."""
    mu = q.positive_mu
    drift = Term("heterogeneity drift", q.L * q.heterogeneity / (mu**2 * q.M * q.R**2), 2)
    return drift, Term("optimization", mu * q.D2 * np.exp(-mu * q.R / q.L), np.inf)


def compute_reshuffling_quoted(q: Quantities) -> Terms:
    """Compute the rate of Mishchenko et al. as the paper quotes it: of the squared distance, with M in the exponent."""
    mu = q.positive_mu
    drift = Term("heterogeneity drift", q.L * q.heterogeneity / (mu**3 * q.M * q.R**2), 2)
    return drift, Term("optimization", q.D2 * np.exp(-mu * q.M * q.R / q.L), np.inf)


def compute_lower_bound_quoted(q: Quantities) -> Terms:
    """Compute min{1, zeta_*^2 / (mu^2 M R^2)} as the paper quotes it (E21 corrects the source)."""
    return (Term("lower bound", np.minimum(1.0, q.heterogeneity / (q.positive_mu**2 * q.M * q.R**2)), 2),)


class Row(NamedTuple):
    """A rate of the strongly convex case: its place in the paper, its terms, and the quantity that it bounds."""

    location: str
    compute: Callable[[Quantities], Terms]
    measure: str = MEASURE[SC]


ROWS: dict[str, Row] = {
    "fedavg-swor": Row(
        "partial participation, without replacement", partial(compute_partial_participation, "fedavg-swor")
    ),
    "fedavg-swr": Row("partial participation, with replacement", partial(compute_partial_participation, "fedavg-swr")),
    "ssl-swor": Row("SSL with S of M clients (derived)", compute_ssl_partial_participation),
    "ssl-equal-compute": Row("Corollary 1 over S R / M rounds", compute_ssl_equal_compute),
    "table-sgd": Row("Table 1, SGD", compute_table_sgd),
    "table-karimireddy": Row(
        "Table 1, FedAvg, Karimireddy et al.", lambda q: compute_table_row(q, q.sigma2, q.zeta2, 1.0, q.mu * q.D2)
    ),
    "table-koloskova": Row("Table 1, FedAvg, Koloskova et al.", compute_table_koloskova),
    "table-fedavg": Row(
        "Table 1, FedAvg, Theorem 2", lambda q: compute_table_row(q, q.sigma2, q.heterogeneity, 1.0, q.mu * q.D2)
    ),
    "table-ssl": Row(
        "Table 1, SSL, Theorem 1", lambda q: compute_table_row(q, q.sigma2, q.heterogeneity, q.M, q.mu * q.D2)
    ),
    "reshuffling": Row("random reshuffling as SSL with K = 1, sigma = 0", compute_reshuffling),
    "reshuffling-quoted": Row("random reshuffling, quoted", compute_reshuffling_quoted, "E||x^R - x*||^2"),
    "lower-bound-quoted": Row("lower bound, quoted", compute_lower_bound_quoted),
}
RATES: tuple[str, ...] = ("ssl", "fedavg", *ROWS)
WITH_SAMPLING = ("fedavg-swor", "fedavg-swr", "ssl-swor", "ssl-equal-compute")  # the rates that depend on S


def rate(name: str, case: str, problem: Problem, *, constants: Constants | None = None) -> Rate:
    """Compute an order of convergence.

    Args:
        name: one of RATES.
        case: one of CASES. Only "ssl" and "fedavg" have rates for cases other than "strongly-convex".
        problem: the quantities of the problem.
        constants: matter only in the non-convex case. "printed" has the term L B^2 A / R, "proved" (default) has
            L (1 + B^2) A / R (E5), and "tight" has the term of the wider step range, for SSL L sqrt(1 + B^2/M) A / R.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=1000, D2=1)
    >>> rate("ssl", "strongly-convex", problem).dominant
    'noise'
    """
    check_choice("rate", name, RATES)
    check_choice("case", case, CASES)
    chosen = resolve_constants(constants, case)
    check_choice("constants", chosen, CONSTANTS)
    q = problem.get_quantities(f"the rate of {name} {case}", case)
    if name not in ("ssl", "fedavg") and case != SC:
        hint = f"There is one for {name} strongly-convex; ssl and fedavg have all three."
        raise InputError(f"the paper prints no rate for {name} {case}", hint=hint)
    if name not in WITH_SAMPLING and problem.S is not None and not np.all(q.S == q.M):
        sampled = {"ssl": "ssl-swor", "fedavg": "fedavg-swor or fedavg-swr"}.get(name)
        use = f"{sampled} has S of M clients; " if sampled else ""
        raise InputError(f"{q.subject} has all M clients in every round, not S", hint=f"{use}omit S otherwise.")
    with np.errstate(all="ignore"):  # _build_rate checks for overflow
        if name in ROWS:
            return _build_rate(name, q, ROWS[name].location, ROWS[name].measure, ROWS[name].compute(q))
        location = "Corollary 1" if name == "ssl" else "Theorem 2, tuned"
        return _build_rate(name, q, location, MEASURE[case], _compute_corollary(name, q, chosen))


def table_one(problem: Problem) -> dict[str, Rate]:
    """Compute the five rows of Table 1, in its order."""
    return {name: rate(name, SC, problem) for name in RATES if name.startswith("table-")}


def _compute_corollary(name: str, q: Quantities, constants: str) -> Terms:
    drift_divisor = q.M if name == "ssl" else np.ones(())
    if q.case == NC:
        return compute_non_convex(q, drift_divisor, compute_B_factor(q, constants, drift_divisor))
    return compute_general_convex(q, drift_divisor) if q.case == GC else compute_strongly_convex(q, drift_divisor)


def _keep_positive(q: Quantities, term: Term) -> Array:
    """Round an exponential term that underflows up to the smallest normal number, unless the start is the optimum."""
    if term.power != np.inf:
        return term.value
    return np.maximum(term.value, np.where(q.D2 > 0, TINY, 0))


def _build_rate(name: str, q: Quantities, location: str, measure: str, terms: Terms) -> Rate:
    shape = q.problem.shape
    terms = [term._replace(value=_keep_positive(q, term)) for term in terms]
    total = sum((term.value for term in terms), np.zeros(()))
    if np.any(np.isinf(total)):
        raise OutOfRange(f"{q.subject} leaves the range of double precision")
    values: dict[str, Values] = {term.name: unwrap_values(np.broadcast_to(term.value, shape)) for term in terms}
    return Rate(
        name=name,
        case=q.case,
        statement=location,
        measure=measure,
        total=unwrap_values(np.broadcast_to(total, shape)),
        terms=values,
        decay={term.name: DECAY[term.power] for term in terms},
    )


MAX_ROUNDS = 2**52  # every smaller whole number is a double


@dataclass(frozen=True)
class RoundCount:
    """The smallest R whose bound at its best step is at most eps, and this step with its bound."""

    eps: Values
    R: Values
    step: StepSize


def rounds(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eps: Values,
    constants: Constants | None = None,
    horizon: Horizon = "R",
) -> RoundCount:
    """Compute the number of rounds to reach eps with the best step for this number.

    The bound at its best step falls with R, so bisection finds the smallest R. The inverse, the eps that R rounds
    reach, is `stepsize(...).bound.total`.

    Args:
        problem: the quantities of the problem, without R.
        eps: the accuracy, in the measure of the bound.

    Raises:
        OutOfRange: more than 2^52 rounds would be necessary.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1)
    >>> rounds("ssl", "strongly-convex", problem, eps=0.01).R
    165.0
    """
    check_algorithm(algorithm, case)
    name, target = resolve_constants(constants, case), check_positive("eps", eps)
    shape = np.broadcast_shapes(target.shape, problem.shape)

    def reaches(R: Array) -> Bools:
        found = choose_step(algorithm, case, problem.with_rounds(R), "best", name, horizon, "mask")
        return np.asarray(found.bound.total <= target)  # NaN, where R is below 6 kappa, reaches nothing

    high = np.ones(shape)
    while True:
        missing = ~np.broadcast_to(reaches(high), shape)
        if not missing.any():
            break
        if np.any(high[missing] >= MAX_ROUNDS):
            limit = f"at most 2^52 rounds of {algorithm} {case}"
            raise OutOfRange("the accuracy eps", limit=limit, value=float(np.min(target)), hint="Take a larger eps.")
        high = np.where(missing, 2 * high, high)
    low = np.floor(high / 2)
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        enough = np.broadcast_to(reaches(np.maximum(middle, 1)), shape) & (middle >= 1)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    step = choose_step(algorithm, case, problem.with_rounds(high), "best", name, horizon, "refuse")
    return RoundCount(unwrap_values(np.broadcast_to(target, shape)), unwrap_values(high), step)
