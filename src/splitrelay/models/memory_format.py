"""One memory format wherever a model could be cut, so that every placement computes on the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

# Asked in the house's format, these answer in it, forth and back: no joint is needed between them.
PLAIN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d)


def joints(layers: Sequence[nn.Module]) -> list[bool]:
    """For each layer whether its output must be brought into format; behind the last one nothing follows."""
    inner = [not (type(below) in PLAIN and type(above) in PLAIN) for below, above in pairwise(layers)]
    return [*inner, False]


def joined(h: torch.Tensor) -> torch.Tensor:
    """h in the house's format, and its gradient too: what a cut here would hand over."""
    h = _settled(h)
    if h.requires_grad:
        h.register_hook(_settled)  # type: ignore[no-untyped-call]
    return h


def steady(h: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, aligned and in the house's format: what travels over a cut."""
    return _copy(h.detach())


def _settled(h: torch.Tensor) -> torch.Tensor:
    return h if h.stride() == _strides(h.shape) else _copy(h)


def _copy(h: torch.Tensor) -> torch.Tensor:
    return h.clone(memory_format=torch.channels_last if h.dim() == 4 else torch.contiguous_format)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Images lie channels last, all else row by row; exact also where a side of one would leave a choice."""
    order = (1, 3, 2, 0) if len(shape) == 4 else range(len(shape) - 1, -1, -1)
    strides, step = [0] * len(shape), 1
    for side in order:
        strides[side] = step
        step *= shape[side]
    return tuple(strides)
