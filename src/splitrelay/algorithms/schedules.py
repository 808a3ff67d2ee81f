"""Learning rates that depend on the round. The rate is a function of r, so resuming needs no replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from splitrelay.algorithms.base import Algorithm, Clients, State, Step
from splitrelay.errors import InputError, UnknownName
from splitrelay.vectors import X

KINDS = ("constant", "step", "cosine", "inverse-sqrt")
DIGITS = 12  # significant digits of a rate: the last bits of a cosine differ between hosts


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each round as a multiple of eta.

    During the first `warmup` rounds the factor is 1/warmup, 2/warmup, ..., 1. The schedule starts after them, with t
    rounds since then:

    - constant: 1
    - step: factor^(t // period)
    - cosine: (1 + cos(pi t / period)) / 2, which would be 0 at t = period; from t = period - 1 on it stays the same
    - inverse-sqrt: 1 / sqrt(t + 1)
    - function: function(t)

    Example:
        >>> [Schedule("step", period=2, factor=0.5).compute_factor(r) for r in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    kind: str = "constant"
    warmup: int = 0
    period: int | None = None
    factor: float = 0.1
    function: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        if self.function is None and self.kind not in KINDS:
            raise UnknownName("schedule", self.kind, (*KINDS, "module:function"))
        if self.kind in ("step", "cosine") and self.period is None:
            hint = "Set period: the rounds between two reductions (step), or until the end (cosine)."
            raise InputError(f"schedule={self.kind} needs a period", hint=hint)

    @property
    def is_constant(self) -> bool:
        """Whether the factor is 1 in every round."""
        return self.kind == "constant" and not self.warmup

    def compute_factor(self, r: int) -> float:
        """Return the learning rate of round r divided by eta."""
        if r < self.warmup:
            return (r + 1) / self.warmup
        t = r - self.warmup
        if self.function is not None:
            factor = self.function(t)
            if not isinstance(factor, int | float) or not 0 < factor < math.inf:
                what = f"schedule {self.kind} returns no learning rate for round {t}"
                raise InputError(what, value=factor, limit="a positive number")
            return float(factor)
        if self.kind == "step":
            assert self.period is not None
            return self.factor ** (t // self.period)
        if self.kind == "cosine":
            assert self.period is not None
            return (1 + math.cos(math.pi * min(t, self.period - 1) / self.period)) / 2
        return 1 / math.sqrt(t + 1) if self.kind == "inverse-sqrt" else 1.0

    def scale(self, step: Step[Any], r: int) -> Step[Any]:
        """Return the step with its learning rates of round r."""
        factor = self.compute_factor(r)
        server: Any = step.eta_server
        return replace(
            step, eta=_round(step.eta * factor), eta_server=None if server is None else _round(server * factor)
        )


def _round(eta: float) -> float:
    return float(f"{eta:.{DIGITS}g}")


@dataclass(frozen=True)
class Scheduled(Generic[X, State]):
    """Any algorithm with the learning rate of a schedule.

    Two rounds by hand, SSL with F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 1, order (1, 2), and a
    schedule that halves eta after every round:
        round 0, eta = 1/2:  2 -> 2 - 3/2 = 1/2 -> 1/2 + 1/4 = 3/4
        round 1, eta = 1/4:  3/4 -> 3/4 - 7/16 = 5/16 -> 5/16 + 11/64 = 31/64
    """

    make: Callable[[Step[X]], Algorithm[X, State]]
    step: Step[X]
    schedule: Schedule

    def init(self, x0: X, /) -> State:
        return self.build(0).init(x0)

    def round(self, r: int, state: State, order: Sequence[int], clients: Clients[X], /) -> State:
        return self.build(r).round(r, state, order, clients)

    def model(self, state: State, /) -> X:
        return self.build(0).model(state)

    def build(self, r: int) -> Algorithm[X, State]:
        """Return the algorithm of round r."""
        return self.make(self.schedule.scale(self.step, r))
