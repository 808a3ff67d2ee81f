"""Local steps on any kind of vector, and clients that take them one after another in this process.

This is the functional form that the faster engines must equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import numpy as np

from splitrelay.algorithms.base import Done, Outcome, Step, Visit
from splitrelay.engine.base import check_joint_clip
from splitrelay.randomness import Purpose, rng
from splitrelay.vectors import X, norm2

CLIP_FLOOR = 1e-6  # as in torch's clip_grad_norm_


class Objective(Protocol[X]):
    """F_1, ..., F_M, each with its stochastic gradients."""

    @property
    def M(self) -> int:
        """The number of clients."""
        ...

    def draw(self, m: int, K: int, generator: Callable[[], np.random.Generator], /) -> Sequence[Any]:
        """Draw K samples xi for client m. An objective without randomness does not call the generator."""
        ...

    def gradient(self, m: int, x: X, xi: Any, /) -> X:
        """Return the gradient of f_m(x; xi), or of F_m if xi is None."""
        ...


@dataclass(frozen=True)
class InProcess(Generic[X]):
    """All M clients of an objective. `seed` is the root of every batch they draw."""

    objective: Objective[X]
    seed: int = 0

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Take K local steps on the samples that (seed, r, m, i) names."""
        generator = partial(rng, self.seed, Purpose.BATCHES, visit.r, visit.m, visit.i)
        xis = self.objective.draw(visit.m, visit.K, generator)
        return Done(take_local_steps(visit, xis, self.objective.gradient))

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Run the visits one after another."""
        return map(self.run, visits)


def take_local_steps(visit: Visit[X], xis: Iterable[Any], gradient: Callable[[int, X, Any], X]) -> X:
    """Compute x_m^(r,k+1) = x_m^(r,k) - eta g_m^(r,k) for k = 0, ..., K-1, with one sample xi for each step."""
    x, velocity = visit.x, None
    for xi in xis:
        g = compute_direction(visit.step, x, visit.x, gradient(visit.m, x, xi))
        velocity = g if velocity is None else visit.step.momentum * velocity + g
        x = x - visit.step.eta * (velocity if visit.step.momentum else g)
    return x


def compute_direction(step: Step[X], x: X, start: X, g: X) -> X:
    """Return the gradient g after shift, clipping, weight decay and the proximal term, in this order."""
    if step.shift is not None:
        g = g + step.shift
    if step.clip is not None:
        check_joint_clip(step)
        g = min(1.0, step.clip / (math.sqrt(norm2(g)) + CLIP_FLOOR)) * g
    if step.weight_decay:
        g = g + step.weight_decay * x  # after clipping, as in the authors' code
    if step.prox:
        g = g + step.prox * (x - start)
    return g
