"""The paper's simulations on quadratics: every group, rate and seed through the same algorithm classes.

All seeds run in one array: each slice of x visits the clients in the order of its own seed, with the same bits as if it
ran alone. `exact` computes the exact value of each simulated result: the point of FedAvg, and the distribution of SSL
over all orders; with noise, their root mean squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms import SSL, Done, FedAvg, Outcome, Step, Visit
from splitrelay.engine import InProcess, take_local_steps
from splitrelay.objectives.exact_distributions import MOST_CLIENTS as MOST_CLIENTS_OF_LAW
from splitrelay.objectives.exact_distributions import fedavg_point, ssl_law
from splitrelay.objectives.exact_moments import MOST_CLIENTS, Round, fedavg_round, ssl_round, trajectory
from splitrelay.objectives.quadratic import Quadratics, ScalarQuadratics
from splitrelay.objectives.quadratic_groups import Group
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.training import train

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SeedsBeside:
    """The clients of scalar quadratics, for x of shape (seeds, ...).

    To the algorithm every order is 0, ..., M - 1; the j-th visit of round r goes, for each seed, to the client that
    stands j-th in that seed's own order: orders[r, j], one for each seed.
    """

    objective: ScalarQuadratics
    seeds: Sequence[int]
    orders: npt.NDArray[np.intp]  # of shape (R, M, seeds)

    def order(self, r: int) -> range:
        """All places of the order, in their order."""
        return range(self.objective.M)

    def run(self, visit: Visit[Array], /) -> Outcome[Array]:
        """K local steps of every seed's own client."""
        ms = self.orders[visit.r, visit.m]
        h, a = np.asarray(self.objective.h)[ms], np.asarray(self.objective.a)[ms]

        def gradient(_: int, x: Array, xi: Array | None) -> Array:
            exact: Array = h * x + a
            return exact if xi is None else exact + xi

        return Done(take_local_steps(visit, self._noises(visit, ms), gradient))

    def run_all(self, visits: Iterable[Visit[Array]], /) -> Iterator[Outcome[Array]]:
        """One after another."""
        return map(self.run, visits)

    def _noises(self, visit: Visit[Array], ms: npt.NDArray[np.intp]) -> Sequence[Any]:
        """K samples xi, each seed's own, by the name that a single run would give them."""
        if self.objective.sigma2 == 0:
            return [None] * visit.K
        names = [partial(rng, seed, Purpose.BATCHES, visit.r, int(m)) for seed, m in zip(self.seeds, ms, strict=True)]
        drawn = [
            self.objective.draw(int(m), visit.K, partial(name, visit.i)) for name, m in zip(names, ms, strict=True)
        ]
        return list(np.array(drawn, dtype=float).T.reshape(visit.K, -1, *[1] * (visit.x.ndim - 1)))


@dataclass(frozen=True)
class Exact:
    """Of the last error at the best rates. Noise or more dimensions leave only the two RMS; many clients nothing."""

    fedavg_rms: float | None = None
    ssl_rms: float | None = None
    fedavg_fixed_point: float | None = None
    fedavg_log10_error: float | None = None
    ssl_mean: float | None = None
    ssl_mean_absolute: float | None = None
    ssl_smallest: float | None = None
    ssl_largest: float | None = None


def exact(row: Row) -> Exact:
    """All that is known exactly about one group."""
    problem = row.group.problem
    if problem.M > MOST_CLIENTS:
        return Exact()
    if problem.d > 1 or problem.sigma2 > 0 or problem.M > MOST_CLIENTS_OF_LAW:
        fedavg = _rms(row, fedavg_round(problem, row.fedavg.eta, row.study.K))
        return Exact(fedavg, _rms(row, ssl_round(problem, row.ssl.eta, row.study.K)))
    return _law(row)


def _rms(row: Row, round_: Round) -> float:
    """The root of E ||x^R - x*||^2 over all orders and the noise."""
    problem = row.group.problem
    moments = trajectory(problem, round_, np.full(problem.d, row.study.x0), row.study.R)
    return math.sqrt(float(moments.r2[-1]))


def _law(row: Row) -> Exact:
    clients, study = ScalarQuadratics.beside([row.group.problem]), row.study
    point = fedavg_point(clients, row.fedavg.eta, study.K, study.R, study.x0)
    law = ssl_law(clients, row.ssl.eta, study.K, study.R, study.x0)
    values = (
        *(point.error, law.rms, point.fixed_point, point.log10_error),
        *(law.mean, law.mean_absolute, law.smallest, law.largest),
    )
    return Exact(*(float(value.item()) for value in values))


PAPER_GRID = (0.003, 0.006, 0.01, 0.03, 0.06, 0.1, 0.3, 0.6)
AUTHORS_GRID = (0.001, *PAPER_GRID, 1.0)
PAPER_SEEDS = (1, 12, 123, 1234, 12345)
ALGORITHMS = {"fedavg": FedAvg[Any], "ssl": SSL[Any]}


