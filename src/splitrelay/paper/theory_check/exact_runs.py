"""Exact runs of all algorithms, the constants of a problem, and the ratio bound / actual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from splitrelay.objectives.exact_moments import Moments, Round, fedavg_round, ssl_round, trajectory
from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.theory import Problem
from splitrelay.theory.results import Algorithm

Ratios = Mapping[str, Array]  # by statement: bound / actual, one number per check

SSL: Algorithm = "ssl"
FEDAVG: Algorithm = "fedavg"
FULL: tuple[Algorithm, ...] = (SSL, FEDAVG)
PARTIAL: tuple[Algorithm, ...] = ("fedavg-swor", "fedavg-swr")
PAPER: tuple[Algorithm, ...] = FULL + PARTIAL  # the algorithms with statements in the paper
ALGORITHMS: tuple[Algorithm, ...] = (*PAPER, "ssl-swor")  # in the order of the first axis of every exact result
LABEL: dict[Algorithm, str] = {
    "ssl": "SSL",
    "fedavg": "FedAvg",
    "fedavg-swor": "FedAvg, S without replacement",
    "fedavg-swr": "FedAvg, S with replacement",
    "ssl-swor": "SSL, S without replacement",
}
ZERO = 1e-24  # an actual value below this, relative to the scale of the problem, counts as zero


def build_rounds(problem: Quadratics, eta_tilde: Array, K: int, S: int) -> Round:
    """Build one round of all five algorithms, along the first axis, at the same eta_tilde."""
    eta = eta_tilde / K
    rounds = [
        ssl_round(problem, eta / problem.M, K),
        fedavg_round(problem, eta, K),
        fedavg_round(problem, eta, K, S),
        fedavg_round(problem, eta, K, S, replacement=True),
        ssl_round(problem, eta / S, K, S),
    ]
    return Round(np.stack([one.mean for one in rounds]), np.stack([one.second for one in rounds]))


def run_exactly(problem: Quadratics, x0: Array, eta_tilde: Array, K: int, S: int, R: int, shrink: Any = 1.0) -> Moments:
    """Run R rounds of all five algorithms. Every result has the shape (R + 1, 5, settings)."""
    return trajectory(problem, build_rounds(problem, eta_tilde, K, S), x0, R, shrink)


def build_problem(problem: Quadratics, K: int, S: int, **more: Any) -> Problem:
    """Build the theory's problem with zeta_*^2 and the mean of mu_m. `more` replaces or adds quantities."""
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


def take_clients(algorithm: Algorithm, known: Problem) -> Problem:
    """Leave S out for an algorithm in which all clients take part."""
    return known.with_all_clients() if algorithm in FULL else known


def compute_ratio(bound: Any, actual: Any, scale: float) -> Array:
    """Compute bound / actual; infinite where the actual value is zero."""
    bound, actual = np.broadcast_arrays(np.asarray(bound, dtype=float), np.asarray(actual, dtype=float))
    nonzero = np.abs(actual) > ZERO * scale
    return np.where(nonzero, bound / np.where(nonzero, actual, 1.0), np.inf)
