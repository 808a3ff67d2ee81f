"""What an algorithm may do with x: add, subtract, scale, divide. Floats, Fractions, arrays and models all qualify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, Self, TypeVar


class Scalar(Protocol):
    """A number, or an array of numbers where x carries many settings at once."""

    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...


class Vector(Protocol):
    """The least that SGD and an average need."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rmul__(self, scalar: Any, /) -> Self: ...
    def __truediv__(self, n: Any, /) -> Self: ...


X = TypeVar("X", bound=Vector)


class Mean(Generic[X]):
    """A mean, or a weighted mean, summed from left to right as its terms arrive: none of them is kept."""

    def __init__(self) -> None:
        self.total: X | None = None
        self.weight: Any = 0

    def add(self, x: X, weight: Scalar | None = None) -> None:
        """One term more."""
        term: X = x if weight is None else weight * x
        self.total = term if self.total is None else self.total + term
        self.weight = self.weight + (1 if weight is None else weight)

    def otherwise(self, x: X) -> X:
        """The mean of what was added; x where nothing was."""
        return x if self.total is None else self.total / self.weight


def mean(xs: Iterable[X]) -> X:
    """The mean of at least one x; no more than one of them is held at a time."""
    terms = iter(xs)
    found: Mean[X] = Mean()
    first = next(terms)
    found.add(first)
    for x in terms:
        found.add(x)
    return found.otherwise(first)


def zero_like(x: X) -> X:
    """The zero of x's space."""
    return x - x


def norm2(x: Any) -> Any:
    """The squared norm. A model brings its own; a number is its own square; an array is summed whole."""
    own = getattr(x, "norm2", None)
    if own is not None:
        return own()
    square = x * x
    return square.sum() if hasattr(square, "sum") else square
