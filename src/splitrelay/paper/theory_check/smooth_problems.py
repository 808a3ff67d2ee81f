"""Convex problems that are not quadratic, and the exact expectation of their runs over all orders, samples and noises.

One round branches into every order (or sample) of clients and every sign of a two-point noise. All branches have the
same probability, so a mean over the tree of all rounds is an exact expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from splitrelay.objectives.quadratic import Array
from splitrelay.paper.theory_check.exact_runs import LABEL, Ratios, compute_ratio
from splitrelay.randomness import Purpose, rng
from splitrelay.theory import Problem, bound
from splitrelay.theory.results import Algorithm

KINDS = ("piecewise quadratic", "logistic", "softmax")
MAX_PATHS = 3000  # of a tree; R is as large as this allows, and at most MAX_ROUNDS
MAX_ROUNDS = 12
MAX_BRANCHES = 400  # of one round; noise that would give more is left out
FRACTIONS = (1.0, 0.2)  # of the largest step
DESCENT_STEPS = 6000
HARD_CURVATURE = 0.1  # of the hard instance on the right of its optimum
HARD_CLIENTS = 4


@dataclass(frozen=True, eq=False)
class SmoothProblem:
    """M convex clients, given by functions of an array of points (paths, d): gradients and values."""

    gradients: Sequence[Callable[[Array], Array]]
    values: Sequence[Callable[[Array], Array]]
    L: float
    mu: float  # the mean over clients of their strong convexity
    d: int
    sigma2: float = 0.0

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.gradients)

    @cached_property
    def x_star(self) -> Array:
        """The minimizer of F, by gradient descent."""
        x = np.zeros((1, self.d))
        for _ in range(DESCENT_STEPS):
            x = x - self.compute_gradient(x) / self.L
        return np.asarray(x[0])

    def compute_gradient(self, x: Array) -> Array:
        """Compute the gradient of F."""
        return np.asarray(sum(gradient(x) for gradient in self.gradients) / self.M)

    def compute_gap(self, x: Array) -> Array:
        """Compute F(x) - F*, which is never negative."""
        at = np.concatenate([x, self.x_star[None]])
        F = np.asarray(sum(value(at) for value in self.values) / self.M)
        return np.asarray(np.maximum(F[:-1] - F[-1], 0))

    @property
    def zeta2_star(self) -> float:
        """The heterogeneity at the optimum."""
        return float(np.mean([(gradient(self.x_star[None]) ** 2).sum() for gradient in self.gradients]))


def build_piecewise(g: np.random.Generator, M: int) -> SmoothProblem:
    """Build clients whose curvature jumps at a point of their own, in one dimension."""
    left, right = np.exp(g.uniform(np.log(0.05), 0, size=(2, M)))
    kink, slope = g.normal(size=M), 3 * g.normal(size=M)

    def gradient(m: int, x: Array) -> Array:
        z = x - kink[m]
        return np.asarray(np.where(z < 0, left[m], right[m]) * z + slope[m])

    def value(m: int, x: Array) -> Array:
        z = x[:, 0] - kink[m]
        return np.asarray(np.where(z < 0, left[m], right[m]) * z * z / 2 + slope[m] * z)

    return _collect(gradient, value, M, float(max(left.max(), right.max())), float(np.minimum(left, right).mean()), 1)


def build_logistic(g: np.random.Generator, M: int) -> SmoothProblem:
    """Build regularized logistic regressions with two weights and three examples per client."""
    u, l2 = 2 * g.normal(size=(M, 3, 2)), float(np.exp(g.uniform(np.log(0.1), 0)))

    def gradient(m: int, x: Array) -> Array:
        weight = 1 / (1 + np.exp(x @ u[m].T))
        return np.asarray(-weight @ u[m] / 3 + l2 * x)

    def value(m: int, x: Array) -> Array:
        return np.asarray(np.logaddexp(0, -x @ u[m].T).mean(-1) + l2 / 2 * (x * x).sum(-1))

    curvature = max(float(np.linalg.eigvalsh(one.T @ one / 3)[-1]) for one in u) / 4
    return _collect(gradient, value, M, curvature + l2, l2, 2)


def build_softmax(g: np.random.Generator, M: int) -> SmoothProblem:
    """Build regularized softmax regressions of three classes with one feature: one example and one class per client."""
    feature, label, l2 = 1 + g.uniform(size=M), np.arange(M) % 3, float(np.exp(g.uniform(np.log(0.1), 0)))

    def gradient(m: int, x: Array) -> Array:
        logits = feature[m] * x
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray((odds / odds.sum(-1, keepdims=True) - np.eye(3)[label[m]]) * feature[m] + l2 * x)

    def value(m: int, x: Array) -> Array:
        logits = feature[m] * x
        top = logits.max(-1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        return np.asarray(total - logits[:, label[m]] + l2 / 2 * (x * x).sum(-1))

    return _collect(gradient, value, M, float((feature**2).max()) / 2 + l2, l2, 3)


def _collect(gradient: Any, value: Any, M: int, L: float, mu: float, d: int) -> SmoothProblem:
    def bind(function: Any, m: int) -> Callable[[Array], Array]:
        return lambda x: np.asarray(function(m, x))

    return SmoothProblem([bind(gradient, m) for m in range(M)], [bind(value, m) for m in range(M)], L, mu, d)


def build_hard_instance(M: int = HARD_CLIENTS) -> SmoothProblem:
    """Build F_m = phi +- x, with phi = x^2/2 on the left of 0 and c x^2/2 on the right: L = zeta2 = 1, x* = 0."""

    def gradient(m: int, x: Array) -> Array:
        return np.where(x < 0, 1.0, HARD_CURVATURE) * x + (1 if m < M // 2 else -1)

    def value(m: int, x: Array) -> Array:
        z = x[:, 0]
        return np.asarray(np.where(z < 0, 1.0, HARD_CURVATURE) * z * z / 2 + (z if m < M // 2 else -z))

    return _collect(gradient, value, M, 1.0, HARD_CURVATURE, 1)


def list_branches(algorithm: Algorithm, M: int, S: int) -> list[tuple[int, ...]]:
    """List every order or sample of clients of a round, each as likely as the others."""
    if algorithm in ("ssl", "ssl-swor"):
        return list(permutations(range(M), M if algorithm == "ssl" else S))
    if algorithm == "fedavg-swr":
        return list(product(range(M), repeat=S))
    return list(combinations(range(M), S)) if algorithm == "fedavg-swor" else [tuple(range(M))]


def run_tree(problem: SmoothProblem, algorithm: Algorithm, x0: Array, g: float, K: int, S: int) -> Array:
    """Compute E F(x^r) - F* for r = 0, 1, ..., over the complete tree of branches."""
    branches = list_branches(algorithm, problem.M, S)
    steps = len(branches[0]) * K
    signs: list[tuple[float, ...]] = [(0.0,) * steps]
    if problem.sigma2 > 0:
        signs = list(product((-1.0, 1.0), repeat=steps))
    size = len(branches) * len(signs)
    R = MAX_ROUNDS if size == 1 else max(1, min(MAX_ROUNDS, int(np.log(MAX_PATHS) / np.log(size))))
    x, gaps = np.asarray(x0, dtype=float)[None], [float(problem.compute_gap(np.asarray(x0)[None])[0])]
    for _ in range(R):
        x = np.concatenate([_run_round(problem, algorithm, x, g, K, one, noise) for one in branches for noise in signs])
        gaps.append(float(problem.compute_gap(x).mean()))
    return np.array(gaps)


def _run_round(
    problem: SmoothProblem,
    algorithm: Algorithm,
    x: Array,
    g: float,
    K: int,
    clients: tuple[int, ...],
    noise: tuple[float, ...],
) -> Array:
    """Run one round of all paths with these clients and these signs of the noise, which has one direction."""
    in_sequence = algorithm in ("ssl", "ssl-swor")
    eta, push = g / (K * (len(clients) if in_sequence else 1)), np.sqrt(problem.sigma2) * np.eye(problem.d)[0]
    y, ends = x, []
    for at, m in enumerate(clients):
        y = y if in_sequence else x
        for k in range(K):
            y = y - eta * (problem.gradients[m](y) + noise[at * K + k] * push)
        ends.append(y)
    return y if in_sequence else np.asarray(sum(ends) / len(ends))


BUILDERS = (build_piecewise, build_logistic, build_softmax)


def check_nonquadratic(seed: int, number: int) -> Ratios:
    """Compute bound / actual of the sharp bounds on one problem, whose kind depends on its number."""
    g = rng(seed, Purpose.INSTANCES, number, 1)
    M, K = int(g.integers(2, 4)), int(g.integers(1, 4))
    S, kind = int(g.integers(1, M + 1)), number % len(KINDS)
    problem = BUILDERS[kind](g, M)
    noise, x0 = float(g.choice([0.0, 0.3, 4.0])), problem.x_star + 3 * g.normal(size=problem.d)
    ratios: dict[str, Array] = {}
    for algorithm in LABEL:
        branches = list_branches(algorithm, M, S)
        noisy = len(branches) * 2 ** (len(branches[0]) * K) <= MAX_BRANCHES
        one = replace(problem, sigma2=noise) if noisy else problem
        found = [_compare(one, algorithm, x0, fraction / (6 * problem.L), K, S) for fraction in FRACTIONS]
        ratios[f"sharp, {KINDS[kind]}, {LABEL[algorithm]}"] = np.concatenate(found)
    return ratios


def _compare(problem: SmoothProblem, algorithm: Algorithm, x0: Array, g: float, K: int, S: int) -> Array:
    """Compare both convex cases with the weighted mean of the gaps after every number of rounds."""
    gaps = run_tree(problem, algorithm, x0, g, K, S)
    R = np.arange(1.0, len(gaps))
    D2 = float(((x0 - problem.x_star) ** 2).sum())
    sampled = S if algorithm in ("ssl-swor", "fedavg-swor", "fedavg-swr") else None
    known = Problem(
        L=problem.L,
        mu=problem.mu,
        sigma2=problem.sigma2,
        zeta2=problem.zeta2_star,
        M=problem.M,
        S=sampled,
        K=K,
        R=R,
        D2=D2,
    )
    ratios = []
    for case, mu in (("strongly-convex", problem.mu), ("general-convex", 0.0)):
        w = (1 - mu * g / 2) ** -(np.arange(len(gaps)) + 1.0)
        actual = np.cumsum(w * gaps)[1:] / np.cumsum(w)[1:]
        total = bound(algorithm, case, known, eta_tilde=g, constants="sharp").total  # type: ignore[arg-type]
        ratios.append(compute_ratio(total, actual, D2 * problem.L))
    return np.concatenate(ratios)


def check_hard_instance() -> Ratios:
    """Compute E F / its lower bound on the hard instance, from x^0 = 0; see docs/theory.md."""
    ratios: dict[str, Array] = {}
    problem, c, K = build_hard_instance(), HARD_CURVATURE, 4
    names: tuple[Algorithm, ...] = ("ssl", "fedavg")
    for name in names:
        found = []
        for g in (1 / 6, 1 / 12):
            gaps = run_tree(problem, name, np.zeros(1), g, K, problem.M)
            grown = (1 - (1 - g) ** np.arange(1, len(gaps))) / g
            found.append(gaps[1:] / (c / 2 * (compute_hard_push(name, g, K, problem.M) * grown) ** 2))
        ratios[f"hard instance from below, {LABEL[name]}"] = np.concatenate(found)
    return ratios


def compute_hard_push(algorithm: str, g: float, K: int, M: int) -> float:
    """Compute the lower bound on E x^1 from x^0 = 0 on the hard instance (M a multiple of 2, at least 4)."""
    rho = 1 - g
    if algorithm == "ssl":
        return float((1 - HARD_CURVATURE) * rho**2 * g**2 / (48 * np.sqrt(2 * M)))
    return (1 - HARD_CURVATURE) * rho**2 * g**2 * (1 - 1 / K) / 4
