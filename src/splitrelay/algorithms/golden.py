"""Golden runs: short runs calculated by hand with Fractions. They distinguish each algorithm from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from splitrelay.algorithms.base import AlgorithmSettings, LocalSteps, Step


@dataclass(frozen=True)
class Pair:
    """The smallest x that can be cut: one number in the client half (bottom), one in the server half (top)."""

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
    """The cut of a Pair. In each half the other number is zero."""

    def halves(self, x: Pair, /) -> tuple[Pair, Pair]:
        return Pair(x.bottom, 0), Pair(0, x.top)

    def join(self, bottom: Pair, top: Pair, /) -> Pair:
        return Pair(bottom.bottom, top.top)


@dataclass(frozen=True)
class Golden:
    """A run calculated by hand. The clients have F_m = h_m x^2/2 + a_m x.

    If x0 is a Pair, they have F_m = h_m (bottom^2 + top^2)/2 + a_m bottom + 2 a_m top.

    Attributes:
        orders: The order of the clients for each round.
        models: The expected global models x^1, x^2, ... after each round.
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
    prox: Fraction = Fraction(1, 10)
    server_momentum: Fraction = Fraction(9, 10)
    server_beta2: Fraction = Fraction(99, 100)
    server_epsilon: Fraction = Fraction(1, 1000)

    def settings(self) -> AlgorithmSettings:
        """Return the settings with which the algorithm is built."""
        return AlgorithmSettings(
            Step(self.eta),
            self.K,
            len(self.h),
            PairCut(),
            gamma=self.gamma,
            sizes=self.sizes,
            G=self.G,
            prox=self.prox,
            server_momentum=self.server_momentum,
            server_beta2=self.server_beta2,
            server_epsilon=self.server_epsilon,
        )
