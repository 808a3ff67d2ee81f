"""The operations that algorithms use on x: addition, subtraction, scaling and division.

Floats, Fractions, arrays and tensors all support them. No algorithm uses anything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Generic, Protocol, Self, TypeVar


class Scalar(Protocol):
    """A number, or an array of numbers if x contains many settings at once."""

    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...


class Vector(Protocol):
    """The operations that SGD and an average need."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rmul__(self, scalar: Any, /) -> Self: ...
    def __truediv__(self, n: Any, /) -> Self: ...


X = TypeVar("X", bound=Vector)


class Mean(Generic[X]):
    """A mean or weighted mean. It adds the terms from left to right as they arrive and stores only their sum."""

    def __init__(self) -> None:
        self.total: X | None = None
        self.weight: Any = 0

    def add(self, x: X, weight: Scalar | None = None) -> None:
        """Add a term. Without a weight it counts once."""
        term: X = x if weight is None else weight * x
        self.total = term if self.total is None else self.total + term
        self.weight = self.weight + (1 if weight is None else weight)

    def value(self, default: X) -> X:
        """Return the mean of all terms, or the default if there are none."""
        return default if self.total is None else self.total / self.weight


def mean(xs: Iterable[X]) -> X:
    """Return the mean of at least one x. Only one of them is in memory at a time."""
    terms = iter(xs)
    total: Mean[X] = Mean()
    first = next(terms)
    total.add(first)
    for x in terms:
        total.add(x)
    return total.value(default=first)


def zero_like(x: X) -> X:
    """Return the zero of the space of x."""
    return x - x


def norm2(x: Any) -> Any:
    """Return the squared norm of a number or an array. An x with a method norm2 computes its own."""
    method = getattr(x, "norm2", None)
    if method is not None:
        return method()
    square = x * x
    return square.sum() if hasattr(square, "sum") else square


def root(x: Any) -> Any:
    """Return the square root of each coordinate. The root of a Fraction is exact if it is a fraction."""
    if isinstance(x, Fraction):
        sides = math.isqrt(x.numerator), math.isqrt(x.denominator)
        if sides[0] ** 2 == x.numerator and sides[1] ** 2 == x.denominator:
            return Fraction(*sides)
    return x**0.5
