"""Dropout whose masks have names: (root, round, client, occurrence, step, layer), the same whole or cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange

# Layers that draw numbers of their own, which nobody could name, repeat or resume.
STOCHASTIC = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU,
    nn.FractionalMaxPool2d, nn.FractionalMaxPool3d,
)  # fmt: skip


class Dropout(nn.Module):
    """Zeroes entries with probability p, scales the rest by 1/(1-p); `source` gives named uniform numbers."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise OutOfRange("dropout probability p", limit="0 <= p < 1", value=p)
        self.p = p
        self.source: Callable[[tuple[int, ...]], torch.Tensor] | None = None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """The identity when nothing is drawn, as in evaluation."""
        if not self.training or self.p == 0:
            return h
        if self.source is None:
            raise InputError("a dropout layer was run in training without the name of its mask")
        kept = self.source(tuple(h.shape)).to(h.device) >= self.p
        return h * kept / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def named_dropout(net: nn.Sequential) -> nn.Sequential:
    """The same layers with torch's plain Dropout replaced by ours; other stochastic layers are refused by name."""
    named = nn.Sequential()
    for name, layer in each_its_own(net):
        named.add_module(name, Dropout(layer.p) if type(layer) is nn.Dropout else layer)
    refuse_stochastic(named.named_modules())
    for module in named.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]  # the same numbers, and smashed data stay whole
    return named


def each_its_own(net: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """Every place of the sequence: torch's named_children leaves out a layer that stands in it a second time."""
    seen: set[int] = set()
    for name, layer in net._modules.items():
        assert layer is not None
        again = id(layer) in seen
        if again and layer.state_dict():
            raise InputError(f"layer '{name}' stands twice, with one set of weights", hint="Give each place its own.")
        seen.add(id(layer))
        yield name, deepcopy(layer) if again else layer


def refuse_stochastic(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise on a layer whose randomness has no name."""
    for name, module in modules:
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
            hint = "Give the layer a momentum, such as 0.1."
            raise InputError(f"layer '{name}' averages over all batches it ever saw, which x cannot carry", hint=hint)
        if isinstance(module, STOCHASTIC):
            kind = type(module).__name__
            hint = "Only nn.Dropout and splitrelay.models.dropout.Dropout, as layers of the sequence, have named masks."
            raise InputError(f"layer '{name}' ({kind}) draws numbers that have no name", hint=hint)
