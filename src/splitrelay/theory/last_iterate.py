"""The last iterate instead of an average: derived from the simplified recursions, strongly convex."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitrelay.theory.arrays import Array, Values
from splitrelay.theory.bounds import finished
from splitrelay.theory.problem import Problem
from splitrelay.theory.ranges import Range, effective_step, per_eta, refuse_outside
from splitrelay.theory.results import OUTSIDE, Algorithm, Bound, Outside
from splitrelay.theory.statements import POWER, SC, check_algorithm, check_choice, error_constants, recursion, units


def last_iterate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    outside: Outside = "refuse",
) -> Bound:
    """E||x^R - x*||^2 <= (1 - mu eta_tilde / 2)^R D^2 + (2/mu) (c1 eta_tilde + c2 eta_tilde^2).

    No averaging, no lower end of the step and no R >= 6 kappa; vacuous where it is not below D^2.
    """
    check_algorithm(algorithm, SC)
    check_choice("outside", outside, OUTSIDE)
    q = problem.asked_by(f"the last iterate of {algorithm}")
    mu, step = q.positive_mu, effective_step(algorithm, q, eta, eta_tilde)
    found = Range(q.asker, np.zeros(()), 1 / (6 * q.L), q, "1/(6 L)")
    conditions = found.conditions(step)
    if outside == "refuse":
        refuse_outside(found, step, conditions, eta)
    inside = np.minimum(step, found.high)  # where masked, any step that keeps the logarithm real
    powers: dict[int, Array] = {1: step, 2: step * step}
    constants, parts = error_constants(recursion(algorithm, SC, "proved")), units(algorithm, q)
    terms = {"optimization": np.exp(q.R * np.log1p(-mu * inside / 2)) * q.D2}
    terms |= {name: 2 / mu * c * parts[name] * powers[POWER[name]] for name, c in constants.items()}
    facts: dict[str, Any] = {
        "algorithm": algorithm,
        "case": SC,
        "constants": "proved",
        "statement": "last iterate (derived)",
    }
    facts |= {"measure": "E||x^R - x*||^2", "rounds": problem.R}
    return finished(facts, terms, step, step / per_eta(algorithm, q), conditions, q.D2, outside)
