"""Contract tests for algorithms. Our own tests apply them to all built-in algorithms; users can test theirs.

Example:
    >>> from fractions import Fraction as Q
    >>> from splitrelay.algorithms import SSL
    >>> golden = Golden(
    ...     h=(1, 1), a=(1, -1), eta=Q(1, 2), K=2, x0=Q(2), orders=[(0, 1)], models=[Q(11, 16)]
    ... )
    >>> check_algorithm(lambda settings: SSL(settings.step, settings.K), [golden])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from splitrelay.algorithms.base import Algorithm, AlgorithmFactory, AlgorithmSettings, Step
from splitrelay.algorithms.golden import Golden, Pair, PairCut
from splitrelay.engine import Flaky, InProcess, VisitRecorder
from splitrelay.errors import ContractBroken
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Permutation
from splitrelay.training import resume, train

__all__ = ["AlgorithmSettings", "ArrayCut", "Golden", "Pair", "PairCut", "PairQuadratics", "check_algorithm"]


@dataclass(frozen=True)
class ArrayCut:
    """The cut of a numpy array at an index."""

    boundary: int

    def halves(self, x: Any, /) -> tuple[Any, Any]:
        return x[: self.boundary], x[self.boundary :]

    def join(self, bottom: Any, top: Any, /) -> Any:
        return np.concatenate([bottom, top])


@dataclass(frozen=True)
class PairQuadratics(ScalarQuadratics):
    """F_m = h_m (bottom^2 + top^2)/2 + a_m bottom + 2 a_m top."""

    def gradient(self, m: int, x: Any, xi: Any = None) -> Any:
        return Pair(self.h[m] * x.bottom + self.a[m], self.h[m] * x.top + 2 * self.a[m])


def check_algorithm(make: AlgorithmFactory, goldens: Iterable[Golden]) -> None:
    """Raise ContractBroken if an algorithm violates its contract.

    The algorithm must reproduce its golden runs, must be pure and resumable, and must handle skipped clients.

    Args:
        make: Builds the algorithm from settings.
        goldens: At least one run calculated by hand. It must differ from the same run of every other algorithm.
    """
    cases = list(goldens)
    if not cases:
        raise ContractBroken("the algorithm has no golden run, so it cannot be distinguished from FedAvg")
    for golden in cases:
        check_golden(make, golden)
    algorithm = make(AlgorithmSettings(Step(eta=0.05), K=3, M=4, cut=ArrayCut(1), G=2))
    for check in (check_pure, check_resumable, check_visits, check_skipping):
        check(algorithm)


def check_golden(make: AlgorithmFactory, golden: Golden) -> None:
    """Check that the models of the run are exactly those calculated by hand."""
    algorithm = make(golden.settings())
    kind = PairQuadratics if isinstance(golden.x0, Pair) else ScalarQuadratics
    clients: InProcess[Any] = InProcess(kind(golden.h, golden.a))
    state = algorithm.init(golden.x0)
    for r, (order, expected) in enumerate(zip(golden.orders, golden.models, strict=True)):
        state = algorithm.round(r, state, order, clients)
        if algorithm.model(state) != expected:
            raise ContractBroken(f"round {r} of the golden run must end at {expected}", value=algorithm.model(state))


def check_pure(algorithm: Algorithm[Any, Any]) -> None:
    """Check that a round does not change its arguments, and that the same round gives the same result again."""
    state = algorithm.init(_start())
    for r in range(3):  # after three rounds, state beyond x is no longer zero
        before = _digest(state)
        first = algorithm.round(r, state, (2, 0, 1), _clients())
        second = algorithm.round(r, state, (2, 0, 1), _clients())
        if _digest(state) != before:
            raise ContractBroken("a round changed the state that it was given", value=r)
        if _digest(first) != _digest(second):
            raise ContractBroken("the same round gave two different results", value=r)
        state = first


def check_resumable(algorithm: Algorithm[Any, Any]) -> None:
    """Check that a run resumed from any round ends with the same bits as the uninterrupted run."""
    order, R = Permutation(4, seed=7), 5
    states = dict(train(algorithm, _start(), order, _clients(), R=R))
    for r, state in states.items():
        *_, (_, last) = resume(algorithm, r, state, order, _clients(), R=R)
        if _digest(last) != _digest(states[R]):
            raise ContractBroken("a resumed run ends at a different state; it was resumed from round", value=r)


def check_visits(algorithm: Algorithm[Any, Any]) -> None:
    """Check that a round visits only the clients of its order, and each (r, i, m) at most once."""
    metered = VisitRecorder(_clients())
    algorithm.round(5, algorithm.init(_start()), (3, 1, 3), metered)
    names = [(r, i, m) for r, i, m, _ in metered.visits]
    if {m for _, _, m in names} != {1, 3} or {r for r, _, _ in names} != {5}:
        raise ContractBroken("a round must visit the clients of its order with its own number", value=names)
    if len(set(names)) != len(names):
        raise ContractBroken("two visits have the same name and would draw the same batches", value=names)


def check_skipping(algorithm: Algorithm[Any, Any]) -> None:
    """Check that the model does not change if all clients are skipped."""
    state = algorithm.init(_start())
    after = algorithm.round(0, state, (0, 1, 2, 3), Flaky(_clients(), lambda visit: True))
    if _digest(algorithm.model(after)) != _digest(algorithm.model(state)):
        raise ContractBroken("the model changed although all clients were skipped", value=algorithm.model(after))


def _start() -> Any:
    return np.array([3.0, -1.0])


def _clients() -> InProcess[Any]:
    h = np.array([[1.0, 0.5], [2.0, 0.0], [0.5, 1.5], [0.0, 1.0]])
    a = np.array([[1.0, -3.0], [-1.0, 2.0], [0.25, 0.5], [-2.0, 1.0]])
    return InProcess(ScalarQuadratics(h, a, sigma2=0.1), seed=3)


def _digest(state: Any) -> str:
    """Return every bit of the state as text."""
    with np.printoptions(floatmode="unique", threshold=10**9):
        return repr(state)
