"""The quantities of a problem. Each is a number or an array, and arrays broadcast. All of them are checked here."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.results import Array, Bools, Values, unwrap_values

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
    """The quantities that the paper's statements use. MEANING explains each of them.

    Omit the quantities that you do not know. A formula that needs a missing one raises InputError with its name.

    >>> Problem(L=2, mu=1, M=10, K=5).names
    ('L', 'mu', 'M', 'K')
    """

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
        for name in self.names:
            object.__setattr__(self, name, unwrap_values(_check_quantity(name, getattr(self, name))))
        try:
            shape = self.shape
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(getattr(self, name))}" for name in self.names)
            raise InputError("the arrays of a problem must broadcast", value=shapes) from None
        self._check_not_above("S", "M", shape, "A round cannot have more clients than there are.")
        self._check_not_above("mu", "L", shape, "An L-smooth function is at most L-strongly convex.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the known quantities, in the order of the fields."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all quantities: () for one setting."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in self.names))

    @cached_property
    def min_step(self) -> Array:
        """1/(mu R), the lower limit of eta_tilde in the strongly convex case. It is infinite where mu = 0."""
        q = self.get_quantities("strongly-convex")
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (q.mu * q.R))

    def get_quantities(self, subject: str, case: str = "strongly-convex") -> Quantities:
        """Return the quantities as arrays. `subject` is the formula that errors name."""
        return Quantities(self, subject, case)

    def with_rounds(self, R: Values) -> Problem:
        """Return the same problem over R rounds. Unlike in the constructor, R may be fractional (S R / M)."""
        other = copy(self)
        other.__dict__.pop("min_step", None)
        object.__setattr__(other, "R", unwrap_values(np.asarray(R, dtype=np.float64)))
        return other

    def with_all_clients(self) -> Problem:
        """Return the same problem without S: all M clients take part in every round."""
        other = copy(self)
        object.__setattr__(other, "S", None)
        return other

    def _check_not_above(self, small: str, large: str, shape: tuple[int, ...], hint: str) -> None:
        left, right = getattr(self, small), getattr(self, large)
        if left is None or right is None:
            return
        wrong = np.broadcast_to(np.greater(left, right), shape)
        if np.any(wrong):
            low, high = (float(np.broadcast_to(value, shape)[wrong][0]) for value in (left, right))
            raise OutOfRange(f"{small} must not exceed {large}", value=f"{small}={low:g}, {large}={high:g}", hint=hint)


@dataclass(frozen=True)
class Quantities:
    """The quantities of a problem as arrays: q.L, q.mu, ... A missing one raises InputError."""

    problem: Problem
    subject: str
    case: str

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.problem, name)
        if value is None:
            raise InputError(f"{self.subject} needs {name}, {MEANING[name]}", hint=f"Give {name}=...")
        return np.asarray(value, dtype=np.float64)

    @property
    def heterogeneity(self) -> Array:
        """zeta^2 in the non-convex case, else zeta_*^2: zeta2_star if it is given, otherwise zeta2."""
        use_star = self.case != "non-convex" and self.problem.zeta2_star is not None
        return self.zeta2_star if use_star else self.zeta2

    @property
    def positive_mu(self) -> Array:
        """Return mu for formulas that divide by it; raises OutOfRange where mu = 0."""
        mu = self.mu
        if not np.all(mu > 0):
            raise OutOfRange(f"{self.subject} needs mu > 0", value=0, hint="Use general-convex, which needs no mu.")
        return mu


def check_numbers(name: str, value: Any) -> Array:
    """Return the value as an array after a check that all numbers are finite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or an array of numbers", value=repr(value)) from None
    _check_all(name, array, np.isfinite(array), "must be a finite number", None)
    return array


def check_positive(name: str, value: Any) -> Array:
    """Return the value as an array after a check that all numbers are finite and above 0."""
    array = check_numbers(name, value)
    _check_all(name, array, array > 0, "must be positive", f"{name} > 0")
    return array


def check_nonnegative(name: str, value: Any) -> Array:
    """Return the value as an array after a check that all numbers are finite and not below 0."""
    array = check_numbers(name, value)
    _check_all(name, array, array >= 0, "must not be negative", f"{name} >= 0")
    return array


def _check_quantity(name: str, value: Any) -> Array:
    array = check_numbers(name, value)
    if name in COUNTS:
        _check_all(name, array, (array >= 1) & (array == np.floor(array)), "must be a whole number", f"{name} >= 1")
    elif name == "L":
        _check_all(name, array, array > 0, "must be positive", "L > 0")
    else:
        _check_all(name, array, array >= 0, "must not be negative", f"{name} >= 0")
    return array


def _check_all(name: str, array: Array, valid: Bools, rule: str, limit: str | None) -> None:
    """Raise OutOfRange with the first invalid number."""
    if not np.all(valid):
        first = float(np.extract(~valid, array)[0])
        what = f"{name}, {MEANING[name]}," if name in MEANING else name
        raise OutOfRange(f"{what} {rule}", value=first, limit=limit)
