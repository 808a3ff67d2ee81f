"""One round: per-round recursions, client drift, and the simplified recursions that the tuning lemmas take.

r2 = ||x^r - x*||^2, DF = F(x^r) - F*, G2 = ||grad F(x^r)||^2. E is the client drift: the sum over clients and steps of
E||x_m^(r,k) - x^r||^2 in SSL, its mean over clients in FedAvg. The convex recursions bound E||x^{r+1} - x*||^2, the
non-convex ones E F(x^{r+1}) - F(x^r).
"""

from __future__ import annotations

import numpy as np

from splitrelay.theory.problem import Asked, Problem, numbers
from splitrelay.theory.results import Algorithm, Case, Constants
from splitrelay.theory.scalar_or_array import Array, Values, plain
from splitrelay.theory.theorem_constants import (
    NC,
    POWER,
    check_algorithm,
    error_constants,
    recursion,
    sampling_factor,
    statement,
    units,
)
from splitrelay.theory.validity import per_eta


def per_round(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values,
    E: Values,
    r2: Values = 0.0,
    DF: Values = 0.0,
    G2: Values = 0.0,
) -> Values:
    """The right-hand side of the per-round recursion, with the drift E of the round in it."""
    q, g, (drift_of, left, gap, gradient2) = _inputs(algorithm, case, problem, eta_tilde, E, r2, DF, G2)
    eta = g / per_eta(algorithm, q)
    if case == NC:
        return plain(_nonconvex(q, g, gradient2) + q.L**2 * eta / 2 * drift_of)
    mu: Array | float = 0.0 if case == "general-convex" else q.mu
    if algorithm in ("ssl", "fedavg"):
        progress = (1 - mu * g / 2) * left - g * (2 - 6 * q.L * g) * gap
        errors = 3 * g**2 * q.sigma2 / (q.M * q.K) + q.L * eta * (2 + 3 * q.L * g) * drift_of
    else:  # display (8) as it must read: 4 K eta^2 sigma^2 / S and 2 + 4 L K eta (E7)
        progress = (1 - mu * g / 2) * left - g * (2 - 8 * q.L * g) * gap
        sampling = 4 * g**2 * sampling_factor(algorithm, q) * q.heterogeneity
        errors = 4 * g**2 * q.sigma2 / (q.S * q.K) + sampling + q.L * eta * (2 + 4 * q.L * g) * drift_of
    return plain(progress + errors)


def drift(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values,
    DF: Values = 0.0,
    G2: Values = 0.0,
    constants: Constants = "proved",
) -> Values:
    """The bound on the client drift E of a round; "tight" has 3 where SSL's convex lemma has 9/2."""
    q, g, (_, _, gap, gradient2) = _inputs(algorithm, case, problem, eta_tilde, 0.0, 0.0, DF, G2)
    M: Array | float = q.M if algorithm == "ssl" else 1.0
    eta = g / per_eta(algorithm, q)
    noise = 9 / 4 * M**2 * q.K**2 * eta**2 * q.sigma2
    heterogeneity = 3 / 2 * M**2 * q.K**3 * eta**2 * q.heterogeneity
    if case == NC:
        moved = 3 / 2 * M**3 * q.K**3 * eta**2 * gradient2 + 3 / 2 * M**2 * q.K**3 * q.B2 * eta**2 * gradient2
    else:
        loose = algorithm == "ssl" and constants != "tight"
        moved = (9 / 2 if loose else 3) * q.L * M**3 * q.K**3 * eta**2 * gap
    return plain(moved + noise + heterogeneity)


def simplified(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values,
    r2: Values = 0.0,
    DF: Values = 0.0,
    G2: Values = 0.0,
    constants: Constants = "proved",
) -> Values:
    """(1 - a g) r_t - b g s_t + c1 g^2 + c2 g^3, the drift put in; in the non-convex case without r_t itself."""
    q, g, (_, left, gap, gradient2) = _inputs(algorithm, case, problem, eta_tilde, 0.0, r2, DF, G2)
    row, parts = recursion(algorithm, case, constants), units(algorithm, q)
    errors = sum((c * parts[name] * g ** (POWER[name] + 1) for name, c in error_constants(row).items()), np.zeros(()))
    if case == NC:
        return plain(-row.b * g * gradient2 + errors)
    mu: Array | float = 0.0 if case == "general-convex" else q.mu
    return plain((1 - mu * g / 2) * left - row.b * g * gap + errors)


def _nonconvex(q: Asked, g: Array, G2: Array) -> Array:
    return -g / 2 * G2 + q.L * g**2 * q.sigma2 / (q.M * q.K)


def _inputs(
    algorithm: str, case: str, problem: Problem, eta_tilde: Values, *measured: Values
) -> tuple[Asked, Array, list[Array]]:
    check_algorithm(algorithm, case)
    statement(algorithm, case, "proved")  # refuses what the paper does not have
    q = problem.asked_by(f"the recursion of {algorithm} {case}", case)
    return q, numbers("eta_tilde", eta_tilde), [numbers("the measured quantity", value) for value in measured]
