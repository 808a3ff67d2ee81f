"""The quantities of a problem, checked in one place. Each is a number or an array of them; arrays broadcast."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Values = float | Array  # what callers give and get: a number for one setting, an array for many

MEANING = {
    "L": "the smoothness of every F_m",
    "mu": "the strong convexity, in the mean over clients",
    "sigma2": "the variance of a stochastic gradient",
    "sigma2_star": "the variance of a stochastic gradient at the optimum",
    "zeta2": "the heterogeneity: zeta_*^2 in the convex cases, zeta^2 in the non-convex one",
    "zeta2_star": "the heterogeneity at the optimum",
    "B2": "the factor of ||grad F||^2 in the heterogeneity bound",
    "M": "the number of clients",
    "S": "the number of clients that take part in a round",
    "K": "the number of local steps",
    "R": "the number of rounds",
    "D2": "the squared distance from the start to the optimum, ||x0 - x*||^2",
    "A": "the gap at the start, F(x0) - F*",
}
COUNTS = ("M", "S", "K", "R")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a statement of the paper may ask for. Leave out what you do not know; a formula says what it misses."""

    L: Values | None = None
    mu: Values | None = None
    sigma2: Values | None = None
    zeta2: Values | None = None
    B2: Values | None = None
    M: Values | None = None
    S: Values | None = None
    K: Values | None = None
    R: Values | None = None
    D2: Values | None = None
    A: Values | None = None
    sigma2_star: Values | None = None
    zeta2_star: Values | None = None

    def __post_init__(self) -> None:
        for name in self.given:
            object.__setattr__(self, name, plain(_checked(name, getattr(self, name))))
        self._fits_together()

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the quantities that are known, in the order of the fields."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all quantities together: () for one setting."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in self.given))

    def need(self, name: str, asker: str) -> Array:
        """The quantity as an array, or an error that says who asks for it and what it means."""
        value = getattr(self, name)
        if value is None:
            raise InputError(f"{asker} needs {name}, {MEANING[name]}", way_out=f"Give {name}=...")
        return np.asarray(value, dtype=np.float64)

    def heterogeneity(self, case: str, asker: str) -> Array:
        """zeta^2 in the non-convex case; else zeta_*^2: zeta2_star where given, otherwise zeta2."""
        starred = case != "non-convex" and self.zeta2_star is not None
        return self.need("zeta2_star" if starred else "zeta2", asker)

    def over_rounds(self, R: Values) -> Problem:
        """The same problem over R rounds, which need not be whole here: S R / M rounds at equal compute."""
        other = copy(self)
        object.__setattr__(other, "R", plain(np.asarray(R, dtype=np.float64)))
        return other

    def _fits_together(self) -> None:
        try:
            shape = self.shape
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(getattr(self, name))}" for name in self.given)
            raise InputError("the arrays of a problem must broadcast", value=shapes) from None
        _not_above(self, "S", "M", shape, "A round cannot have more clients than there are.")
        _not_above(self, "mu", "L", shape, "An L-smooth function is at most L-strongly convex.")


def numbers(name: str, value: Any) -> Array:
    """Finite numbers as an array."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or an array of numbers", value=repr(value)) from None
    _refuse(name, array, np.isfinite(array), "must be a finite number", None)
    return array


def positive(name: str, value: Any) -> Array:
    """Finite numbers above 0 as an array."""
    array = numbers(name, value)
    _refuse(name, array, array > 0, "must be positive", f"{name} > 0")
    return array


def plain(array: Any) -> Any:
    """A number where there is one setting, the array where there are many."""
    return array.item() if np.ndim(array) == 0 else array


def _checked(name: str, value: Any) -> Array:
    array = numbers(name, value)
    if name in COUNTS:
        _refuse(name, array, (array >= 1) & (array == np.floor(array)), "must be a whole number", f"{name} >= 1")
    elif name == "L":
        _refuse(name, array, array > 0, "must be positive", "L > 0")
    else:
        _refuse(name, array, array >= 0, "must not be negative", f"{name} >= 0")
    return array


def _refuse(name: str, array: Array, good: Bools, must: str, limit: str | None) -> None:
    if not np.all(good):
        first = float(np.extract(~good, array)[0])
        raise OutOfRange(f"{name}, {MEANING.get(name, 'the step')}, {must}", value=first, limit=limit)


def _not_above(problem: Problem, small: str, large: str, shape: tuple[int, ...], why: str) -> None:
    left, right = getattr(problem, small), getattr(problem, large)
    if left is None or right is None:
        return
    wrong = np.broadcast_to(np.greater(left, right), shape)
    if np.any(wrong):
        at: Callable[[Values], float] = lambda value: float(np.broadcast_to(value, shape)[wrong][0])  # noqa: E731
        raise OutOfRange(
            f"{small} must not exceed {large}",
            value=f"{small}={at(left):g}, {large}={at(right):g}",
            limit=f"{small} <= {large}",
            way_out=why,
        )
