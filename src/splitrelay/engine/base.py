"""The inner seam on tensors; the bytes that go over it are counted by splitrelay.engine.byte_counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

import torch

from splitrelay.engine.byte_counting import HEADER, LABEL, LOSS, NORM, Overheard, message, shift_message

__all__ = ["HEADER", "LABEL", "LOSS", "NORM", "Overheard", "Reply", "Top", "message", "shift_message"]


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
