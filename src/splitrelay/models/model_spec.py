"""A model without weights: how to build its layers, its input shape, its default cut and its start x^0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models.dropout import TORCH_RNG_LOCK, check_hidden_randomness, use_named_dropout
from splitrelay.models.layout import Layout, build_layout
from splitrelay.randomness import Purpose, rng


@dataclass(frozen=True)
class ModelSpec:
    """The definition of a model.

    Attributes:
        build: Returns a new nn.Sequential.
        input_shape: The shape of one input, without the batch.
        cut: The default cut: the name of the client's last layer, or the number of its layers.
    """

    name: str
    build: Callable[[], nn.Sequential]
    input_shape: tuple[int, ...]
    cut: str | int

    def net(self) -> nn.Sequential:
        """Build the layers with named dropout. Torch's generator is in the same state afterwards."""
        with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]):
            net = self.build()
        if not isinstance(net, nn.Sequential) or len(net) == 0:
            raise InputError(f"model {self.name} must be an nn.Sequential of layers", value=type(net).__name__)
        return use_named_dropout(net)

    def layout(self, dtype: torch.dtype = torch.float32) -> Layout:
        """Return the position of every tensor in x."""
        return self._structure.layouts[dtype]

    def x0(self, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the start x^0: torch's own initialization of each layer, drawn in float32."""
        with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]):  # the only place that seeds torch
            torch.manual_seed(int(rng(seed, Purpose.INIT).integers(2**63)))  # noqa: TID251
            net = self.net()
        return self.layout(dtype).pack(net.state_dict())

    def layers(self) -> list[str]:
        """Return the names of the layers. The model can be cut after each of them but the last."""
        return list(self._structure.layers)

    @cached_property
    def _structure(self) -> Structure:
        """Build and check the model only once: to build a large model takes longer than many steps of a small one."""
        net = self.net()
        check_hidden_randomness(net, self.input_shape)
        names = tuple(name for name, _ in net.named_children())
        return Structure(names, {dtype: build_layout(net, dtype) for dtype in (torch.float32, torch.float64)})


@dataclass(frozen=True)
class Structure:
    """The names of the layers and the layout for each dtype. They are the same for every net of a ModelSpec."""

    layers: tuple[str, ...]
    layouts: Mapping[torch.dtype, Layout]


def find_cut_index(model_spec: ModelSpec, cut: str | int | None) -> int:
    """Return the number of layers of the client half.

    Args:
        model_spec: The model.
        cut: The name of the client's last layer, the number of its layers (also as text), or None for the default.
            Torch names layers "0", "1", ... if the user gives no names. Digits always mean the number of layers, so
            the cut after layer "0" is cut=1.
    """
    layers = model_spec.layers()
    cut = model_spec.cut if cut is None else cut
    if isinstance(cut, str) and not cut.lstrip("-").isdigit():
        if cut not in layers:
            raise UnknownName(f"layer of {model_spec.name}", cut, layers)
        cut = layers.index(cut) + 1
    if not 1 <= int(cut) <= len(layers) - 1:
        limit = f"1 <= cut <= {len(layers) - 1}, so that both halves have a layer"
        raise OutOfRange(f"cut of {model_spec.name}", limit=limit, value=int(cut))
    return int(cut)
