"""Dropout with named masks.

The name of a mask is (seed, round, client, occurrence, step, layer). Whole and cut models draw the same masks, and a
resumed run repeats them. `Dropout` replaces an nn.Dropout that is a layer of its own. Other random layers, and dropout
inside a layer, draw named numbers with `layer_draws.NamedDraws`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange


class Dropout(nn.Module):
    """Set entries to zero with probability p and scale the others by 1/(1-p).

    Attributes:
        source: Returns the named uniform random numbers of a mask for a given shape.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise OutOfRange("dropout probability p", limit="0 <= p < 1", value=p)
        self.p = p
        self.source: Callable[[tuple[int, ...]], torch.Tensor] | None = None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Apply the mask in training mode. Return h unchanged in evaluation mode."""
        if not self.training or self.p == 0:
            return h
        if self.source is None:
            raise InputError("a dropout layer ran in training mode without the name of its mask")
        mask = self.source(tuple(h.shape)).to(h.device) >= self.p
        return h * mask / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def replace_dropout(layer: nn.Module) -> nn.Module:
    """Return Dropout with named masks instead of torch's nn.Dropout. Return any other layer unchanged."""
    if type(layer) is not nn.Dropout:
        return layer
    named = Dropout(layer.p)
    named.train(layer.training)
    return named
