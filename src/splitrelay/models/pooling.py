"""Max-pooling by pairs, for evaluation: the same numbers as torch's, several times as fast where channels are few."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Layer = Callable[[torch.Tensor], torch.Tensor]


def quick(layer: nn.Module) -> Layer:
    """The layer as evaluation runs it: where it pools pairs of pixels, by pairs of rows, then of columns."""
    return PooledByPairs(layer) if type(layer) is nn.MaxPool2d and _pairs(layer) else layer


class PooledByPairs:
    """The largest of each 2x2. Rows lie in memory whole, channels last, so the first half runs over long vectors."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.layer = layer

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """Asked with one image, or in another format, torch's own does it."""
        if h.dim() != 4 or not h.is_contiguous(memory_format=torch.channels_last):
            out: torch.Tensor = self.layer(h)
            return out
        B, C, H, W = h.shape[0], h.shape[1], h.shape[2] // 2, h.shape[3] // 2
        whole = h[:, :, : 2 * H, : 2 * W]  # without an odd last row or column, as torch does
        pixels = whole.permute(0, 2, 3, 1).view(B, H, 2, W, 2, C)
        rows = torch.maximum(pixels[:, :, 0], pixels[:, :, 1])
        return torch.maximum(rows[:, :, :, 0], rows[:, :, :, 1]).permute(0, 3, 1, 2)


def _pairs(layer: nn.MaxPool2d) -> bool:
    """2x2 windows side by side, and nothing else asked for."""
    sides = [side if isinstance(side, tuple) else (side, side) for side in (layer.kernel_size, layer.stride)]
    none = (layer.padding, layer.dilation) in {(0, 1), ((0, 0), (1, 1))}
    return sides == [(2, 2), (2, 2)] and none and not layer.ceil_mode and not layer.return_indices
