"""The cost of each layer and of each possible cut: shapes, parameters, FLOPs and bytes.

FLOPs are those of convolutions and matrix products, with a multiply-add as two, as torch's FlopCounterMode counts them.
Additions of biases and functions of single numbers do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from splitrelay.models.layer_checks import call_layer, make_zeros
from splitrelay.models.layers import list_trained
from splitrelay.models.model_spec import ModelSpec, find_cut_index
from splitrelay.models.tracing import Segment

FLOAT = 4  # bytes in a message


@dataclass(frozen=True)
class LayerRow:
    """One layer: its output shape, its trained parameters and its forward FLOPs for one sample.

    Attributes:
        frozen: The number of frozen parameters. They are not part of x and never travel.
        inside: The modules in this layer after which no cut is possible, such as those of a skip connection.
    """

    index: int
    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    frozen: int = 0
    inside: tuple[str, ...] = ()


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
        """The number of trained parameters."""
        return sum(row.parameters for row in self.layers)

    @property
    def frozen(self) -> int:
        """The number of frozen parameters."""
        return sum(row.frozen for row in self.layers)

    @property
    def flops(self) -> int:
        """Forward FLOPs for one image. Forward and backward together need about three times as many."""
        return sum(row.flops for row in self.layers)


def summarize_model(model_spec: ModelSpec, batch: int = 20) -> Summary:
    """Measure every layer with one sample of zeros, and compute the cost of every cut for this batch size."""
    layers = tuple(_measure_layers(model_spec))
    default = find_cut_index(model_spec, None) if len(layers) > 1 else 0
    return Summary(layers, tuple(_describe_cut(layers, j, j == default, batch) for j in range(1, len(layers))))


@torch.no_grad()
def _measure_layers(model_spec: ModelSpec) -> list[LayerRow]:
    net = model_spec.net().eval()
    plans = model_spec.trace.segments if model_spec.trace else (None,) * len(net)
    h, rows = make_zeros(model_spec.inputs, 1), []
    for index, ((name, layer), plan) in enumerate(zip(net.named_children(), plans, strict=True), 1):
        with FlopCounterMode(display=False) as counter:
            h = call_layer(layer, h)
        trained = sum(parameter.numel() for _, parameter in list_trained(layer))
        frozen = sum(parameter.numel() for parameter in layer.parameters()) - trained
        kind, shape = _describe_kind(layer), tuple(h.shape[1:])
        inside = plan.inside if plan else ()
        rows.append(LayerRow(index, name, kind, shape, trained, counter.get_total_flops(), frozen, inside))
    return rows


def _describe_kind(layer: nn.Module) -> str:
    """Return the type of a layer, or the types of the modules that a part of a traced module calls."""
    if not isinstance(layer, Segment):
        return type(layer).__name__
    kinds = list(dict.fromkeys(type(module).__name__ for module in layer.called))
    return "+".join(kinds[:3]) + ("+..." if len(kinds) > 3 else "") if kinds else "function"


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
