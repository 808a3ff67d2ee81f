"""The layout of x as one flat vector: layer by layer, first the parameters, then the float buffers.

A cut is an index, a handover is a slice, and an average is one pass over x.

Every tensor starts at a multiple of 64 bytes. This is necessary for equal bits: a linear layer changes its last bits
if its input is not aligned, and whole and cut models would no longer agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import nn

from splitrelay.errors import InputError

ALIGNMENT = 64  # bytes
OTHER_MODEL = "The weights belong to another model."


@dataclass(frozen=True)
class Slot:
    """The position of one tensor in the flat vector. The name is torch's own name of the tensor."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int
    parameter: bool  # trained; False for buffers and frozen parameters

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
    """

    slots: tuple[Slot, ...]
    ends: tuple[int, ...]
    dtype: torch.dtype

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
        moved = (Slot(s.name, s.start - origin, s.shape, s.layer - first, s.parameter) for s in inside)
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
        for name in sorted(tensors.keys() - {slot.name for slot in self.slots}):
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
        return {slot.name: slot.view(x).clone(memory_format=torch.contiguous_format) for slot in self.slots}


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


def build_layout(net: nn.Sequential, dtype: torch.dtype = torch.float32) -> Layout:
    """Assign a position to every parameter and float buffer of the model."""
    step = ALIGNMENT // torch.empty((), dtype=dtype).element_size()
    slots: list[Slot] = []
    ends, position = [0], 0
    for layer, (name, module) in enumerate(net.named_children()):
        for inner, tensor, parameter in list_tensors(module):
            slots.append(Slot(f"{name}.{inner}", position, tuple(tensor.shape), layer, parameter))
            position += -(-tensor.numel() // step) * step
        ends.append(position)
    _check_no_shared_tensors(net)
    return Layout(tuple(slots), tuple(ends), dtype)


def list_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield (name, tensor, is it trained) of a layer: first the parameters, then the float buffers."""
    for name, parameter in module.named_parameters():
        yield name, parameter, parameter.requires_grad  # a frozen parameter is treated like a buffer
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer, False


def _check_no_shared_tensors(net: nn.Sequential) -> None:
    owners: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(parameter), name)
        if first != name:
            raise InputError(f"{first} and {name} share one tensor", hint="Give each layer a tensor of its own.")
