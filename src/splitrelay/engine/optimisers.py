"""The optimisers of the reference engine: they change a flat vector of weights in place, coordinate by coordinate.

The formulas are those of torch.optim. An operation whose two roundings a compiler may fuse into one is written as two
operations, so that a coordinate gets the same bits in the whole model and in a half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from splitrelay.algorithms.base import Memory, Step
from splitrelay.errors import UnknownName

KINDS = ("sgd", "adam", "adamw", "adagrad")


class Optimiser:
    """The optimiser of one visit on one range of weights.

    Args:
        step: The local step. Its eta and eta_server must be numbers.
        x: The weights, which `apply` changes.
        memory: The state to start from. It is copied.
        boundary: The size of the client half if x is the whole model and eta_server is set.
    """

    def __init__(
        self,
        step: Step[torch.Tensor],
        x: torch.Tensor,
        memory: Memory[torch.Tensor] | None = None,
        boundary: int | None = None,
    ) -> None:
        if step.rule.kind not in KINDS:
            raise UnknownName("optimiser", step.rule.kind, KINDS)
        self.step, self.rule, self.x = step, step.rule, x
        self.vectors = [] if memory is None else [vector.clone() for vector in memory.vectors]
        self.steps = 0 if memory is None else memory.steps
        self.rates = _list_rates(step, boundary)

    def get_memory(self) -> Memory[torch.Tensor] | None:
        """Return the state for a later visit, or None if the step resets it."""
        return None if self.rule.memory == "reset" else Memory(tuple(self.vectors), self.steps)

    def decay(self, x: torch.Tensor) -> None:
        """Reduce the weights themselves (adamw). `x` holds 0 instead of numbers that are not decayed."""
        self._subtract(x, self.step.weight_decay)

    def apply(self, g: torch.Tensor) -> None:
        """Update the weights with the direction g."""
        self.steps += 1
        if self.rule.kind == "sgd":
            self._subtract(self._add_momentum(g))
        elif self.rule.kind == "adagrad":
            (total,) = self._get_vectors(g, 1)
            total.add_(g.square())
            self._subtract(g / total.sqrt().add_(self.rule.epsilon))
        else:
            self._apply_adam(g)

    def _apply_adam(self, g: torch.Tensor) -> None:
        rule, (mean, square) = self.rule, self._get_vectors(g, 2)
        mean.mul_(rule.beta1).add_(g * (1 - rule.beta1))
        square.mul_(rule.beta2).add_(g.square().mul_(1 - rule.beta2))
        denominator = square.sqrt().div_(math.sqrt(1 - rule.beta2**self.steps)).add_(rule.epsilon)
        self._subtract(mean / denominator, 1 / (1 - rule.beta1**self.steps))

    def _add_momentum(self, g: torch.Tensor) -> torch.Tensor:
        momentum = self.step.momentum
        if not momentum:
            return g
        if not self.vectors:
            self.vectors = [g.clone()]
        else:
            self.vectors[0].mul_(momentum).add_(g)
        return g + self.vectors[0] * momentum if self.rule.nesterov else self.vectors[0]

    def _get_vectors(self, g: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
        if not self.vectors:
            self.vectors = [torch.zeros_like(g) for _ in range(count)]
        return self.vectors

    def _subtract(self, direction: torch.Tensor, factor: float = 1.0) -> None:
        for part, eta in self.rates:
            self.x[part].sub_(direction[part], alpha=eta * factor)


def _list_rates(step: Step[torch.Tensor], boundary: int | None) -> list[tuple[slice, float]]:
    """Return the ranges of x and their learning rates."""
    eta: float = step.eta  # type: ignore[assignment]  # a number here
    if step.eta_server is None:
        return [(slice(None), eta)]
    if boundary is None:
        raise ValueError("eta_server needs the boundary between the halves")
    server: float = step.eta_server  # type: ignore[assignment]
    return [(slice(None, boundary), eta), (slice(boundary, None), server)]
