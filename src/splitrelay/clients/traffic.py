"""The inner seam, and the bytes that go over it: the same count whether the server is here or on another host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

import torch

HEADER = 64  # bytes before every buffer: what it is, of which visit and step, its shape
LABEL, NORM, LOSS = 4, 8, 8  # bytes of one label, of one squared norm, of a loss


@dataclass(frozen=True, eq=False)
class Reply:
    """What the server's half answers: the gradient at the cut, the squared norms of its own gradients, the loss.

    The loss travels as one float64, which holds every float32 exactly. Here it stays where it was computed until the
    visit is over: asking a device for it at every step would make the device wait.
    """

    gradient: torch.Tensor
    norms: Sequence[float]
    loss: SupportsFloat


class Top(Protocol):
    """The inner seam: the server's half during one visit, here or on another host.

    Steps come as k = 0, 1, 2, ... A step that comes again gets the same reply and changes nothing, so that a link may
    be lost at any moment; a step out of order is refused. The same holds for finish.
    """

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> Reply:
        """Forward and backward on smashed data. norm2 closes step k - 1: the client's part of the joint norm."""
        ...

    def finish(self, norm2: float, /) -> None:
        """Close the last step, and with it the visit."""
        ...

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """The model's outputs for smashed data, as in evaluation: nothing is drawn, nothing is learnt."""
        ...


class Overheard:
    """A top that counts what passes."""

    def __init__(self, top: Top) -> None:
        self.top, self.up, self.down = top, 0, 0

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> Reply:
        """Smashed data and labels up, the gradient at the cut down."""
        self.up += message(h) + LABEL * len(labels) + NORM
        reply = self.top.step(k, h, labels, norm2)
        self.down += message(reply.gradient) + NORM * len(reply.norms) + LOSS
        return reply

    def finish(self, norm2: float, /) -> None:
        """One number more."""
        self.up += HEADER + NORM
        self.top.finish(norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Passed on uncounted: a visit's cost is that of training, however often somebody looks."""
        return self.top.predict(h)


def shift_message(shift: torch.Tensor | None) -> int:
    """The bytes of SCAFFOLD's c - c_m on its way to a client: with the whole model whole, with its half cut like it.

    Nothing more comes back: the server has x^r and what the visit made of it, and finds the new c_m from them.
    """
    return 0 if shift is None else message(shift)


def message(buffer: torch.Tensor) -> int:
    """The bytes of a tensor on its way."""
    return HEADER + buffer.numel() * buffer.element_size()
