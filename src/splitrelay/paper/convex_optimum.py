"""x* of softmax regression by Newton's method, each step solved by conjugate gradients.

Our own forty lines rather than scipy's: scipy comes only with the `learn` extra, and this study needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from splitrelay.errors import WorkError
from splitrelay.objectives.softmax_regression import Softmax

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-8
MOST_STEPS, MOST_PRODUCTS, MOST_HALVINGS = 100, 500, 40
ENOUGH = 1e-4  # Armijo: the share of the promised decrease that a step must bring
ROUNDING = 1e-14  # relative, of F: near the optimum no decrease can be seen any more


@dataclass(frozen=True, eq=False)
class Optimum:
    """x*, F(x*), and how near it is: ||grad F(x*)|| after so many steps."""

    x: Array
    F: float
    gradient_norm: float
    steps: int


def minimise(objective: Softmax, tolerance: float = TOLERANCE) -> Optimum:
    """The minimiser of F, to ||grad F|| <= tolerance; F is at least mu-convex, so ||x - x*|| <= tolerance/mu."""
    x = objective.x0
    for step in range(MOST_STEPS):
        gradient = objective.full_gradient(x)
        norm = float(np.linalg.norm(gradient))
        if norm <= tolerance:
            return Optimum(x, float(objective.F(x)), norm, step)
        towards = _conjugate_gradients(objective.curvature(x), -gradient, min(0.5, norm**0.5) * norm)
        x = x + _length(objective, x, gradient, towards) * towards
    raise WorkError("Newton's method did not reach the optimum", value=norm, limit=f"||grad F|| <= {tolerance:g}")


def _conjugate_gradients(product: Callable[[Array], Array], right: Array, enough: float) -> Array:
    """v with ||H v - right|| <= enough; H is positive definite, since mu > 0."""
    v, residual = np.zeros_like(right), right
    direction, square = residual, float((residual**2).sum())
    for _ in range(MOST_PRODUCTS):
        if square <= enough**2:
            break
        curved = product(direction)
        share = square / float((direction * curved).sum())
        v, residual = v + share * direction, residual - share * curved
        before, square = square, float((residual**2).sum())
        direction = residual + square / before * direction
    return v


def _length(objective: Softmax, x: Array, gradient: Array, towards: Array) -> float:
    """The first of 1, 1/2, 1/4, ... that lowers F by enough."""
    here, slope, length = float(objective.F(x)), float((gradient * towards).sum()), 1.0
    for _ in range(MOST_HALVINGS):
        if objective.F(x + length * towards) <= here + ENOUGH * length * slope + ROUNDING * abs(here):
            break
        length /= 2
    return length
