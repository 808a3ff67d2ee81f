"""The last iterate instead of an average (derived from the recursions; strongly convex)."""

from __future__ import annotations

from splitrelay.theory.problem import Problem, Values
from splitrelay.theory.results import Algorithm, Bound, Outside


def last_iterate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    outside: Outside = "refuse",
) -> Bound:
    """E||x^R - x*||^2 <= (1 - mu eta_tilde / 2)^R D^2 + (2/mu)(c1 eta_tilde + c2 eta_tilde^2)."""
    raise NotImplementedError
