"""SSL against FedAvg, side by side."""

from __future__ import annotations

from splitrelay.theory.problem import Problem, Values
from splitrelay.theory.results import Case, Comparison, Constants, Horizon, Outside


def compare(
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values | None = None,
    constants: Constants = "tight",
    horizon: Horizon = "R",
    outside: Outside = "mask",
) -> Comparison:
    """At equal rounds and, where S is given, at equal compute; each at its best step, or all at one eta_tilde."""
    raise NotImplementedError
