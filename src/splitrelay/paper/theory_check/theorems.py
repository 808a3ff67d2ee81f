"""Theorems 1 and 2, the corollaries on partial participation and the last iterate, on one instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from splitrelay.objectives.exact_moments import Moments
from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.paper.theory_check.exact_runs import (
    FEDAVG,
    LABEL,
    ORDER,
    PARTIAL,
    SSL,
    Evidence,
    constants_of,
    ratio,
    run_all,
)
from splitrelay.paper.theory_check.random_problems import Instance
from splitrelay.theory import Problem, bound, last_iterate
from splitrelay.theory.results import Algorithm, Constants

GENERAL_CONVEX: tuple[tuple[Algorithm, Constants, str], ...] = (
    (SSL, "proved", "Theorem 1, general convex"),
    (SSL, "tight", "Theorem 1, general convex, tight"),
    (FEDAVG, "proved", "Theorem 2, general convex"),
)
NON_CONVEX: tuple[tuple[Algorithm, Constants, str], ...] = (
    (SSL, "proved", "Theorem 1, non-convex"),
    (SSL, "tight", "Theorem 1, non-convex, wider range"),
    (FEDAVG, "proved", "Theorem 2, non-convex"),
    (FEDAVG, "tight", "Theorem 2, non-convex, wider range"),
)


@dataclass(frozen=True, eq=False)
class Settings:
    """Rounds, steps, and the mu of the averaging weights; one entry a check."""

    R: Array
    eta_tilde: Array
    mu: Array


def theorems(instance: Instance) -> Evidence:
    """Bound / actual of every statement on whole runs."""
    found: dict[str, Array] = {}
    convex = instance.convex
    for name, mu in (("mean", convex.mu_mean), ("least", convex.mu_min)):
        if mu > 0:
            found |= strongly_convex(instance, name, min(mu, convex.L))
    found |= general_convex(instance)
    for problem in (convex, instance.indefinite):
        for statement, ratios in non_convex(instance, problem).items():
            found[statement] = np.append(found.get(statement, []), ratios)
    return found


def strongly_convex(instance: Instance, name: str, mu: float) -> dict[str, Array]:
    """R from 6 kappa up, both ends and the middle of the range of steps; psi is what the proofs bound."""
    problem, settings = instance.convex, _strongly_convex_settings(mu, instance.convex.L)
    exact = _exact(instance, problem, settings)
    known = _known(instance, problem, settings)
    step = settings.eta_tilde

    def held(algorithm: Algorithm, actual: Array, **choice: Any) -> Array:
        total = bound(algorithm, "strongly-convex", known, eta_tilde=step, **choice).total
        return ratio(total, _at(actual, algorithm, settings), _scale(instance))

    found = {f"Theorem 1, strongly convex, mu = {name} mu_m": held(SSL, exact.psi)}
    if name == "mean":
        return found
    found["Theorem 1, strongly convex, F(xbar)"] = held(SSL, exact.Fbar)
    found["Theorem 1, strongly convex, tight, R+1"] = held(SSL, exact.psi, constants="tight", horizon="R+1")
    found["Theorem 2, strongly convex"] = held(FEDAVG, exact.psi)
    for algorithm in PARTIAL:
        for constants in ("printed", "proved"):
            found[f"{LABEL[algorithm]}, strongly convex, {constants}"] = held(algorithm, exact.psi, constants=constants)
    return found


def general_convex(instance: Instance) -> dict[str, Array]:
    """Short and long runs, large and small steps: the plain mean of F(x^r), and the last iterate."""
    problem, settings = instance.convex, _settings(1 / (6 * instance.convex.L))
    exact, step = _exact(instance, problem, settings), settings.eta_tilde
    known, found = _known(instance, problem, settings), {}
    for algorithm, constants, label in GENERAL_CONVEX:
        total = bound(algorithm, "general-convex", known, eta_tilde=step, constants=constants).total
        found[label] = ratio(total, _at(exact.psi, algorithm, settings), _scale(instance))
    known = _known(instance, problem, settings, mu=min(problem.mu_mean, problem.L))
    for algorithm in ORDER:
        total = last_iterate(algorithm, known, eta_tilde=step).total
        found[f"last iterate, {LABEL[algorithm]}"] = ratio(total, _at(exact.r2, algorithm, settings), _scale(instance))
    return found


def non_convex(instance: Instance, problem: Quadratics) -> dict[str, Array]:
    """Two pairs (B2, zeta2) of the problem; the mean of ||grad F(x^r)||^2, which is above its least."""
    pairs = [(B2, problem.zeta2(B2)) for B2 in (1.1 * problem.B2_min + 0.05, 2 * problem.B2_min + 0.5)]
    asked = [(row, pair, _settings(_highest(problem, *row[:2], pair[0]))) for row in NON_CONVEX for pair in pairs]
    exact = _exact(instance, problem, _joined([settings for _, _, settings in asked])).G2
    mean = np.cumsum(exact, axis=0) / (np.arange(len(exact)) + 1.0)[:, None, None]
    found: dict[str, Array] = {}
    for at, ((algorithm, constants, label), (B2, zeta2), settings) in enumerate(asked):
        known = _known(instance, problem, settings, B2=B2, zeta2=zeta2)
        step, size = settings.eta_tilde, len(settings.R)
        total = bound(algorithm, "non-convex", known, eta_tilde=step, constants=constants).total
        actual = _at(mean[..., at * size : (at + 1) * size], algorithm, settings)
        found[label] = np.append(found.get(label, []), ratio(total, actual, _scale(instance)))
    return found


def _highest(problem: Quadratics, algorithm: Algorithm, constants: Constants, B2: float) -> float:
    wide = np.sqrt(1 + B2 / (problem.M if algorithm == SSL else 1)) if constants == "tight" else 1 + B2
    return float(1 / (6 * problem.L * wide))


def _strongly_convex_settings(mu: float, L: float) -> Settings:
    least = ceil(6 * L / mu)
    pairs: list[tuple[int, float]] = []
    for R in (least, 2 * least, 5 * least):
        low, high = 1 / (mu * R), 1 / (6 * L)
        pairs += [(R, low), (R, high)] if least == R else [(R, low), (R, (low * high) ** 0.5), (R, high)]
    R, steps = np.array(pairs).T
    return Settings(R.astype(int), steps, np.full(len(steps), mu))


def _settings(highest: float) -> Settings:
    R, fraction = (grid.ravel() for grid in np.meshgrid([10, 100], [1.0, 0.3, 0.03]))
    return Settings(R, fraction * highest, np.zeros(len(R)))


def _joined(all_: Sequence[Settings]) -> Settings:
    R, eta_tilde, mu = (
        np.concatenate(column) for column in zip(*((s.R, s.eta_tilde, s.mu) for s in all_), strict=True)
    )
    return Settings(R, eta_tilde, mu)


def _exact(instance: Instance, problem: Quadratics, settings: Settings) -> Moments:
    shrink = 1 - settings.mu * settings.eta_tilde / 2
    return run_all(problem, instance.x0, settings.eta_tilde, instance.K, instance.S, int(settings.R.max()), shrink)


def _known(instance: Instance, problem: Quadratics, settings: Settings, **more: Any) -> Problem:
    z = instance.x0 - problem.x_star
    gap = float(z @ problem.H_bar @ z / 2)
    start = {"R": settings.R, "mu": settings.mu, "D2": float(z @ z), "A": gap}
    return constants_of(problem, instance.K, instance.S, **{**start, **more})


def _at(values: Array, algorithm: Algorithm, settings: Settings) -> Array:
    """The value of each setting after its own R rounds."""
    return np.asarray(values[settings.R, ORDER.index(algorithm), np.arange(len(settings.R))])


def _scale(instance: Instance) -> float:
    return float(((instance.x0 - instance.convex.x_star) ** 2).sum() * instance.convex.L)
