"""Run all checks: compare the theory with exact expectations over the orders or samples of clients and the noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.objectives.exact_moments import Moments
from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.paper.theory_check.exact_runs import (
    ALGORITHMS,
    FEDAVG,
    LABEL,
    PAPER,
    PARTIAL,
    SSL,
    Ratios,
    build_problem,
    compute_ratio,
    run_exactly,
    take_clients,
)
from splitrelay.paper.theory_check.random_problems import Instance, draw_instance
from splitrelay.paper.theory_check.round_lemmas import (
    E7,
    check_convex_rounds,
    check_counterexample,
    check_nonconvex_rounds,
)
from splitrelay.paper.theory_check.smooth_problems import check_hard_instance, check_nonquadratic
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
    """Rounds, steps, and the mu of the averaging weights, with one entry per check."""

    R: Array
    eta_tilde: Array
    mu: Array


def check_theorems(instance: Instance) -> Ratios:
    """Compute bound / actual of every statement on complete runs."""
    ratios: dict[str, Array] = {}
    convex = instance.convex
    for name, mu in (("mean", convex.mu_mean), ("least", convex.mu_min)):
        if mu > 0:
            ratios |= check_strongly_convex(instance, name, min(mu, convex.L))
    ratios |= check_general_convex(instance) | check_sharp(instance)
    for problem in (convex, instance.indefinite):
        for statement, values in check_non_convex(instance, problem).items():
            ratios[statement] = np.append(ratios.get(statement, []), values)
    return ratios


def check_strongly_convex(instance: Instance, name: str, mu: float) -> dict[str, Array]:
    """Check R from 6 kappa on, at both ends and in the middle of the range of steps. The proofs bound psi."""
    problem, settings = instance.convex, _build_strongly_convex_settings(mu, instance.convex.L)
    exact = _run(instance, problem, settings)
    known = _build_problem(instance, problem, settings)
    step = settings.eta_tilde

    def compare(algorithm: Algorithm, actual: Array, **choice: Any) -> Array:
        statement: Any = {"eta_tilde": step, "constants": "proved", **choice}
        total = bound(algorithm, "strongly-convex", take_clients(algorithm, known), **statement).total
        return compute_ratio(total, _select(actual, algorithm, settings), _compute_scale(instance))

    ratios = {f"Theorem 1, strongly convex, mu = {name} mu_m": compare(SSL, exact.psi)}
    if name == "mean":
        return ratios
    ratios["Theorem 1, strongly convex, F(xbar)"] = compare(SSL, exact.Fbar)
    ratios["Theorem 1, strongly convex, tight, R+1"] = compare(SSL, exact.psi, constants="tight", horizon="R+1")
    ratios["Theorem 2, strongly convex"] = compare(FEDAVG, exact.psi)
    for algorithm in PARTIAL:
        for constants in ("printed", "proved") if instance.S == 1 else ("printed", "proved", "tight"):
            ratios[f"{LABEL[algorithm]}, strongly convex, {constants}"] = compare(
                algorithm, exact.psi, constants=constants
            )
    return ratios


def check_general_convex(instance: Instance) -> dict[str, Array]:
    """Check the mean of F(x^r) and the last iterate for short and long runs, and large and small steps."""
    problem, settings = instance.convex, _build_settings(1 / (6 * instance.convex.L))
    exact, step = _run(instance, problem, settings), settings.eta_tilde
    known, ratios = _build_problem(instance, problem, settings), {}
    for algorithm, constants, label in GENERAL_CONVEX:
        one = take_clients(algorithm, known)
        total = bound(algorithm, "general-convex", one, eta_tilde=step, constants=constants).total
        ratios[label] = compute_ratio(total, _select(exact.psi, algorithm, settings), _compute_scale(instance))
    known = _build_problem(instance, problem, settings, mu=min(problem.mu_mean, problem.L))
    for algorithm in PAPER:
        total = last_iterate(algorithm, take_clients(algorithm, known), eta_tilde=step).total
        ratios[f"last iterate, {LABEL[algorithm]}"] = compute_ratio(
            total, _select(exact.r2, algorithm, settings), _compute_scale(instance)
        )
    return ratios


def check_sharp(instance: Instance) -> dict[str, Array]:
    """Check the sharp bounds from the first round on, and partial participation that meets Theorem 2."""
    problem, ratios = instance.convex, {}
    mu = min(max(problem.mu_mean, 0.0), problem.L)
    for case, value in (("strongly-convex", mu), ("general-convex", 0.0)):
        settings = _build_settings(1 / (6 * problem.L), (1, 5, 60), value)
        exact, known = _run(instance, problem, settings), _build_problem(instance, problem, settings)
        for algorithm in ALGORITHMS:
            one: Any = take_clients(algorithm, known)
            total = bound(algorithm, case, one, eta_tilde=settings.eta_tilde, constants="sharp").total  # type: ignore[arg-type]
            actual = _select(exact.psi, algorithm, settings)
            label = f"sharp, {case.replace('-', ' ')}, {LABEL[algorithm]}"
            ratios[label] = compute_ratio(total, actual, _compute_scale(instance))
    return ratios


def check_non_convex(instance: Instance, problem: Quadratics) -> dict[str, Array]:
    """Check two pairs (B2, zeta2) of the problem. The mean of ||grad F(x^r)||^2 is above its minimum."""
    pairs = [(B2, problem.zeta2(B2)) for B2 in (1.1 * problem.B2_min + 0.05, 2 * problem.B2_min + 0.5)]
    checks = [
        (row, pair, _build_settings(_compute_step_limit(problem, *row[:2], pair[0])))
        for row in NON_CONVEX
        for pair in pairs
    ]
    exact = _run(instance, problem, _concatenate_settings([settings for _, _, settings in checks])).G2
    mean = np.cumsum(exact, axis=0) / (np.arange(len(exact)) + 1.0)[:, None, None]
    ratios: dict[str, Array] = {}
    for at, ((algorithm, constants, label), (B2, zeta2), settings) in enumerate(checks):
        known = _build_problem(instance, problem, settings, B2=B2, zeta2=zeta2)
        step, size = settings.eta_tilde, len(settings.R)
        one = take_clients(algorithm, known)
        total = bound(algorithm, "non-convex", one, eta_tilde=step, constants=constants).total
        actual = _select(mean[..., at * size : (at + 1) * size], algorithm, settings)
        ratios[label] = np.append(ratios.get(label, []), compute_ratio(total, actual, _compute_scale(instance)))
    return ratios


def _compute_step_limit(problem: Quadratics, algorithm: Algorithm, constants: Constants, B2: float) -> float:
    wide = np.sqrt(1 + B2 / (problem.M if algorithm == SSL else 1)) if constants == "tight" else 1 + B2
    return float(1 / (6 * problem.L * wide))


def _build_strongly_convex_settings(mu: float, L: float) -> Settings:
    least = ceil(6 * L / mu)
    pairs: list[tuple[int, float]] = []
    for R in (least, 2 * least, 5 * least):
        low, high = 1 / (mu * R), 1 / (6 * L)
        pairs += [(R, low), (R, high)] if least == R else [(R, low), (R, (low * high) ** 0.5), (R, high)]
    R, steps = np.array(pairs).T
    return Settings(R.astype(int), steps, np.full(len(steps), mu))


def _build_settings(highest: float, rounds: Sequence[int] = (10, 100), mu: float = 0.0) -> Settings:
    R, fraction = (grid.ravel() for grid in np.meshgrid(rounds, [1.0, 0.3, 0.03]))
    return Settings(R, fraction * highest, np.full(len(R), mu))


def _concatenate_settings(parts: Sequence[Settings]) -> Settings:
    R, eta_tilde, mu = (
        np.concatenate(column) for column in zip(*((s.R, s.eta_tilde, s.mu) for s in parts), strict=True)
    )
    return Settings(R, eta_tilde, mu)


def _run(instance: Instance, problem: Quadratics, settings: Settings) -> Moments:
    shrink = 1 - settings.mu * settings.eta_tilde / 2
    return run_exactly(problem, instance.x0, settings.eta_tilde, instance.K, instance.S, int(settings.R.max()), shrink)


def _build_problem(instance: Instance, problem: Quadratics, settings: Settings, **more: Any) -> Problem:
    z = instance.x0 - problem.x_star
    gap = float(z @ problem.H_bar @ z / 2)
    start = {"R": settings.R, "mu": settings.mu, "D2": float(z @ z), "A": gap}
    return build_problem(problem, instance.K, instance.S, **{**start, **more})


def _select(values: Array, algorithm: Algorithm, settings: Settings) -> Array:
    """Return the value of each setting after its own R rounds."""
    return np.asarray(values[settings.R, ALGORITHMS.index(algorithm), np.arange(len(settings.R))])


def _compute_scale(instance: Instance) -> float:
    return float(((instance.x0 - instance.convex.x_star) ** 2).sum() * instance.convex.L)


ROUNDING = 1e-9  # a ratio this close below 1 is a rounding error


@dataclass(frozen=True)
class Row:
    """The number of checks and violations of a statement, and its smallest and median ratio bound / actual."""

    statement: str
    checks: int
    violations: int
    smallest: float
    median: float

    @property
    def is_known_false(self) -> bool:
        """Whether this is the printed formula that is known to be false (E7)."""
        return self.statement.startswith(E7)

    @property
    def is_as_expected(self) -> bool:
        """Whether a true statement never failed, or the false one did."""
        return (self.violations > 0) == self.is_known_false


def run_checks(instances: int = 200, seed: int = 0) -> Iterator[Ratios]:
    """Yield bound / actual by statement for one instance after the other. `summarize` collects them."""
    if instances < 1:
        raise OutOfRange("the number of instances", value=instances, limit="instances >= 1")
    for number in range(instances):
        instance = draw_instance(seed, number)
        parts = [check_theorems(instance), check_convex_rounds(instance), check_nonconvex_rounds(instance)]
        parts.append(check_nonquadratic(seed, number))
        if number == 0:
            parts += [check_hard_instance(), check_counterexample()]
        yield _concatenate(parts)


def summarize(parts: Iterable[Ratios]) -> tuple[Row, ...]:
    """Return one row per statement, in the order in which the statements first appear."""
    return tuple(_build_row(statement, ratios) for statement, ratios in _concatenate(parts).items())


def _concatenate(parts: Iterable[Ratios]) -> dict[str, Array]:
    ratios: dict[str, list[Array]] = {}
    for part in parts:
        for statement, values in part.items():
            ratios.setdefault(statement, []).append(np.ravel(values))
    return {statement: np.concatenate(values) for statement, values in ratios.items()}


def _build_row(statement: str, ratios: Array) -> Row:
    violations = int((~(ratios >= 1 - ROUNDING)).sum())  # NaN counts as a violation
    return Row(statement, ratios.size, violations, float(ratios.min()), float(np.median(ratios)))
