"""One round: per-round recursions, client drift, and the simplified recursions that the tuning lemmas use.

r2 = ||x^r - x*||^2, DF = F(x^r) - F*, G2 = ||grad F(x^r)||^2. E is the client drift: the sum over clients and steps of
E||x_m^(r,k) - x^r||^2 for SSL, and its mean over clients for FedAvg. The convex recursions bound E||x^{r+1} - x*||^2,
the non-convex ones bound E F(x^{r+1}) - F(x^r).
"""

from __future__ import annotations

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.problem import Problem, Quantities, check_nonnegative, check_positive
from splitrelay.theory.results import Algorithm, Array, Case, Constants, Values, unwrap_values
from splitrelay.theory.sharp_bounds import compute_sampling_factors
from splitrelay.theory.theorem_constants import (
    CONVEX_LIMIT,
    NC,
    POWER,
    StepLimit,
    check_algorithm,
    compute_step_ratio,
    compute_units,
    get_error_constants,
    get_statement,
)


def compute_round_bound(
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
    """Compute the right-hand side of the per-round recursion for a given drift E."""
    q, g, (drift, distance2, gap, gradient2) = _check_inputs(algorithm, case, problem, eta_tilde, E, r2, DF, G2)
    eta = g / compute_step_ratio(algorithm, q)
    if case == NC:
        return unwrap_values(-g / 2 * gradient2 + q.L * g**2 * q.sigma2 / (q.M * q.K) + q.L**2 * eta / 2 * drift)
    mu: Array | float = 0.0 if case == "general-convex" else q.mu
    if algorithm in ("ssl", "fedavg"):
        progress = (1 - mu * g / 2) * distance2 - g * (2 - 6 * q.L * g) * gap
        errors = 3 * g**2 * q.sigma2 / (q.M * q.K) + q.L * eta * (2 + 3 * q.L * g) * drift
    else:  # display (8) after correction: 4 K eta^2 sigma^2 / S and 2 + 4 L K eta (E7)
        progress = (1 - mu * g / 2) * distance2 - g * (2 - 8 * q.L * g) * gap
        sampling = 4 * g**2 * compute_sampling_factors(algorithm, q.M, q.S)[0] * q.heterogeneity
        errors = 4 * g**2 * q.sigma2 / (q.S * q.K) + sampling + q.L * eta * (2 + 4 * q.L * g) * drift
    return unwrap_values(progress + errors)


def compute_drift_bound(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values,
    DF: Values = 0.0,
    G2: Values = 0.0,
    constants: Constants = "proved",
) -> Values:
    """Compute the bound on the client drift E of a round. For SSL, "tight" has the factor 3 instead of 9/2."""
    q, g, (_, _, gap, gradient2) = _check_inputs(algorithm, case, problem, eta_tilde, 0.0, 0.0, DF, G2)
    M: Array | float = q.M if algorithm == "ssl" else 1.0
    eta = g / compute_step_ratio(algorithm, q)
    noise = 9 / 4 * M**2 * q.K**2 * eta**2 * q.sigma2
    heterogeneity = 3 / 2 * M**2 * q.K**3 * eta**2 * q.heterogeneity
    if case == NC:
        movement = 3 / 2 * M**3 * q.K**3 * eta**2 * gradient2 + 3 / 2 * M**2 * q.K**3 * q.B2 * eta**2 * gradient2
    else:
        constant = 9 / 2 if algorithm == "ssl" and constants != "tight" else 3
        movement = constant * q.L * M**3 * q.K**3 * eta**2 * gap
    return unwrap_values(movement + noise + heterogeneity)


def compute_simplified_bound(
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
    """Compute (1 - a g) r_t - b g s_t + c1 g^2 + c2 g^3, with the drift inserted.

    In the non-convex case the result is without r_t, because it bounds the difference F(x^{r+1}) - F(x^r).
    """
    statement = get_statement(algorithm, case, constants)
    q, g, (_, distance2, gap, gradient2) = _check_inputs(
        algorithm, case, problem, eta_tilde, 0.0, r2, DF, G2, simplified_limit=statement.step_limit
    )
    row = statement.recursion
    units = compute_units(algorithm, q, row)
    errors = sum(
        (c * units[name] * g ** (POWER[name] + 1) for name, c in get_error_constants(row).items()), np.zeros(())
    )
    if case == NC:
        return unwrap_values(-row.b * g * gradient2 + errors)
    mu: Array | float = 0.0 if case == "general-convex" else q.mu
    return unwrap_values((1 - mu * g / 2) * distance2 - row.b * g * gap + errors)


def _check_inputs(
    algorithm: str,
    case: str,
    problem: Problem,
    eta_tilde: Values,
    *measured: Values,
    simplified_limit: StepLimit | None = None,
) -> tuple[Quantities, Array, list[Array]]:
    """Check the step and the measured quantities. Every lemma needs eta_tilde <= 1/(6 L), or its own limit."""
    check_algorithm(algorithm, case)
    get_statement(algorithm, case, "proved")  # raises InputError if the paper has no such statement
    q = problem.get_quantities(f"the recursion of {algorithm} {case}", case)
    step = check_positive("eta_tilde", eta_tilde)
    limit = simplified_limit if simplified_limit is not None else CONVEX_LIMIT
    too_large = step > limit.compute(q) * (1 + 1e-12)
    if np.any(too_large):
        value = float(np.broadcast_to(step, too_large.shape)[too_large][0])
        raise OutOfRange(q.subject, limit=f"eta_tilde <= {limit.formula}", value=value, hint="Take a smaller step.")
    return q, step, [check_nonnegative("the measured quantity", value) for value in measured]
