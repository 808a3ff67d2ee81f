"""A stretch of layers bound to a private flat buffer: the whole net, its bottom half or its top half."""

from __future__ import annotations

import torch
from torch import nn

from splitrelay.models.dropout import Dropout
from splitrelay.models.layout import Layout
from splitrelay.models.memory_format import joined, joints
from splitrelay.models.model_spec import Blueprint
from splitrelay.models.pooling import quick


class Stretch:
    """Layers first, ..., last - 1 of a model. Weights and gradients are windows into `x` and `g`."""

    def __init__(
        self, blueprint: Blueprint, first: int, last: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        net = blueprint.net()
        self.layout: Layout = blueprint.layout(dtype).between(first, last)
        self.layers = nn.Sequential()
        for name, layer in list(net.named_children())[first:last]:
            self.layers.add_module(name, layer)
        self.layers.to(device, dtype)
        self.x = torch.zeros(self.layout.size, dtype=dtype, device=device)
        self.g = torch.zeros_like(self.x)
        self.mask = self.layout.mask(device)
        self.dropouts = [(first + j, layer) for j, layer in enumerate(self.layers) if isinstance(layer, Dropout)]
        self.joints = joints(list(self.layers))
        self.quick = [quick(layer) for layer in self.layers]
        self._bind()

    def _bind(self) -> None:
        """Every tensor of the layers becomes a window into x, every gradient one into g."""
        names = dict(self.layers.named_modules())
        for slot in self.layout.slots:
            owner, _, name = slot.name.rpartition(".")
            tensor = getattr(names[owner], name)
            if isinstance(tensor, nn.Parameter):
                tensor.data = slot.view(self.x)
                tensor.grad = slot.view(self.g) if slot.parameter else None
            else:
                names[owner]._buffers[name] = slot.view(self.x)

    def load(self, x: torch.Tensor) -> None:
        """Start from x, which stays untouched."""
        self.x.copy_(x)

    def forward(self, h: torch.Tensor, seen: list[torch.Tensor] | None = None) -> torch.Tensor:
        """h through the layers, from gradients of zero; what comes out of each is added to `seen`."""
        self.g.zero_()
        return self.through(h, seen)

    def through(self, h: torch.Tensor, seen: list[torch.Tensor] | None = None) -> torch.Tensor:
        """h through the layers."""
        for layer, joint in zip(self.layers, self.joints, strict=True):
            h = layer(h)
            if seen is not None:
                seen.append(h)
            h = joined(h) if joint else h
        return h

    @torch.no_grad()
    def predict(self, h: torch.Tensor) -> torch.Tensor:
        """h through the layers as in evaluation: no dropout, batch norm by its running values."""
        training = self.layers.training
        self.layers.eval()
        try:
            for layer, joint in zip(self.quick, self.joints, strict=True):
                h = joined(layer(h)) if joint else layer(h)
            return h
        finally:
            self.layers.train(training)

    def norms(self) -> list[float]:
        """The squared norm of each parameter's gradient, in float64, from the input on."""
        squares = [slot.view(self.g).double().square().sum() for slot in self.layout.slots if slot.parameter]
        return [float(square) for square in torch.stack(squares).tolist()] if squares else []
