"""The theorems' bounds."""

from __future__ import annotations

from splitrelay.theory.problem import Problem, Values
from splitrelay.theory.results import Algorithm, Bound, Case, Constants, Horizon, Outside, Truth


def bound(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> Bound:
    """The bound of Theorem 1 (ssl), Theorem 2 (fedavg) or its two corollaries (fedavg-swor, fedavg-swr)."""
    raise NotImplementedError


def applicability(problem: Problem, eta_tilde: Values) -> dict[str, Truth]:
    """Whether the strongly convex theorems apply: the step's range, R >= 6 kappa, R + 1 >= 6 kappa."""
    raise NotImplementedError
