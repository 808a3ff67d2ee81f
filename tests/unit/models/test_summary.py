"""FLOPs of layers, composite layers included, against numbers worked out by hand."""

import torch
from torch import nn

from splitrelay.models.model_spec import ModelSpec
from splitrelay.models.summary import summarize_model


class Residual(nn.Module):
    """A block with a matrix product that no single layer of torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.inner(h) + h @ torch.ones(64, 64)


def make_net() -> nn.Sequential:
    block = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, groups=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    return nn.Sequential(block, nn.Flatten(), Residual(), nn.Linear(64, 10))


def test_flops_of_composite_layers_are_counted() -> None:
    summary = summarize_model(ModelSpec("own", make_net, (1, 8, 8), 1))
    block = 2 * 9 * 4 * 64 + 2 * 4 * 64
    residual = 2 * 64 * 32 + 2 * 32 * 64 + 2 * 64 * 64
    assert [row.flops for row in summary.layers] == [block, 0, residual, 2 * 64 * 10]
    assert summary.cuts[0].flops_share == block / (block + residual + 2 * 64 * 10)
