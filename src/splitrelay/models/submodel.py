"""A range of layers that works on its own flat buffer: the whole model, the client half or the server half.

Memory format. Torch may return the same numbers in different memory formats, and some layers compute different last
bits for different formats. Whole and cut models must agree to the bit. Therefore every tensor at a possible cut has
one canonical format: channels last for images, row by row for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import nn

from splitrelay.errors import InputError, WorkError
from splitrelay.models.dropout import Dropout
from splitrelay.models.layer_checks import call_layer
from splitrelay.models.layer_draws import NamedDraws
from splitrelay.models.layout import Layout, Slot
from splitrelay.models.model_spec import ModelSpec

Layer = Callable[[torch.Tensor], torch.Tensor]
Features = torch.Tensor | tuple[torch.Tensor, ...]  # several tensors only in front of the first layer

# These layers keep the canonical format, forward and backward. Nothing must be converted between two of them.
KEEP_FORMAT = (nn.Conv2d, nn.ReLU, nn.MaxPool2d)


class SubModel:
    """The layers first, ..., last - 1 of a model.

    The weights and gradients of the layers are views of the flat vectors `x` and `g`. Integer buffers that training
    changes (counters) are copied from x when x is loaded, and back to x after every step.
    """

    def __init__(
        self, model_spec: ModelSpec, first: int, last: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        net = model_spec.net()
        self.layout: Layout = model_spec.layout(dtype).between(first, last)
        self.layers = net.part(first, last)
        self.layers.to(device, dtype)
        self.x = torch.zeros(self.layout.size, dtype=dtype, device=device)
        self.g = torch.zeros_like(self.x)
        self.mask = self.layout.mask(device)
        self.dropouts = [(first + j, layer) for j, layer in enumerate(self.layers) if isinstance(layer, Dropout)]
        self.conversions = find_conversions(list(self.layers))
        self.evaluation_layers = [fast_maxpool(layer) for layer in self.layers]
        self.first = first
        self.random = frozenset(j - first for j in model_spec.facts.random)
        self.overwriting = frozenset(j - first for j in model_spec.facts.overwriting)
        self.buffers: list[tuple[Slot, nn.Module, str]] = []
        self._bind()
        constants = self.layers.list_constants({slot.name for slot in self.layout.slots})
        self._constants = [(name, tensor, tensor._version) for _, name, tensor in constants]

    def _bind(self) -> None:
        """Make every tensor of the layers a view of x, and every gradient a view of g."""
        for slot in self.layout.slots:
            owner, name = self.layers.find_owner(slot.layer, slot.name)
            tensor = getattr(owner, name)
            if slot.parameter:
                tensor.data = slot.view(self.x)
                tensor.grad = slot.view(self.g)
            else:
                self.buffers.append((slot, owner, name))
                if not slot.is_integer:
                    owner._buffers[name] = slot.view(self.x)
        self._views = [owner._buffers[name] for _, owner, name in self.buffers]

    def load(self, x: torch.Tensor) -> None:
        """Copy x into the buffer.

        Raises:
            WorkError: A layer has changed a constant, so the visits since then depend on each other.
        """
        for name, tensor, version in self._constants:
            if tensor._version != version:
                what = f"training changed {name}, which is not part of x and is not saved"
                raise WorkError(what, hint="Register it as a float buffer that is saved (persistent=True).")
        self.x.copy_(x)
        for slot, owner, name in self.buffers:
            if slot.is_integer:
                buffer = owner._buffers[name]
                assert buffer is not None
                buffer.copy_(slot.view(self.x).round())

    def forward(
        self, h: Features, outputs: list[torch.Tensor] | None = None, get_seed: Callable[[int], int] | None = None
    ) -> torch.Tensor:
        """Set the gradients to zero and run the layers on h.

        Args:
            h: The features of the batch, or the smashed data.
            outputs: A list that gets the output of each layer.
            get_seed: Returns the seed of the random numbers of a layer, by its number in the whole model.
        """
        self.g.zero_()
        out = self.run_layers(h, outputs, get_seed)
        self._store_buffers()
        return out

    def run_layers(
        self, h: Features, outputs: list[torch.Tensor] | None = None, get_seed: Callable[[int], int] | None = None
    ) -> torch.Tensor:
        """Run the layers on h. Append the output of each layer to `outputs` if it is given."""
        for j, (layer, convert) in enumerate(zip(self.layers, self.conversions, strict=True)):
            h = _clone(h) if j in self.overwriting else h
            if j in self.random and self.layers.training:
                if get_seed is None:
                    raise InputError("a random layer ran in training mode without the name of its numbers")
                with NamedDraws(get_seed(self.first + j)):
                    out = call_layer(layer, h)
            else:
                out = call_layer(layer, h)
            if outputs is not None:
                outputs.append(out)
            h = to_canonical(out) if convert else out
        assert isinstance(h, torch.Tensor)
        return h

    @torch.no_grad()
    def _store_buffers(self) -> None:
        """Copy counters, and buffers that a layer has replaced by other tensors, to x."""
        for (slot, owner, name), view in zip(self.buffers, self._views, strict=True):
            buffer = owner._buffers[name]
            assert buffer is not None
            if slot.is_integer:
                slot.view(self.x).copy_(buffer)
            elif buffer is not view:
                slot.view(self.x).copy_(buffer)
                owner._buffers[name] = view

    @torch.no_grad()
    def predict(self, h: Features) -> torch.Tensor:
        """Run the layers on h in evaluation mode: no dropout, batch norm with its running values."""
        training = self.layers.training
        self.layers.eval()
        try:
            for j, (layer, convert) in enumerate(zip(self.evaluation_layers, self.conversions, strict=True)):
                out = call_layer(layer, _clone(h) if j in self.overwriting else h)
                h = to_canonical(out) if convert else out
            assert isinstance(h, torch.Tensor)
            return h
        finally:
            self.layers.train(training)

    def norms(self) -> list[torch.Tensor]:
        """Return the squared norm of each parameter's gradient in float64, in the order of the layers.

        The numbers stay on the device: to read one would make the host wait for all steps before it.
        """
        return [slot.view(self.g).double().square().sum() for slot in self.layout.slots if slot.parameter]


def count_samples(h: Features) -> int:
    """Return the number of samples of a batch."""
    return len(h[0]) if isinstance(h, tuple) else len(h)


def _clone(h: Features) -> Features:
    return tuple(each.clone() for each in h) if isinstance(h, tuple) else h.clone()


def find_conversions(layers: Sequence[nn.Module]) -> list[bool]:
    """Return for each layer whether its output must be converted to the canonical format."""
    inner = [not (type(below) in KEEP_FORMAT and type(above) in KEEP_FORMAT) for below, above in pairwise(layers)]
    return [*inner, False]  # nothing follows the last layer


def to_canonical(h: torch.Tensor) -> torch.Tensor:
    """Return h in the canonical format, and convert its gradient too. A cut at this place would send exactly this."""
    h = _convert(h)
    if h.requires_grad:
        h.register_hook(_convert)  # type: ignore[no-untyped-call]
    return h


def copy_to_canonical(h: torch.Tensor) -> torch.Tensor:
    """Return a detached, aligned copy of h in the canonical format: the tensor that is sent over a cut."""
    return _copy(h.detach())


def _convert(h: torch.Tensor) -> torch.Tensor:
    return h if h.stride() == _compute_canonical_strides(h.shape) else _copy(h)


def _copy(h: torch.Tensor) -> torch.Tensor:
    return h.clone(memory_format=torch.channels_last if h.dim() == 4 else torch.contiguous_format)


@lru_cache(maxsize=4096)  # the same shapes come again in every step
def _compute_canonical_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the canonical format. They are unique even if a side has length one."""
    order = (1, 3, 2, 0) if len(shape) == 4 else range(len(shape) - 1, -1, -1)
    strides, step = [0] * len(shape), 1
    for side in order:
        strides[side] = step
        step *= shape[side]
    return tuple(strides)


