"""Checks of the recursions and drifts of single rounds, and of the printed display (8), which fails."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitrelay.objectives.exact_moments import fedavg_drift, ssl_drift
from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.paper.theory_check.exact_runs import (
    ALGORITHMS,
    FEDAVG,
    FULL,
    LABEL,
    PARTIAL,
    SSL,
    Ratios,
    build_problem,
    compute_ratio,
    run_exactly,
    take_clients,
)
from splitrelay.paper.theory_check.random_problems import Instance
from splitrelay.theory import Problem
from splitrelay.theory.recursions import compute_drift_bound, compute_round_bound, compute_simplified_bound
from splitrelay.theory.results import Algorithm, Constants
from splitrelay.theory.sharp_bounds import compute_sharp_recursion
from splitrelay.theory.theorem_constants import compute_step_ratio

SIMPLIFIED: tuple[tuple[Algorithm, Constants], ...] = ((SSL, "proved"), (SSL, "tight"), (FEDAVG, "proved"))
E7 = "display (8) as printed (E7)"


class Rounds:
    """Single rounds from several x with several steps, and their exact results."""

    def __init__(self, problem: Quadratics, z: Array, eta_tilde: Array, K: int, S: int) -> None:
        x = problem.x_star + z
        exact = run_exactly(problem, x, eta_tilde, K, S, 1)
        self.problem, self.eta_tilde, self.K, self.S = problem, eta_tilde, K, S
        self.r2, self.DF, self.G2 = exact.r2[0, 0], exact.F[0, 0], exact.G2[0, 0]
        self.r2_next, self.F_next = exact.r2[1], exact.F[1]
        fedavg = fedavg_drift(problem, x, eta_tilde / K, K)
        self.E = dict.fromkeys(ALGORITHMS, fedavg) | {"ssl": ssl_drift(problem, x, eta_tilde / (problem.M * K), K)}
        self.scale = float((z**2).sum(-1).max() + problem.zeta2_star / problem.L**2)

    def compare_r2(self, algorithm: Algorithm, bound: Any) -> Array:
        """Compute bound / E||x^{r+1} - x*||^2."""
        return compute_ratio(bound, self.r2_next[ALGORITHMS.index(algorithm)], self.scale)

    def compare_F(self, algorithm: Algorithm, bound: Any) -> Array:
        """Compute bound / E F(x^{r+1}) - F*, for a bound on E F(x^{r+1}) - F(x^r)."""
        return compute_ratio(bound + self.DF, self.F_next[ALGORITHMS.index(algorithm)], self.scale * self.problem.L)

    def compare_drift(self, algorithm: Algorithm, bound: Any) -> Array:
        """Compute bound / client drift."""
        return compute_ratio(bound, self.E[algorithm], self.scale)


def check_convex_rounds(instance: Instance) -> Ratios:
    """Check the convex lemmas at eta_tilde <= 1/(6L), with the mean of mu_m."""
    problem = instance.convex
    rounds = Rounds(problem, instance.points, instance.fractions / (6 * problem.L), instance.K, instance.S)
    known = build_problem(problem, instance.K, instance.S)
    given: Any = {"eta_tilde": rounds.eta_tilde, "r2": rounds.r2, "DF": rounds.DF}
    ratios: dict[str, Array] = {}
    for name in FULL:
        bound = compute_round_bound(name, "strongly-convex", known, E=rounds.E[name], **given)
        ratios[f"recursion, {LABEL[name]}"] = rounds.compare_r2(name, bound)
    for name, constants in SIMPLIFIED:
        label = LABEL[name] + (", tight" if constants == "tight" else "")
        bound = compute_simplified_bound(name, "strongly-convex", known, constants=constants, **given)
        ratios[f"simplified recursion, {label}"] = rounds.compare_r2(name, bound)
        inputs: Any = {"eta_tilde": rounds.eta_tilde, "DF": rounds.DF, "constants": constants}
        ratios[f"drift, {label}"] = rounds.compare_drift(
            name, compute_drift_bound(name, "strongly-convex", known, **inputs)
        )
    return ratios | check_partial_rounds(rounds, known) | check_sharp_rounds(rounds, known)


def check_sharp_rounds(rounds: Rounds, known: Problem) -> dict[str, Array]:
    """Check the recursion behind the sharp bounds, and its drift, at every point and step."""
    ratios: dict[str, Array] = {}
    g = rounds.eta_tilde
    for name in ALGORITHMS:
        q = take_clients(name, known).get_quantities("the sharp recursion")
        b, err, drift = compute_sharp_recursion(name, q, g)
        bound = (1 - q.mu * g / 2) * rounds.r2 - g * b * rounds.DF + err
        ratios[f"sharp recursion, {LABEL[name]}"] = rounds.compare_r2(name, bound)
        if name in FULL:
            n = compute_step_ratio(name, q)
            k2, den = n * (n - 1) * (2 * n - 1) / 6, 1 - 2 * (n - 1) / n * (q.L * g) ** 2
            moved = 8 * g * g / n**2 * q.L * k2 * rounds.DF / den
            ratios[f"sharp drift, {LABEL[name]}"] = rounds.compare_drift(name, drift + moved)
    return ratios


def check_partial_rounds(rounds: Rounds, known: Problem) -> dict[str, Array]:
    """Check the recursions with S of M clients: corrected, simplified, and display (8) as printed."""
    given: Any = {"eta_tilde": rounds.eta_tilde, "r2": rounds.r2, "DF": rounds.DF}
    ratios: dict[str, Array] = {}
    for name in PARTIAL:
        right = compute_round_bound(name, "strongly-convex", known, E=rounds.E[name], **given)
        ratios[f"recursion, {LABEL[name]}"] = rounds.compare_r2(name, right)
        short = compute_simplified_bound(name, "strongly-convex", known, **given)
        ratios[f"simplified recursion, {LABEL[name]}"] = rounds.compare_r2(name, short)
    for name in PARTIAL:
        ratios[f"{E7}, {LABEL[name]}"] = rounds.compare_r2(name, compute_display_8(name, rounds, known))
    return ratios


def compute_display_8(algorithm: Algorithm, rounds: Rounds, known: Problem) -> Array:
    """Compute display (8) with the printed 3 K eta^2 sigma2/M and 2 + 3 L K eta (E7)."""
    problem, g, K, S = rounds.problem, rounds.eta_tilde, rounds.K, rounds.S
    L, M = problem.L, problem.M
    v = 1 / S if algorithm == "fedavg-swr" else (M - S) / (S * max(M - 1, 1))
    progress = (1 - np.asarray(known.mu) * g / 2) * rounds.r2 - g * (2 - 8 * L * g) * rounds.DF
    errors = 3 * g**2 * problem.sigma2 / (M * K) + 4 * g**2 * v * problem.zeta2_star
    return np.asarray(progress + errors + L * g / K * (2 + 3 * L * g) * rounds.E[algorithm])


def check_counterexample() -> Ratios:
    """Check the counterexample of E7: M = 8 equal clients, S = K = 1, sigma = 1, eta = 1/60, from x*."""
    problem = Quadratics(np.ones((8, 1, 1)), np.zeros((8, 1)), 1.0)
    rounds = Rounds(problem, np.zeros((1, 1)), np.array([1 / 60]), 1, 1)
    return check_partial_rounds(rounds, build_problem(problem, 1, 1))


def check_nonconvex_rounds(instance: Instance) -> Ratios:
    """Check the non-convex lemmas on clients with negative curvature."""
    problem, K, S = instance.indefinite, instance.K, instance.S
    B2 = 1.1 * problem.B2_min + 0.05
    known = build_problem(problem, K, S, mu=0.0, B2=B2, zeta2=problem.zeta2(B2))
    wide = Rounds(problem, instance.points, instance.fractions / (6 * problem.L), K, S)
    narrow = Rounds(problem, instance.points, instance.fractions / (6 * problem.L * (1 + B2)), K, S)
    ratios: dict[str, Array] = {}
    for name in FULL:
        given: Any = {"eta_tilde": wide.eta_tilde, "G2": wide.G2}
        bound = compute_round_bound(name, "non-convex", known, E=wide.E[name], **given)
        ratios[f"non-convex recursion, {LABEL[name]}"] = wide.compare_F(name, bound)
        ratios[f"non-convex drift, {LABEL[name]}"] = wide.compare_drift(
            name, compute_drift_bound(name, "non-convex", known, **given)
        )
        given = {"eta_tilde": narrow.eta_tilde, "G2": narrow.G2}
        short = compute_simplified_bound(name, "non-convex", known, **given)
        ratios[f"simplified non-convex recursion, {LABEL[name]}"] = narrow.compare_F(name, short)
    return ratios
