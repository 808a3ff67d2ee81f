"""What an algorithm may do with x: add, subtract, scale, divide. Floats, Fractions, arrays and models all qualify."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar


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


def mean(xs: Iterable[X], weights: Sequence[Scalar] | None = None) -> X:
    """The mean, or the weighted mean, summed from left to right."""
    terms = list(xs)
    if weights is not None:
        terms = [w * x for w, x in zip(weights, terms, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total / (len(terms) if weights is None else _sum(weights))


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


def _sum(weights: Sequence[Scalar]) -> Any:
    total: Any = weights[0]
    for w in weights[1:]:
        total = total + w
    return total
