"""The last iterate instead of an average: derived from the simplified recursions, strongly convex."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitrelay.theory.bounds import finished
from splitrelay.theory.formulas import last_iterate_formulas
from splitrelay.theory.problem import Asked, Problem
from splitrelay.theory.results import OUTSIDE, Algorithm, Bound, Outside
from splitrelay.theory.scalar_or_array import Array, Values, plain
from splitrelay.theory.theorem_constants import (
    POWER,
    SC,
    Recursion,
    check_algorithm,
    check_choice,
    error_constants,
    recursion,
    units,
)
from splitrelay.theory.validity import Range, effective_step, per_eta, refuse_outside


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
    with np.errstate(all="ignore"):  # what is not finite is refused or blanked at the end
        step = effective_step(algorithm, q, eta, eta_tilde)
        found = Range(q.asker, np.zeros(()), 1 / (6 * q.L), q, "1/(6 L)")
        conditions = found.conditions(step)
        if outside == "refuse":
            refuse_outside(found, step, conditions, eta)
        row = recursion(algorithm, SC, "proved")
        facts: dict[str, Any] = {"algorithm": algorithm, "case": SC, "constants": "proved", "rounds": plain(q.R)}
        facts |= {"statement": "last iterate (derived)", "measure": "E||x^R - x*||^2"}
        facts |= {"formulas": last_iterate_formulas(algorithm, row), "per_eta": plain(per_eta(algorithm, q))}
        terms = _terms(algorithm, q, row, step)
        total = np.asarray(sum(terms.values()))
        return finished(facts, total, lambda: terms, step, conditions, q.D2, outside)


def _terms(algorithm: str, q: Asked, row: Recursion, step: Array) -> dict[str, Array]:
    mu, parts, powers = q.positive_mu, units(algorithm, q), {1: step, 2: step * step}
    left = {"optimization": np.exp(q.R * np.log1p(-mu * step / 2)) * q.D2}
    return left | {name: 2 / mu * c * parts[name] * powers[POWER[name]] for name, c in error_constants(row).items()}
