"""The cost of each layer and of each possible cut: shapes, parameters, FLOPs and bytes.

FLOPs are those of convolutions and matrix products, with a multiply-add as two, as torch's FlopCounterMode counts them.
Additions of biases and functions of single numbers do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.utils.flop_counter import FlopCounterMode

from splitrelay.models.model_spec import ModelSpec, find_cut_index

FLOAT = 4  # bytes in a message


@dataclass(frozen=True)
class LayerRow:
    """One layer: its output shape, its parameters and its forward FLOPs for one image."""

    index: int
    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    flops: int


@dataclass(frozen=True)
class CutRow:
    """The cut after one layer: the client's share of the parameters and FLOPs, and the bytes that it sends."""

    layers: int  # of the client
    after: str  # the name of the client's last layer
    usual: bool  # whether it is the default cut of the model
    bottom_parameters: int
    bottom_share: float
    flops_share: float
    smashed: int  # floats of one image at the cut
    step_bytes: int  # of one batch in each direction, without headers and labels
    handover_bytes: int  # of the client half


@dataclass(frozen=True)
class Summary:
    """A model by layer and by cut."""

    layers: tuple[LayerRow, ...]
    cuts: tuple[CutRow, ...]

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        return sum(row.parameters for row in self.layers)

    @property
    def flops(self) -> int:
        """Forward FLOPs for one image. Forward and backward together need about three times as many."""
        return sum(row.flops for row in self.layers)


def summarize_model(model_spec: ModelSpec, batch: int = 20) -> Summary:
    """Measure every layer with one image of zeros, and compute the cost of every cut for this batch size."""
    layers = tuple(_measure_layers(model_spec))
    default = find_cut_index(model_spec, None) if len(layers) > 1 else 0
    return Summary(layers, tuple(_describe_cut(layers, j, j == default, batch) for j in range(1, len(layers))))


@torch.no_grad()
def _measure_layers(model_spec: ModelSpec) -> list[LayerRow]:
    h, rows = torch.zeros(1, *model_spec.input_shape), []
    for index, (name, layer) in enumerate(model_spec.net().eval().named_children(), 1):
        with FlopCounterMode(display=False) as counter:
            out: torch.Tensor = layer(h)
        shape, parameters = tuple(out.shape[1:]), sum(parameter.numel() for parameter in layer.parameters())
        rows.append(LayerRow(index, name, type(layer).__name__, shape, parameters, counter.get_total_flops()))
        h = out
    return rows


def _describe_cut(layers: tuple[LayerRow, ...], j: int, usual: bool, batch: int) -> CutRow:
    bottom = sum(row.parameters for row in layers[:j])
    total, flops = sum(row.parameters for row in layers), sum(row.flops for row in layers)
    smashed = prod(layers[j - 1].shape)
    return CutRow(
        layers=j,
        after=layers[j - 1].name,
        usual=usual,
        bottom_parameters=bottom,
        bottom_share=bottom / total if total else 0.0,
        flops_share=sum(row.flops for row in layers[:j]) / flops if flops else 0.0,
        smashed=smashed,
        step_bytes=FLOAT * batch * smashed,
        handover_bytes=FLOAT * bottom,
    )
