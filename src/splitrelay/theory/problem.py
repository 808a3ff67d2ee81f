"""The quantities of a problem, checked in one place. Each is a number or an array of them; arrays broadcast."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.scalar_or_array import Array, Bools, Values, plain

MEANING = {
    "L": "the smoothness of every F_m",
    "mu": "the strong convexity, in the mean over clients",
    "sigma2": "the variance of a stochastic gradient",
    "sigma2_star": "the variance of a stochastic gradient at the optimum",
    "zeta2": "the heterogeneity (zeta_*^2 in the convex cases, zeta^2 in the non-convex one)",
    "zeta2_star": "the heterogeneity at the optimum",
    "B2": "the factor of ||grad F||^2 in the bound on heterogeneity",
    "M": "the number of clients",
    "S": "the number of clients that take part in a round",
    "K": "the number of local steps",
    "R": "the number of rounds",
    "D2": "the squared distance from the start to the optimum",
    "A": "the gap at the start, F(x0) - F*",
    "eta": "the learning rate of one local step",
    "eta_tilde": "the effective learning rate",
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

    @cached_property
    def shortest(self) -> Array:
        """1/(mu R), the lower end of every strongly convex range; infinite where mu = 0, and no step meets it."""
        q = self.asked_by("strongly-convex")
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (q.mu * q.R))

    def asked_by(self, asker: str, case: str = "strongly-convex") -> Asked:
        """The quantities as a formula reads them."""
        return Asked(self, asker, case)

    def over_rounds(self, R: Values) -> Problem:
        """The same problem over R rounds, which need not be whole here: S R / M rounds at equal compute."""
        other = copy(self)
        other.__dict__.pop("shortest", None)
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


@dataclass(frozen=True)
class Asked:
    """q.L, q.mu, ... as arrays; a missing one is an error that says who asks for it and what it means."""

    problem: Problem
    asker: str
    case: str

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.problem, name)
        if value is None:
            raise InputError(f"{self.asker} needs {name}, {MEANING[name]}", hint=f"Give {name}=...")
        return np.asarray(value, dtype=np.float64)

    @property
    def heterogeneity(self) -> Array:
        """zeta^2 in the non-convex case; else zeta_*^2, which is zeta2_star where given and zeta2 otherwise."""
        starred = self.case != "non-convex" and self.problem.zeta2_star is not None
        return self.zeta2_star if starred else self.zeta2

    @property
    def positive_mu(self) -> Array:
        """mu where a formula divides by it."""
        mu = self.mu
        if not np.all(mu > 0):
            raise OutOfRange(f"{self.asker} needs mu > 0", value=0, hint="Use general-convex, which needs no mu.")
        return mu


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
        what = f"{name}, {MEANING[name]}," if name in MEANING else name
        raise OutOfRange(f"{what} {must}", value=first, limit=limit)


def _not_above(problem: Problem, small: str, large: str, shape: tuple[int, ...], why: str) -> None:
    left, right = getattr(problem, small), getattr(problem, large)
    if left is None or right is None:
        return
    wrong = np.broadcast_to(np.greater(left, right), shape)
    if np.any(wrong):
        low, high = (float(np.broadcast_to(value, shape)[wrong][0]) for value in (left, right))
        got = f"{small}={low:g}, {large}={high:g}"
        raise OutOfRange(f"{small} must not exceed {large}", value=got, hint=why)
