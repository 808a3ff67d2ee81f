"""Clients that live in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import numpy as np

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.engine.vector_steps import descend
from splitrelay.randomness import Purpose, rng
from splitrelay.vectors import X


class Objective(Protocol[X]):
    """F_1, ..., F_M, each with its stochastic gradients."""

    @property
    def M(self) -> int:
        """The number of clients."""
        ...

    def draw(self, m: int, K: int, generator: Callable[[], np.random.Generator], /) -> Sequence[Any]:
        """K samples xi for client m; where nothing is random the generator is never made."""
        ...

    def gradient(self, m: int, x: X, xi: Any, /) -> X:
        """The gradient of f_m(x; xi); of F_m itself where xi is None."""
        ...


@dataclass(frozen=True)
class InProcess(Generic[X]):
    """All M clients of an objective. `seed` is the root of every batch they draw."""

    objective: Objective[X]
    seed: int = 0

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """K local steps, on the samples that (seed, r, m, i) names."""
        generator = partial(rng, self.seed, Purpose.BATCHES, visit.r, visit.m, visit.i)
        xis = self.objective.draw(visit.m, visit.K, generator)
        return Done(descend(visit, xis, self.objective.gradient))

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """One after another."""
        return map(self.run, visits)
