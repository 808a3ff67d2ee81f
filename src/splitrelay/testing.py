"""Contracts that anyone's algorithm can be held to. They run over our own registry, and over yours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from splitrelay.algorithms.base import Algorithm, Cut, LocalSteps, Step
from splitrelay.algorithms.fedavg import Sizes
from splitrelay.engine import Flaky, InProcess, Metered
from splitrelay.errors import ContractBroken
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Order, Permutation
from splitrelay.training import resume, train
from splitrelay.vectors import Scalar


@dataclass(frozen=True)
class Ingredients:
    """All that an algorithm may be made of; each takes what it needs."""

    step: Step[Any]
    K: LocalSteps
    M: int
    gamma: Scalar = 1
    sizes: Sizes | None = None
    G: int = 1
    cut: Cut[Any] = field(default_factory=lambda: ArrayCut(1))


Make = Callable[[Ingredients], Algorithm[Any, Any]]


@dataclass(frozen=True)
class Pair:
    """x = [bottom; top] with one number in each half: the smallest model that can be cut."""

    bottom: Any
    top: Any

    def __add__(self, other: Pair, /) -> Pair:
        return Pair(self.bottom + other.bottom, self.top + other.top)

    def __sub__(self, other: Pair, /) -> Pair:
        return Pair(self.bottom - other.bottom, self.top - other.top)

    def __rmul__(self, scalar: Any, /) -> Pair:
        return Pair(scalar * self.bottom, scalar * self.top)

    def __truediv__(self, n: Any, /) -> Pair:
        return Pair(self.bottom / n, self.top / n)


class PairCut:
    """The cut of a Pair; a half by itself is a Pair whose other half is nothing."""

    def halves(self, x: Pair, /) -> tuple[Pair, Pair]:
        return Pair(x.bottom, 0), Pair(0, x.top)

    def join(self, bottom: Pair, top: Pair, /) -> Pair:
        return Pair(bottom.bottom, top.top)


@dataclass(frozen=True)
class ArrayCut:
    """The cut of a plain array, at an index."""

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


@dataclass(frozen=True)
class Golden:
    """A run worked by hand on Fractions: F_m = h_m x^2/2 + a_m x; `models` are x^1, x^2, ... after each round.

    Where x0 is a Pair, the clients are PairQuadratics and the algorithm is handed their cut.
    """

    h: Sequence[Fraction | int]
    a: Sequence[Fraction | int]
    eta: Fraction
    K: LocalSteps
    x0: Fraction | Pair
    orders: Sequence[Sequence[int]]
    models: Sequence[Fraction | Pair]
    gamma: Fraction = Fraction(1)
    sizes: Sequence[int] | None = None
    G: int = 1

    def ingredients(self) -> Ingredients:
        """What the algorithm is made of here."""
        return Ingredients(Step(self.eta), self.K, len(self.h), self.gamma, self.sizes, self.G, PairCut())


def check_algorithm(make: Make, goldens: Iterable[Golden]) -> None:
    """Raise ContractBroken unless it is *this* algorithm, pure, resumable, and sound when clients fail."""
    cases = list(goldens)
    if not cases:
        _broken("comes without a golden run: nothing would tell it from FedAvg")
    for golden in cases:
        check_golden(make, golden)
    algorithm = make(Ingredients(Step(eta=0.05), K=3, M=4, G=2))
    for check in (check_pure, check_resumable, check_visits, check_skipping):
        check(algorithm)


def check_golden(make: Make, golden: Golden) -> None:
    """Every model of the hand-worked run, exactly."""
    algorithm = make(golden.ingredients())
    kind = PairQuadratics if isinstance(golden.x0, Pair) else ScalarQuadratics
    clients: InProcess[Any] = InProcess(kind(golden.h, golden.a))
    state = algorithm.init(golden.x0)
    for r, (order, expected) in enumerate(zip(golden.orders, golden.models, strict=True)):
        state = algorithm.round(r, state, order, clients)
        if algorithm.model(state) != expected:
            _broken(f"round {r} of the golden run must end at {expected}", algorithm.model(state))


def check_pure(algorithm: Algorithm[Any, Any]) -> None:
    """A round changes nothing it was given, and asked again it answers the same."""
    state = algorithm.init(_start())
    for r in range(3):  # three rounds, so that state beyond x has come to life
        before = _digest(state)
        once = algorithm.round(r, state, (2, 0, 1), _clients())
        again = algorithm.round(r, state, (2, 0, 1), _clients())
        if _digest(state) != before:
            _broken("a round changed the state that it was given", r)
        if _digest(once) != _digest(again):
            _broken("the same round, run twice, gave two answers", r)
        state = once


def check_resumable(algorithm: Algorithm[Any, Any]) -> None:
    """Resumed from any round's state, it ends where the uninterrupted run ends, to the bit."""
    order, R = Permutation(4, seed=7), 5
    states = dict(train(algorithm, _start(), order, _clients(), R=R))
    for r, state in states.items():
        last = _last(algorithm, r, state, order, R)
        if _digest(last) != _digest(states[R]):
            _broken("resuming does not end where the whole run ends; resumed from round", r)


def check_visits(algorithm: Algorithm[Any, Any]) -> None:
    """Only the clients of the order are visited, each as (r, i, m) no more than once."""
    metered = Metered(_clients())
    algorithm.round(5, algorithm.init(_start()), (3, 1, 3), metered)
    names = [(r, i, m) for r, i, m, _ in metered.visits]
    if {m for _, _, m in names} != {1, 3} or {r for r, _, _ in names} != {5}:
        _broken("a round must visit the clients of its order, under its own number", names)
    if len(set(names)) != len(names):
        _broken("two visits share a name, and would draw the same batches", names)


def check_skipping(algorithm: Algorithm[Any, Any]) -> None:
    """With every client away, the model stays where it is."""
    state = algorithm.init(_start())
    after = algorithm.round(0, state, (0, 1, 2, 3), Flaky(_clients(), lambda visit: True))
    if _digest(algorithm.model(after)) != _digest(algorithm.model(state)):
        _broken("with every client away the model must stay; it moved to", algorithm.model(after))


def _last(algorithm: Algorithm[Any, Any], r: int, state: Any, order: Order, R: int) -> Any:
    *_, (_, last) = resume(algorithm, r, state, order, _clients(), R=R)
    return last


def _start() -> Any:
    return np.array([3.0, -1.0])


def _clients() -> InProcess[Any]:
    h = np.array([[1.0, 0.5], [2.0, 0.0], [0.5, 1.5], [0.0, 1.0]])
    a = np.array([[1.0, -3.0], [-1.0, 2.0], [0.25, 0.5], [-2.0, 1.0]])
    return InProcess(ScalarQuadratics(h, a, sigma2=0.1), seed=3)


def _digest(state: Any) -> str:
    """A state's every bit, as text."""
    with np.printoptions(floatmode="unique", threshold=10**9):
        return repr(state)


def _broken(what: str, value: object = None) -> None:
    raise ContractBroken(what, value=value)


__all__ = ["ArrayCut", "Golden", "Ingredients", "Pair", "PairCut", "PairQuadratics", "check_algorithm"]
