"""The inner seam, and the bytes that go over it: the same count whether the server is here or on another host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

HEADER = 64  # bytes before every buffer: what it is, of which visit and step, its shape
LABEL, NORM = 4, 8  # bytes of one label, of one squared norm


@dataclass(frozen=True, eq=False)
class Reply:
    """What the server's half answers: the gradient at the cut, the squared norms of its own gradients, the loss."""

    gradient: torch.Tensor
    norms: Sequence[float]
    loss: torch.Tensor


class Top(Protocol):
    """The inner seam: the server's half during one visit, here or on another host."""

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> Reply:
        """Forward and backward on smashed data. norm2 closes step k - 1: the client's part of the joint norm."""
        ...

    def finish(self, norm2: float, /) -> None:
        """Close the last step."""
        ...


class Overheard:
    """A top that counts what passes."""

    def __init__(self, top: Top) -> None:
        self.top, self.up, self.down = top, 0, 0

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> Reply:
        """Smashed data and labels up, the gradient at the cut down."""
        self.up += message(h) + LABEL * len(labels) + NORM
        reply = self.top.step(k, h, labels, norm2)
        self.down += message(reply.gradient) + NORM * len(reply.norms) + NORM
        return reply

    def finish(self, norm2: float, /) -> None:
        """One number more."""
        self.up += HEADER + NORM
        self.top.finish(norm2)


def message(buffer: torch.Tensor) -> int:
    """The bytes of a tensor on its way."""
    return HEADER + buffer.numel() * buffer.element_size()
