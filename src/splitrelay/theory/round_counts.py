"""The number of rounds after which a bound reaches an accuracy eps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.problem import Problem, check_positive
from splitrelay.theory.results import Algorithm, Array, Bools, Case, Constants, Horizon, StepSize, Values, unwrap_values
from splitrelay.theory.stepsizes import choose_step
from splitrelay.theory.theorem_constants import check_algorithm, resolve_constants

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
