"""Steps: the printed rule, the mended rule (E14), and the exact minimiser of the bound."""

from __future__ import annotations

from splitrelay.theory.problem import Problem
from splitrelay.theory.results import Algorithm, Case, Constants, Horizon, Outside, Rule, StepSize


def stepsize(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    rule: Rule = "best",
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> StepSize:
    """The step of one rule, with the bound that it gives."""
    raise NotImplementedError


def stepsizes(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> dict[str, StepSize]:
    """The steps of all three rules, by name."""
    raise NotImplementedError