@dataclass(frozen=True)
class Study:
    """What to run: each algorithm on each group, at each rate, with each seed."""

    groups: Sequence[Group]
    K: int = 10
    R: int = 500
    etas: Sequence[float] = PAPER_GRID
    seeds: Sequence[int] = PAPER_SEEDS
    x0: float = 10.0


@dataclass(frozen=True, eq=False)
class Curves:
    """|x^r - x*| of one algorithm on one group, of shape (seeds, etas, R + 1), and the rate that ends lowest."""

    etas: Sequence[float]
    errors: Array

    @property
    def final(self) -> Array:
        """The mean over seeds of the last error, one for each rate; inf where a run diverged."""
        last = np.asarray(self.errors[:, :, -1].mean(axis=0))
        return np.where(np.isnan(last), np.inf, last)

    @property
    def best(self) -> int:
        """Index of the rate with the smallest final error; of several, the smallest rate."""
        order = np.argsort(self.etas, kind="stable")
        return int(order[np.argmin(self.final[order])])

    @property
    def eta(self) -> float:
        """The best rate."""
        return self.etas[self.best]

    @property
    def error(self) -> float:
        """The mean over seeds of the final error at the best rate."""
        return float(self.final[self.best])

    @property
    def tied(self) -> bool:
        """Whether other rates end at the very same error."""
        return bool((self.final == self.error).sum() > 1)

    @property
    def on_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest of the grid: the grid decided, not the optimum."""
        return len(self.etas) > 1 and self.eta in (min(self.etas), max(self.etas))


@dataclass(frozen=True, eq=False)
class Row:
    """One group of a study: both algorithms, and who ends nearer to the optimum at its own best rate."""

    study: Study
    group: Group
    fedavg: Curves
    ssl: Curves

    @property
    def winner(self) -> str:
        """The algorithm with the smaller error; "tie" only where both are equal."""
        if self.ssl.error == self.fedavg.error:
            return "tie"
        return "ssl" if self.ssl.error < self.fedavg.error else "fedavg"


def simulate(study: Study) -> list[Row]:
    """All curves of the study. Groups of one shape run side by side in one array."""
    rows: list[Row] = []
    for _, bundle in groupby(study.groups, key=_shape):
        groups = list(bundle)
        errors = {name: _errors(study, groups, algorithm) for name, algorithm in ALGORITHMS.items()}
        for g, group in enumerate(groups):
            curves = {name: Curves(study.etas, error[:, g]) for name, error in errors.items()}
            rows.append(Row(study, group, **curves))
    return rows


def _shape(group: Group) -> tuple[int, int, float, str]:
    problem = group.problem
    return problem.M, problem.d, problem.sigma2, "" if problem.d == 1 else group.name


def _errors(study: Study, groups: Sequence[Group], algorithm: Any) -> Array:
    """|x^r - x*| of shape (seeds, groups, etas, R + 1)."""
    with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too large diverges, and is shown to
        if groups[0].problem.d == 1:
            return _side_by_side(study, groups, algorithm)
        return np.stack([_one_seed(study, groups[0].problem, algorithm, seed) for seed in study.seeds])


def _side_by_side(study: Study, groups: Sequence[Group], algorithm: Any) -> Array:
    """Groups, rates and seeds in one array, of shape (seeds, groups, etas): one step serves them all."""
    objective = ScalarQuadratics.beside([group.problem for group in groups])
    shape = (len(study.seeds), len(groups), len(study.etas))
    h, a = (np.broadcast_to(np.asarray(v), (objective.M, *shape[1:])) for v in (objective.h, objective.a))
    orders = np.array([_orders(objective.M, seed, study.R) for seed in study.seeds])
    clients = SeedsBeside(replace(objective, h=h, a=a), study.seeds, np.moveaxis(orders, 0, -1))
    step: Step[Array] = Step(np.broadcast_to(np.array(study.etas), shape).copy())  # of x's shape steps go faster
    states = train(algorithm(step, study.K), np.full(shape, study.x0), clients.order, clients, R=study.R)
    x_star = objective.x_star
    return np.stack([np.abs(x - x_star) for _, x in states], axis=-1)


def _one_seed(study: Study, problem: Quadratics, algorithm: Any, seed: int) -> Array:
    """One group in d dimensions, x of shape (etas, d): the errors, of shape (1, etas, R + 1)."""
    order, clients = _orders(problem.M, seed, study.R), InProcess(problem, seed)
    step: Step[Array] = Step(np.array(study.etas)[:, np.newaxis])
    x0 = np.full((len(study.etas), problem.d), study.x0)
    states = train(algorithm(step, study.K), x0, order.__getitem__, clients, R=study.R)
    return np.stack([np.linalg.norm(x - problem.x_star, axis=-1) for _, x in states], axis=-1)[np.newaxis]


@lru_cache(maxsize=16)
def _orders(M: int, seed: int, R: int) -> list[list[int]]:
    """The orders of all rounds: both algorithms and every K see the same."""
    order = Permutation(M, seed)
    return [order(r) for r in range(R)]
