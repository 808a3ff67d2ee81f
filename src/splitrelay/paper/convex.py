"""The convex study: softmax regression on real data, through the same algorithm classes as everything else.

Each algorithm runs once for each seed, with all its rates in one array: the rates of the grid and, last, the rate that
its theorem chooses. SCAFFOLD has no theorem in the paper: it takes the step of FedAvg and has no bound.

`minimise` finds x* by Newton's method, each step solved by conjugate gradients. It does not use scipy, which only comes
with the `learn` extra: this study needs neither torch nor scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from splitrelay.algorithms import SSL, Algorithm, Averaged, FedAvg, MinibatchSGD, Scaffold, Step
from splitrelay.data import DataSet, draw_partition
from splitrelay.data.images import get_images
from splitrelay.engine import InProcess
from splitrelay.errors import WorkError
from splitrelay.objectives.softmax_regression import Softmax, feature_rows, mean_image
from splitrelay.paper.convex_records import AtTheory, Cell, Constants, Record, Rows, Side, Study, Tuned
from splitrelay.participation import Permutation
from splitrelay.theory import Problem
from splitrelay.theory.bounds import evaluate_bound
from splitrelay.theory.stepsizes import choose_step
from splitrelay.training import train

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-8
MOST_STEPS, MOST_PRODUCTS, MOST_HALVINGS = 100, 500, 40
ENOUGH = 1e-4  # Armijo: the share of the promised decrease that a step must bring
ROUNDING = 1e-14  # relative, of F: near the optimum no decrease can be seen any more


@dataclass(frozen=True, eq=False)
class Optimum:
    """x*, F(x*), and how near it is: ||grad F(x*)|| after so many steps."""

    x: Array
    F: float
    gradient_norm: float
    steps: int


def minimise(objective: Softmax, tolerance: float = TOLERANCE) -> Optimum:
    """The minimiser of F, to ||grad F|| <= tolerance; F is at least mu-convex, so ||x - x*|| <= tolerance/mu."""
    x = objective.x0
    for step in range(MOST_STEPS):
        gradient = objective.full_gradient(x)
        norm = float(np.linalg.norm(gradient))
        if norm <= tolerance:
            return Optimum(x, float(objective.F(x)), norm, step)
        towards = _conjugate_gradients(objective.curvature(x), -gradient, min(0.5, norm**0.5) * norm)
        x = x + _search_length(objective, x, gradient, towards) * towards
    raise WorkError("Newton's method did not reach the optimum", value=norm, limit=f"||grad F|| <= {tolerance:g}")


def _conjugate_gradients(product: Callable[[Array], Array], right: Array, enough: float) -> Array:
    """Return v with ||H v - right|| <= enough. H is positive definite, because mu > 0."""
    v, residual = np.zeros_like(right), right
    direction, square = residual, float((residual**2).sum())
    for _ in range(MOST_PRODUCTS):
        if square <= enough**2:
            break
        curved = product(direction)
        share = square / float((direction * curved).sum())
        v, residual = v + share * direction, residual - share * curved
        before, square = square, float((residual**2).sum())
        direction = residual + square / before * direction
    return v


def _search_length(objective: Softmax, x: Array, gradient: Array, towards: Array) -> float:
    """Return the first of 1, 1/2, 1/4, ... that lowers F by enough."""
    here, slope, length = float(objective.F(x)), float((gradient * towards).sum()), 1.0
    for _ in range(MOST_HALVINGS):
        if objective.F(x + length * towards) <= here + ENOUGH * length * slope + ROUNDING * abs(here):
            break
        length /= 2
    return length


CASE = "strongly-convex"
THEOREM = {"ssl": "ssl", "fedavg": "fedavg", "minibatch-sgd": "minibatch-sgd"}


def build_problem(study: Study, constants: Constants, sigma2: float) -> Problem:
    """Return the constants of the study as a Problem of the theory."""
    return Problem(
        L=constants.L,
        mu=constants.mu,
        sigma2=sigma2,
        zeta2_star=constants.zeta2_star,
        M=study.M,
        K=study.K,
        R=study.R,
        D2=constants.D2,
        A=constants.A,
    )


def choose_theory_step(algorithm: str, study: Study, constants: Constants) -> float:
    """Return the eta_tilde that minimises the proved bound, with the sigma2 that holds for every x.

    If R < 6 kappa, no step is in the range, and the result is 1/(6 L), the largest step of the proofs.
    """
    asked = build_problem(study, constants, constants.sigma2_everywhere)
    found = choose_step(THEOREM.get(algorithm, "fedavg"), CASE, asked, "best", "proved", "R", "mask")
    step = float(found.eta_tilde)
    return 1 / (6 * constants.L) if math.isnan(step) else step


def compute_bounds(
    algorithm: str, study: Study, constants: Constants, eta_tilde: float, rounds: Sequence[int], kind: str
) -> list[float | None]:
    """Return the bound on E F(x-bar) - F* after each number of rounds, with the measured sigma2, or None."""
    if algorithm not in THEOREM:
        return [None] * len(rounds)
    asked = replace(build_problem(study, constants, constants.sigma2_seen), R=np.maximum(rounds, 1))
    total = evaluate_bound(THEOREM[algorithm], CASE, asked, np.asarray(eta_tilde), kind, "R", "mask").total
    shown = np.where(np.asarray(rounds) > 0, total, np.nan)
    return [None if math.isnan(value) else float(value) for value in shown]


Make = Callable[[Step[Array], Study], Algorithm[Array, Any]]

ALGORITHMS: Mapping[str, Make] = {
    "ssl": lambda step, study: SSL(step, study.K),
    "fedavg": lambda step, study: FedAvg(step, study.K),
    "minibatch-sgd": lambda step, study: MinibatchSGD(step, study.K),
    "scaffold": lambda step, study: Scaffold(step, study.K, study.M),
}


@dataclass(frozen=True, eq=False)
class Path:
    """x^r and x-bar of one algorithm and seed after each measured round, of shape (points, d, classes, rates)."""

    x: Array
    x_bar: Array


def run_study(study: Study, data: DataSet) -> Record:
    """Run the whole study. `run_cells` yields it C by C."""
    return Record(study=study, rounds=study.rounds, cells=list(run_cells(study, data)))


def run_cells(study: Study, data: DataSet) -> Iterator[Cell]:
    """Return an iterator that runs one cell per C. Draw all partitions first, so that errors come early."""
    train = get_images(data.train, "this study")
    y, features = train.y, feature_rows(train.x, mean_image(train.x))
    partitions = [draw_partition("exdir", y, M=study.M, C=C, alpha=study.alpha, seed=study.seeds[0]) for C in study.Cs]
    objectives = [
        Softmax(features, y, one.indices, study.mu, len(data.train.classes), study.batch) for one in partitions
    ]
    return (_run_cell(C, study, objective, data) for C, objective in zip(study.Cs, objectives, strict=True))


def _run_cell(C: int, study: Study, objective: Softmax, data: DataSet) -> Cell:
    start = perf_counter()
    with threadpool_limits(1):  # the last bit of an eigenvalue depends on the number of threads
        constants, sides = _measure(study, objective, data)
    sizes = [len(held) for held in objective.holdings]
    return Cell(C=C, sizes=sizes, constants=constants, sides=sides, seconds=perf_counter() - start)


def _measure(study: Study, objective: Softmax, data: DataSet) -> tuple[Constants, list[Side]]:
    """Measure the constants, then run. sigma2 is the largest of both, so the bounds are computed last."""
    optimum = minimise(objective)
    constants = measure_constants(objective, optimum, data)
    sides = [_build_side(name, study, objective, optimum, constants) for name in ALGORITHMS]
    seen = max(constants.sigma2_seen, *(noise for _, noise in sides))
    constants = constants.model_copy(update={"sigma2_seen": seen})
    return constants, [_add_bounds(side, study, constants) for side, _ in sides]


def measure_constants(objective: Softmax, optimum: Optimum, data: DataSet) -> Constants:
    """Measure the constants before any run. sigma2_seen covers only the start and the optimum so far."""
    x0, noise = objective.x0, objective.noise(optimum.x)
    train, test = (get_images(part, "this study") for part in (data.train, data.test))
    guessed = (feature_rows(test.x, mean_image(train.x)) @ optimum.x).argmax(axis=1)
    return Constants(
        L=objective.L,
        mu=objective.mu,
        zeta2_star=objective.zeta2(optimum.x),
        sigma2_star=float(noise.mean()),
        sigma2_seen=float(max(noise.max(), objective.noise(x0).max())),
        sigma2_everywhere=objective.sigma2_everywhere,
        D2=float(((x0 - optimum.x) ** 2).sum()),
        A=float(objective.F(x0)) - optimum.F,
        F_star=optimum.F,
        gradient_norm=optimum.gradient_norm,
        accuracy=float((guessed == test.y).mean()),
    )


def _build_side(
    name: str, study: Study, objective: Softmax, optimum: Optimum, constants: Constants
) -> tuple[Side, float]:
    """Return one algorithm without its bounds, and its largest noise at the rates shown."""
    per_eta = {"ssl": study.M * study.K, "minibatch-sgd": 1}.get(name, study.K)
    eta_tilde = choose_theory_step(name, study, constants)
    rates = np.array([*study.etas, eta_tilde / per_eta])
    decay = np.append(np.zeros(len(study.etas)), study.mu * eta_tilde / 2)  # w_r of the theorem; w_r = 1 for the grid
    paths = [_run_path(name, study, objective, rates, decay, seed) for seed in study.seeds]
    gap = np.array([[objective.F(x) - optimum.F for x in path.x] for path in paths])  # (seeds, points, rates)
    tuned = _choose_rate(study.etas, gap[:, :, :-1])
    best = study.etas.index(tuned.eta)
    gap_bar = [[float(objective.F(x) - optimum.F) for x in path.x_bar[..., -1]] for path in paths]
    theory = AtTheory(
        eta=rates[-1],
        eta_tilde=eta_tilde,
        gap=_to_rows(gap[:, :, -1]),
        gap_bar=gap_bar,
        applies=False,
        proved=[],
        tight=[],
    )
    seen = max(float(objective.noise(x[..., j]).max()) for path in paths for x in path.x for j in (best, -1))
    return Side(algorithm=name, per_eta=per_eta, tuned=tuned, theory=theory), seen


def _run_path(name: str, study: Study, objective: Softmax, rates: Array, decay: Array, seed: int) -> Path:
    """Run all rates side by side. A rate that is too large diverges."""
    x0 = np.repeat(objective.x0[..., np.newaxis], len(rates), axis=-1)
    eta, shrinking = (np.broadcast_to(values, x0.shape).copy() for values in (rates, decay))  # of x's shape: faster
    algorithm = Averaged(ALGORITHMS[name](Step(eta), study), shrinking)
    order, clients, measured = Permutation(study.M, seed), InProcess(objective, seed), set(study.rounds)
    with np.errstate(over="ignore", invalid="ignore"):
        states = train(algorithm, x0, order, clients, R=study.R)
        points = [(algorithm.algorithm.model(state.inner), state.x_bar) for r, state in states if r in measured]
    return Path(np.stack([x for x, _ in points]), np.stack([x_bar for _, x_bar in points]))


def _choose_rate(etas: Sequence[float], gap: Array) -> Tuned:
    """Return the rate with the smallest final gap. `gap` has the shape (seeds, points, rates)."""
    ends = gap[:, -1].mean(axis=0)
    finals = np.where(np.isfinite(ends), ends, np.inf)
    best = int(np.argmin(finals))
    on_edge = len(etas) > 1 and etas[best] in (min(etas), max(etas))
    shown = [float(end) if np.isfinite(end) else None for end in finals]
    return Tuned(eta=etas[best], on_edge=on_edge, gap=_to_rows(gap[:, :, best]), finals=shown)


def _add_bounds(side: Side, study: Study, constants: Constants) -> Side:
    """Return the side with its theorem's bounds after each measured round, with both sets of constants."""
    kinds = ("proved", "tight")
    step, name = side.theory.eta_tilde, side.algorithm
    bounds = {kind: compute_bounds(name, study, constants, step, study.rounds, kind) for kind in kinds}
    applies = bounds["proved"][-1] is not None
    return side.model_copy(update={"theory": side.theory.model_copy(update={**bounds, "applies": applies})})


def _to_rows(values: Array) -> Rows:
    rows: Rows = values.tolist()
    return rows
