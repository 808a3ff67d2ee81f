"""K local steps on any kind of vector: the functional form that every faster engine must equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from splitrelay.algorithms.base import Step, Visit
from splitrelay.errors import InputError
from splitrelay.vectors import X, norm2


def descend(visit: Visit[X], xis: Iterable[Any], gradient: Callable[[int, X, Any], X]) -> X:
    """x_m^(r,k+1) = x_m^(r,k) - eta g_m^(r,k) for k = 0, ..., K-1, one sample xi for each step."""
    x, velocity = visit.x, None
    for xi in xis:
        g = direction(visit.step, x, visit.x, gradient(visit.m, x, xi))
        velocity = g if velocity is None else visit.step.momentum * velocity + g
        x = x - visit.step.eta * (velocity if visit.step.momentum else g)
    return x


def direction(step: Step[X], x: X, start: X, g: X) -> X:
    """The gradient, shifted, clipped, decayed and held near the start of the visit, in this order."""
    if step.shift is not None:
        g = g + step.shift
    if step.clip is not None:
        refuse_per_half(step)
        g = min(1.0, step.clip / (math.sqrt(norm2(g)) + 1e-6)) * g  # the 1e-6 is torch's clip_grad_norm_
    if step.weight_decay:
        g = g + step.weight_decay * x  # after clipping, as in the authors' code
    if step.prox:
        g = g + step.prox * (x - start)
    return g


def refuse_per_half(step: Step[X]) -> None:
    """Where x is whole, clipping by halves would clip something else in silence."""
    if step.per_half:
        raise InputError("clipping per half needs a model in halves", hint="Use placement=cut, or clip the whole.")