def fast_maxpool(layer: nn.Module) -> Layer:
    """Return a faster replacement for evaluation if the layer is a plain 2x2 max pooling, else the layer itself."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return layer
    sides = [side if isinstance(side, tuple) else (side, side) for side in (layer.kernel_size, layer.stride)]
    is_plain = (layer.padding, layer.dilation) in {(0, 1), ((0, 0), (1, 1))}
    return FastMaxPool(layer) if is_plain and sides == [(2, 2), (2, 2)] else layer


class FastMaxPool:
    """Take the maximum of each 2x2 window: first of two rows, then of two columns.

    The numbers are the same as torch's. With few channels it is several times as fast, because a row is contiguous in
    memory and the first maximum runs over long vectors.
    """

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.layer = layer

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """Pool a batch in channels-last format. Torch's own layer handles all other inputs."""
        if h.dim() != 4 or not h.is_contiguous(memory_format=torch.channels_last):
            out: torch.Tensor = self.layer(h)
            return out
        B, C, H, W = h.shape[0], h.shape[1], h.shape[2] // 2, h.shape[3] // 2
        even = h[:, :, : 2 * H, : 2 * W]  # drop an odd last row or column, as torch does
        pixels = even.permute(0, 2, 3, 1).view(B, H, 2, W, 2, C)
        rows = torch.maximum(pixels[:, :, 0], pixels[:, :, 1])
        return torch.maximum(rows[:, :, :, 0], rows[:, :, :, 1]).permute(0, 3, 1, 2)
