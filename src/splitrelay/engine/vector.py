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

from splitrelay.algorithms.base import Done, Memory, Outcome, Step, Visit
from splitrelay.engine.base import check_joint_clip
from splitrelay.errors import InputError
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
        x, memory = _take_steps(visit, xis, self.objective.gradient)
        return Done(x, memory=None if visit.step.rule.memory == "reset" else memory)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Run the visits one after another."""
        return map(self.run, visits)


def take_local_steps(visit: Visit[X], xis: Iterable[Any], gradient: Callable[[int, X, Any], X]) -> X:
    """Compute x_m^(r,k+1) = x_m^(r,k) - eta g_m^(r,k) for k = 0, ..., K-1, with one sample xi for each step."""
    return _take_steps(visit, xis, gradient)[0]


def _take_steps(
    visit: Visit[X], xis: Iterable[Any], gradient: Callable[[int, X, Any], X]
) -> tuple[X, Memory[X] | None]:
    x, step, memory = visit.x, visit.step, visit.memory
    if step.eta_server is not None:
        raise InputError("eta_server needs a model in halves", hint="Remove eta_server.")
    for xi in xis:
        g = compute_direction(step, x, visit.x, gradient(visit.m, x, xi))
        if step.rule.kind == "adamw":
            x = x - step.eta * (step.weight_decay * x)
        direction, memory = compute_update(step, g, memory)
        x = x - step.eta * direction
    return x, memory


def compute_update(step: Step[X], g: X, memory: Memory[X] | None) -> tuple[X, Memory[X] | None]:
    """Return the change of x divided by -eta, and the new state of the optimiser.

    Args:
        step: The local step with its optimiser.
        g: The direction: the gradient after clipping, weight decay and the proximal term.
        memory: The state of the optimiser, None before its first step.
    """
    rule = step.rule
    before: tuple[Any, ...] = () if memory is None else memory.vectors
    steps = 1 if memory is None else memory.steps + 1
    if rule.kind == "sgd":
        if not step.momentum:
            return g, Memory((), steps)
        velocity = step.momentum * before[0] + g if before else g
        return (g + step.momentum * velocity if rule.nesterov else velocity), Memory((velocity,), steps)
    numbers: Any = g  # an x with products and roots of its coordinates
    zero = numbers - numbers
    if rule.kind == "adagrad":
        total = (before[0] if before else zero) + numbers * numbers
        return numbers / (total**0.5 + rule.epsilon), Memory((total,), steps)
    mean, square = before or (zero, zero)
    mean = rule.beta1 * mean + (1 - rule.beta1) * numbers
    square = rule.beta2 * square + (1 - rule.beta2) * (numbers * numbers)
    root = square**0.5 / math.sqrt(1 - rule.beta2**steps)
    return mean / (root + rule.epsilon) / (1 - rule.beta1**steps), Memory((mean, square), steps)


def compute_direction(step: Step[X], x: X, start: X, g: X) -> X:
    """Return the gradient g after shift, clipping, weight decay and the proximal term, in this order."""
    if step.shift is not None:
        g = g + step.shift
    if step.clip is not None:
        check_joint_clip(step)
        g = min(1.0, step.clip / (math.sqrt(norm2(g)) + CLIP_FLOOR)) * g
    if step.weight_decay and step.rule.kind != "adamw":
        g = g + step.weight_decay * x  # after clipping, as in the authors' code
    if step.prox:
        g = g + step.prox * (x - start)
    return g
