"""What the calculator answers with: plain data, numbers for one setting and arrays for many.

Of millions of settings most arrays are never looked at, and memory takes longer than arithmetic: what follows from
the rest (terms, words, orders) is worked out when it is first read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from splitrelay.theory.scalar_or_array import Codes, Strings, Truth, Values, Words, plain, words

Algorithm = Literal["ssl", "fedavg", "fedavg-swor", "fedavg-swr"]
Case = Literal["strongly-convex", "general-convex", "non-convex"]
Constants = Literal["proved", "printed", "tight"]
Horizon = Literal["R", "R+1"]
Outside = Literal["refuse", "mask"]
Rule = Literal["printed", "mended", "best"]

ALGORITHMS: tuple[str, ...] = ("ssl", "fedavg", "fedavg-swor", "fedavg-swr")
CASES: tuple[str, ...] = ("strongly-convex", "general-convex", "non-convex")
CONSTANTS: tuple[str, ...] = ("proved", "printed", "tight")
HORIZONS: tuple[str, ...] = ("R", "R+1")
OUTSIDE: tuple[str, ...] = ("refuse", "mask")
RULES: tuple[str, ...] = ("printed", "mended", "best")
BRANCHES: tuple[str, ...] = ("none", "low", "interior", "cap", "log", "c1", "c2")
WINNERS: tuple[str, ...] = ("none", "ssl", "fedavg", "equal")
DECAYS: tuple[str, ...] = ("1/R^(1/2)", "1/R^(2/3)", "1/R", "1/R^2", "exp(-R)")  # slowest first


@dataclass(frozen=True)
class Condition:
    """One condition of a statement with its two sides: left relation right."""

    name: str
    left: Values
    relation: Literal["<=", ">="]
    right: Values
    holds: Truth


@dataclass(frozen=True)
class Bound:
    """An upper bound, its terms in printed order, and whether it says anything.

    Where `applicable` is false (only under outside="mask") every number is NaN.
    `rounds` is what stands for the rounds in the formula: R, or R + 1 where that is printed or asked for.
    """

    algorithm: str
    case: str
    constants: str
    statement: str  # where it stands, e.g. "Theorem 1"
    measure: str  # what is bounded, e.g. "E F(xbar) - F*"
    total: Values
    eta_tilde: Values
    conditions: tuple[Condition, ...]
    vacuous: Truth
    applicable: Truth
    rounds: Values
    formulas: Mapping[str, str]  # each term as it is written, constants and all
    per_eta: Values = field(repr=False)  # eta_tilde / eta
    later: Callable[[], Mapping[str, Values]] = field(repr=False, compare=False)

    @cached_property
    def terms(self) -> Mapping[str, Values]:
        """The terms by name; they sum to the total."""
        return self.later()

    @cached_property
    def eta(self) -> Values:
        """The learning rate of one local step."""
        return plain(np.asarray(self.eta_tilde) / self.per_eta)


@dataclass(frozen=True)
class Rate:
    """An order: terms with unit constants, in printed order."""

    name: str
    case: str
    statement: str
    measure: str
    total: Values
    terms: Mapping[str, Values]
    decay: Mapping[str, str]  # how each term falls with R: one of DECAYS

    @property
    def largest(self) -> Words:
        """The largest term as it stands; "none" where all vanish."""
        return words(self._largest(tuple(self.terms)))

    @property
    def dominant(self) -> Words:
        """The term that remains for large R: of those that are not zero the slowest to fall, of equals the largest."""
        found = np.full(np.shape(self.total), "none", dtype="U20")
        for decay in reversed(DECAYS):
            names = tuple(name for name in self.terms if self.decay[name] == decay)
            largest = self._largest(names) if names else np.asarray("none")
            found = np.where(largest == "none", found, largest)
        return words(np.where(found == "none", list(self.terms)[-1], found))  # exp(-R) may underflow, and is not zero

    def _largest(self, names: tuple[str, ...]) -> Strings:
        values = np.stack([np.asarray(self.terms[name]) for name in names])
        found: Strings = np.asarray(names)[np.argmax(values, axis=0)]
        return np.where(np.any(values > 0, axis=0), found, "none")


@dataclass(frozen=True)
class StepSize:
    """A step by one rule, the branch of the rule that decided, the bound it gives, and the lemma's explicit bound.

    `explicit` and `tau` are None where the rule has none.
    """

    rule: str
    bound: Bound
    explicit: Values | None
    tau: Values | None
    low: Values
    high: Values
    applicable: Truth
    code: Codes = field(repr=False)  # of the branch, in BRANCHES

    @property
    def eta_tilde(self) -> Values:
        """The step."""
        return self.bound.eta_tilde

    @property
    def eta(self) -> Values:
        """The learning rate of one local step."""
        return self.bound.eta

    @cached_property
    def branch(self) -> Words:
        """The branch of the rule that decided."""
        return words(np.asarray(BRANCHES)[self.code])


@dataclass(frozen=True)
class Side:
    """One algorithm in a comparison: its rounds, its order, and its bound where there is one (else `why_not`)."""

    algorithm: str
    rounds: Values
    bound: Bound | None
    step: StepSize | None
    why_not: str = ""
    later: Callable[[], Rate | None] = field(default=lambda: None, repr=False, compare=False)

    @cached_property
    def rate(self) -> Rate | None:
        """Its order of convergence."""
        return self.later()


@dataclass(frozen=True)
class Comparison:
    """SSL against FedAvg: at equal rounds with all clients; at equal compute where S clients take part.

    `smaller` names the algorithm with the smaller bound ("none" where a bound does not apply).
    `useful_K` holds the K beyond which more local steps stop helping, by order and at the step of the bound.
    """

    case: str
    constants: str
    equal_rounds: Mapping[str, Side]
    equal_compute: Mapping[str, Side]
    conditions: tuple[Condition, ...]
    notes: tuple[str, ...]
    codes: Mapping[str, Codes] = field(repr=False)  # of the smaller, in WINNERS
    later: Callable[[], Mapping[str, Values]] = field(repr=False, compare=False)

    @cached_property
    def smaller(self) -> Mapping[str, Words]:
        """Whose bound is the smaller one."""
        return {label: words(np.asarray(WINNERS)[codes]) for label, codes in self.codes.items()}

    @cached_property
    def useful_K(self) -> Mapping[str, Values]:
        """The useful K of both algorithms."""
        return self.later()
