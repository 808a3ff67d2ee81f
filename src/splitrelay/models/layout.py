"""x as one flat vector: layer by layer, parameters then float buffers, every tensor on a 64-byte boundary.

So a cut is an index, a handover a slice, an average one pass. The boundary matters: a linear layer changes its last
bits when its input is not aligned, and then whole and cut would no longer agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import nn

from splitrelay.errors import InputError

BOUNDARY = 64  # bytes


@dataclass(frozen=True)
class Slot:
    """Where one tensor lives in the flat vector, under torch's own name for it."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int
    parameter: bool

    @property
    def stop(self) -> int:
        """The first position behind it."""
        return self.start + prod(self.shape)

    def view(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor itself, as a window into x. Convolution kernels lie channels last, which is faster."""
        flat = x[self.start : self.stop]
        if len(self.shape) != 4:
            return flat.view(self.shape)
        out, channels, height, width = self.shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Layout:
    """All slots of a model; `ends[j]` is where the first j layers end: ends[cut] is the length of the bottom half."""

    slots: tuple[Slot, ...]
    ends: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """The length of x, gaps included."""
        return self.ends[-1]

    @cached_property
    def parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(prod(slot.shape) for slot in self.slots if slot.parameter)

    def between(self, first: int, last: int) -> Layout:
        """The layout of the layers first, ..., last - 1 alone, starting at 0."""
        origin = self.ends[first]
        inside = (slot for slot in self.slots if first <= slot.layer < last)
        moved = (Slot(s.name, s.start - origin, s.shape, s.layer - first, s.parameter) for s in inside)
        return Layout(tuple(moved), tuple(end - origin for end in self.ends[first : last + 1]), self.dtype)

    def mask(self, device: torch.device | str = "cpu") -> torch.Tensor | None:
        """1 where a parameter is, 0 elsewhere; None where there is nothing but parameters (and zeros between them)."""
        if all(slot.parameter for slot in self.slots):
            return None
        mask = torch.zeros(self.size, dtype=self.dtype, device=device)
        for slot in self.slots:
            slot.view(mask).fill_(float(slot.parameter))
        return mask

    def pack(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """x from tensors under torch's names."""
        for name in sorted(tensors.keys() - {slot.name for slot in self.slots}):
            if tensors[name].is_floating_point():  # counters, as batch norm's, are left out
                raise InputError(f"the model holds no '{name}'", hint="The weights belong to another model.")
        x = torch.zeros(self.size, dtype=self.dtype)
        for slot in self.slots:
            slot.view(x).copy_(_matching(slot, tensors))
        return x

    def unpack(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies under torch's names, as plain torch loads them."""
        return {slot.name: slot.view(x).clone(memory_format=torch.contiguous_format) for slot in self.slots}


def lay_out(net: nn.Sequential, dtype: torch.dtype = torch.float32) -> Layout:
    """Give every parameter and float buffer of the net its place."""
    step = BOUNDARY // torch.empty((), dtype=dtype).element_size()
    slots: list[Slot] = []
    ends, position = [0], 0
    for layer, (name, module) in enumerate(net.named_children()):
        for inner, tensor, parameter in tensors_of(module):
            slots.append(Slot(f"{name}.{inner}", position, tuple(tensor.shape), layer, parameter))
            position += -(-tensor.numel() // step) * step
        ends.append(position)
    _refuse_ties(net)
    return Layout(tuple(slots), tuple(ends), dtype)


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, is it learnt) of a layer: parameters, then float buffers; counters are left out."""
    for name, parameter in module.named_parameters():
        yield name, parameter, parameter.requires_grad  # a frozen one is handed on like a buffer
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer, False


def _refuse_ties(net: nn.Sequential) -> None:
    owners: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(parameter), name)
        if first != name:
            raise InputError(f"{first} and {name} share one tensor", hint="Give each layer its own: x is one vector.")


def _matching(slot: Slot, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if slot.name not in tensors:
        raise InputError(f"the weights hold no '{slot.name}'", hint="They belong to another model.")
    tensor = tensors[slot.name]
    if tuple(tensor.shape) != slot.shape:
        hint = "They belong to another model."
        raise InputError(f"{slot.name} must have shape {slot.shape}", value=tuple(tensor.shape), hint=hint)
    return tensor
