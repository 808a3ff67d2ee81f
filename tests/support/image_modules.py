"""Modules of the zoo for grey images of 8x8 pixels and ten classes: model=tests.support.image_modules:NAME."""

import torch
from torch import nn

from tests.support.module_zoo import Counting, LoRALinear, Recurrent, ResNet, ViT


class Images(nn.Module):
    """A module of the zoo between a first layer for images and a last one for ten classes."""

    def __init__(self, inner: nn.Module, rows: int | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 1) if rows is None else nn.Linear(8, 8)
        self.inner, self.last, self.rows = inner, nn.Linear(5, 10), rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x if self.rows is None else x[:, 0, : self.rows])
        return self.last(self.inner(h))


class Row(nn.Module):
    """Twelve numbers of an image for a module on rows of a table."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = LoRALinear(64, 12), inner, nn.Linear(5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x.flatten(1)).tanh()))


def resnet() -> nn.Module:
    return Images(ResNet())


def vision_transformer() -> nn.Module:
    return Images(ViT(0.2))


def lstm() -> nn.Module:
    return Images(Recurrent("LSTM", num_layers=2, dropout=0.3), rows=6)


def counter() -> nn.Module:
    return Row(Counting())
