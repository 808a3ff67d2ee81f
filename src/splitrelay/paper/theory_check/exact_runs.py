"""What the checks share: exact runs of all four algorithms, a problem's constants, and bound / actual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from splitrelay.objectives.exact_moments import Moments, Round, fedavg_round, ssl_round, trajectory
from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.theory import Problem
from splitrelay.theory.results import Algorithm

Evidence = Mapping[str, Array]  # statement: bound / actual, one number a check

SSL: Algorithm = "ssl"
FEDAVG: Algorithm = "fedavg"
FULL: tuple[Algorithm, ...] = (SSL, FEDAVG)
PARTIAL: tuple[Algorithm, ...] = ("fedavg-swor", "fedavg-swr")
ORDER: tuple[Algorithm, ...] = FULL + PARTIAL  # along the first axis of every exact result
LABEL: dict[Algorithm, str] = {
    "ssl": "SSL",
    "fedavg": "FedAvg",
    "fedavg-swor": "FedAvg, S without replacement",
    "fedavg-swr": "FedAvg, S with replacement",
}
NOTHING = 1e-24  # relative to the problem's scale: an actual value below it is zero


def rounds_of_all(problem: Quadratics, eta_tilde: Array, K: int, S: int) -> Round:
    """A round of SSL, FedAvg, FedAvg without and with replacement, along the first axis, at equal eta_tilde."""
    eta = eta_tilde / K
    four = [
        ssl_round(problem, eta / problem.M, K),
        fedavg_round(problem, eta, K),
        fedavg_round(problem, eta, K, S),
        fedavg_round(problem, eta, K, S, replacement=True),
    ]
    return Round(np.stack([one.mean for one in four]), np.stack([one.second for one in four]))


def run_all(problem: Quadratics, x0: Array, eta_tilde: Array, K: int, S: int, R: int, shrink: Any = 1.0) -> Moments:
    """R rounds of all four algorithms: every result has shape (R + 1, 4, settings)."""
    return trajectory(problem, rounds_of_all(problem, eta_tilde, K, S), x0, R, shrink)


def constants_of(problem: Quadratics, K: int, S: int, **more: Any) -> Problem:
    """The problem as the theory sees it, with zeta_*^2 and the mean of mu_m where `more` does not say otherwise."""
    known = {
        "L": problem.L,
        "mu": min(max(problem.mu_mean, 0.0), problem.L),
        "sigma2": problem.sigma2,
        "zeta2": problem.zeta2_star,
        "M": problem.M,
        "S": S,
        "K": K,
    }
    return Problem(**{**known, **more})


def ratio(bound: Any, actual: Any, scale: float) -> Array:
    """bound / actual; infinite where there is nothing to bound."""
    bound, actual = np.broadcast_arrays(np.asarray(bound, dtype=float), np.asarray(actual, dtype=float))
    there = np.abs(actual) > NOTHING * scale
    return np.where(there, bound / np.where(there, actual, 1.0), np.inf)
