"""What each layer costs, and what each possible cut would send: shapes, parameters, FLOPs, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from splitrelay.models.model_spec import Blueprint, cut_index

FLOAT = 4  # bytes on the wire


@dataclass(frozen=True)
class LayerRow:
    """One layer, for one image: its output, its parameters, its forward FLOPs (a multiply-add counts two)."""

    index: int
    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    flops: int


@dataclass(frozen=True)
class CutRow:
    """A cut after one layer: the client's share of parameters and FLOPs, and the bytes of a step and of a handover.

    `cut=` takes the number of the client's layers, or the name of its last one; where torch made up the name, which is
    then a number too, only the number of layers counts.
    """

    layers: int  # of the client
    after: str
    usual: bool
    bottom_parameters: int
    bottom_share: float
    flops_share: float
    smashed: int  # floats of one image at the cut
    step_bytes: int  # of one batch, each way, headers and labels aside
    handover_bytes: int  # of the client's half


@dataclass(frozen=True)
class Summary:
    """A model layer by layer, and cut by cut."""

    layers: tuple[LayerRow, ...]
    cuts: tuple[CutRow, ...]

    @property
    def parameters(self) -> int:
        """All that is learnt."""
        return sum(row.parameters for row in self.layers)

    @property
    def flops(self) -> int:
        """Forward, for one image; forward and backward together take about three times as many."""
        return sum(row.flops for row in self.layers)


def summarise(blueprint: Blueprint, batch: int = 20) -> Summary:
    """Run one image of zeros through the layers and write down what they do."""
    layers = tuple(_layers(blueprint))
    usual = cut_index(blueprint, None) if len(layers) > 1 else 0
    return Summary(layers, tuple(_cut(layers, j, j == usual, batch) for j in range(1, len(layers))))


@torch.no_grad()
def _layers(blueprint: Blueprint) -> list[LayerRow]:
    h, rows = torch.zeros(1, *blueprint.input_shape), []
    for index, (name, layer) in enumerate(blueprint.net().eval().named_children(), 1):
        out: torch.Tensor = layer(h)
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        rows.append(
            LayerRow(index, name, type(layer).__name__, tuple(out.shape[1:]), parameters, _flops(layer, h, out))
        )
        h = out
    return rows


def _cut(layers: tuple[LayerRow, ...], j: int, usual: bool, batch: int) -> CutRow:
    bottom = sum(row.parameters for row in layers[:j])
    total, flops = sum(row.parameters for row in layers), sum(row.flops for row in layers)
    smashed = prod(layers[j - 1].shape)
    return CutRow(
        j,
        layers[j - 1].name,
        usual,
        bottom,
        bottom / total if total else 0.0,
        sum(row.flops for row in layers[:j]) / flops if flops else 0.0,
        smashed,
        FLOAT * batch * smashed,
        FLOAT * bottom,
    )


def _flops(layer: nn.Module, h: torch.Tensor, out: torch.Tensor) -> int:
    """Multiply-adds of convolutions and linear layers as two; one for each number that any other layer makes."""
    if isinstance(layer, nn.Conv2d):
        taps = layer.in_channels // layer.groups * prod(layer.kernel_size)
        return out.numel() * (2 * taps + (layer.bias is not None))
    if isinstance(layer, nn.Linear):
        return out.numel() * (2 * layer.in_features + (layer.bias is not None))
    if isinstance(layer, nn.Flatten):
        return 0
    return max(h.numel(), out.numel())
