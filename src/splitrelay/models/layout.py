"""The layout of x as one flat vector: layer by layer, first the parameters, then the buffers (see layers.py).

A cut is an index, a handover is a slice, and an average is one pass over x.

Every tensor starts at a multiple of 64 bytes. This is necessary for equal bits: a linear layer changes its last bits
if its input is not aligned, and whole and cut models would no longer agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import torch
from torch import nn

from splitrelay.errors import InputError
from splitrelay.models.layers import Layers

ALIGNMENT = 64  # bytes
OTHER_MODEL = "The weights belong to another model."


@dataclass(frozen=True)
class Slot:
    """The position of one tensor in the flat vector. The name is torch's own name of the tensor."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int
    parameter: bool  # trained; False for buffers
    is_integer: bool = False  # a counter: an integer buffer that training changes, stored as a float

    @property
    def stop(self) -> int:
        """The first position after the tensor."""
        return self.start + prod(self.shape)

    def view(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor as a view of x. Convolution kernels are stored channels last, which is faster."""
        flat = x[self.start : self.stop]
        if len(self.shape) != 4:
            return flat.view(self.shape)
        out, channels, height, width = self.shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Layout:
    """All slots of a model.

    Attributes:
        ends: ends[j] is the position at which the first j layers end. ends[cut] is the length of the client half.
        others: The names of tensors of the model that are not part of x, such as frozen parameters.
    """

    slots: tuple[Slot, ...]
    ends: tuple[int, ...]
    dtype: torch.dtype
    others: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def size(self) -> int:
        """The length of x, including the gaps between tensors."""
        return self.ends[-1]

    @cached_property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(prod(slot.shape) for slot in self.slots if slot.parameter)

    def between(self, first: int, last: int) -> Layout:
        """Return the layout of the layers first, ..., last - 1 only, starting at position 0."""
        origin = self.ends[first]
        inside = (slot for slot in self.slots if first <= slot.layer < last)
        moved = (replace(s, start=s.start - origin, layer=s.layer - first) for s in inside)
        return Layout(tuple(moved), tuple(end - origin for end in self.ends[first : last + 1]), self.dtype)

    def mask(self, device: torch.device | str = "cpu") -> torch.Tensor | None:
        """Return 1 for trained parameters and 0 for the rest, or None if every tensor is a trained parameter."""
        if all(slot.parameter for slot in self.slots):
            return None
        mask = torch.zeros(self.size, dtype=self.dtype, device=device)
        for slot in self.slots:
            slot.view(mask).fill_(float(slot.parameter))
        return mask

    def pack(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return x from tensors with torch's names. Raise InputError if names or shapes differ."""
        for name in sorted(tensors.keys() - {slot.name for slot in self.slots} - self.others):
            if tensors[name].is_floating_point():  # integer buffers, such as batch norm's counter, are not part of x
                raise InputError(f"the model has no tensor '{name}'", hint=OTHER_MODEL)
        x = torch.zeros(self.size, dtype=self.dtype)
        for slot in self.slots:
            if slot.name not in tensors:
                raise InputError(f"the weights have no tensor '{slot.name}'", hint=OTHER_MODEL)
            tensor = tensors[slot.name]
            if tuple(tensor.shape) != slot.shape:
                what = f"{slot.name} must have shape {slot.shape}"
                raise InputError(what, value=tuple(tensor.shape), hint=OTHER_MODEL)
            slot.view(x).copy_(tensor)
        return x

    def unpack(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return copies of all tensors with torch's names, ready for load_state_dict."""
        return {slot.name: _copy_tensor(slot, x) for slot in self.slots}


def _copy_tensor(slot: Slot, x: torch.Tensor) -> torch.Tensor:
    copy = slot.view(x).clone(memory_format=torch.contiguous_format)
    return copy.round().to(torch.int64) if slot.is_integer else copy


@dataclass(frozen=True)
class FlatCut:
    """The cut of a flat vector x = [client half; server half] at an index."""

    boundary: int

    def halves(self, x: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of both halves. A view would keep the other half in memory, for example in SplitFed V3."""
        return x[: self.boundary].clone(), x[self.boundary :].clone()

    def join(self, bottom: torch.Tensor, top: torch.Tensor, /) -> torch.Tensor:
        """Return a new vector of both halves."""
        return torch.cat([bottom, top])


def build_layout(net: Layers, dtype: torch.dtype = torch.float32, counters: Collection[str] = ()) -> Layout:
    """Assign a position to every tensor of x (see layers.py); `counters` are the integer buffers that belong to x."""
    step = ALIGNMENT // torch.empty((), dtype=dtype).element_size()
    slots: list[Slot] = []
    ends, position = [0] * (len(net) + 1), 0
    for layer, name, tensor in net.list_tensors(counters):
        if tensor.is_complex():
            hint = "Store the real and the imaginary part as two parameters."
            raise InputError(f"{name} has complex numbers, and x has real ones", hint=hint)
        is_integer = not tensor.is_floating_point()
        slots.append(Slot(name, position, tuple(tensor.shape), layer, isinstance(tensor, nn.Parameter), is_integer))
        position += -(-tensor.numel() // step) * step
        ends[layer + 1] = position
    for j in range(len(net)):
        ends[j + 1] = max(ends[j], ends[j + 1])  # a layer without tensors ends where the layer before it ends
    return Layout(tuple(slots), tuple(ends), dtype)
