"""What a model is before it has weights: its layers, its usual cut, its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models.dropout import named_dropout
from splitrelay.models.layout import Layout, lay_out
from splitrelay.models.randomness_check import GENERATOR, refuse_hidden_randomness
from splitrelay.randomness import Purpose, rng


@dataclass(frozen=True)
class Blueprint:
    """A function that builds a fresh nn.Sequential, the shape of one input, and the layer after which it is cut."""

    name: str
    build: Callable[[], nn.Sequential]
    input_shape: tuple[int, ...]
    cut: str | int

    def net(self) -> nn.Sequential:
        """The layers, with dropout by name; weights are whatever torch makes of them, its own generator left alone."""
        with GENERATOR, torch.random.fork_rng(devices=[]):
            net = self.build()
        if not isinstance(net, nn.Sequential) or len(net) == 0:
            raise InputError(f"model {self.name} must be an nn.Sequential of layers", value=type(net).__name__)
        return named_dropout(net)

    def layout(self, dtype: torch.dtype = torch.float32) -> Layout:
        """Where every tensor stands in x."""
        return self._anatomy.layouts[dtype]

    def x0(self, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The start x^0, by torch's own initialisation of each layer, drawn in float32."""
        return self.layout(dtype).pack(_seeded(self.net, seed).state_dict())

    def layers(self) -> list[str]:
        """The names at which it can be cut."""
        return list(self._anatomy.layers)

    @cached_property
    def _anatomy(self) -> Anatomy:
        """Looked up once: building a large net takes longer than many steps of a small one."""
        net = self.net()
        refuse_hidden_randomness(net, self.input_shape)
        names = tuple(name for name, _ in net.named_children())
        return Anatomy(names, {dtype: lay_out(net, dtype) for dtype in (torch.float32, torch.float64)})


@dataclass(frozen=True)
class Anatomy:
    """What stays the same from net to net: the layers' names, and where every tensor stands."""

    layers: tuple[str, ...]
    layouts: Mapping[torch.dtype, Layout]


def cut_index(blueprint: Blueprint, cut: str | int | None) -> int:
    """How many layers the client holds: the name of its last layer, their number, or the usual cut.

    A number is always the number of layers, also as text: where layers have no names of their own, torch calls the
    first one "0", and a cut after it is cut=1.
    """
    layers = blueprint.layers()
    cut = blueprint.cut if cut is None else cut
    if isinstance(cut, str) and not cut.lstrip("-").isdigit():
        if cut not in layers:
            raise UnknownName(f"layer of {blueprint.name}", cut, layers)
        cut = layers.index(cut) + 1
    if not 1 <= int(cut) <= len(layers) - 1:
        limit = f"1 <= cut <= {len(layers) - 1}, so that both sides have a layer"
        raise OutOfRange(f"cut of {blueprint.name}", limit=limit, value=int(cut))
    return int(cut)


def _seeded(build: Callable[[], nn.Sequential], seed: int) -> nn.Sequential:
    """The one place that seeds torch: inside fork_rng, to build a model."""
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng(seed, Purpose.INIT).integers(2**63)))  # noqa: TID251
        return build()
