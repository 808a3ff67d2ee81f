"""Tensors to the wire's arrays and back: images lie channels last there, and arrive in fresh aligned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
DTYPES = {np.dtype("f4"): torch.float32, np.dtype("f8"): torch.float64, np.dtype("i4"): torch.int32}
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # channels last, channels first


def to_wire(h: torch.Tensor) -> Array:
    """The numbers in the order in which engines keep them; nothing is copied where they lie so already."""
    array: Array = (h.permute(LAST) if h.dim() == 4 else h).detach().contiguous().cpu().numpy()
    return array


def from_wire(array: Array) -> torch.Tensor:
    """A copy in memory that torch took: what comes from the wire is read-only, and not aligned as bits need it."""
    fresh = torch.empty(array.shape, dtype=DTYPES[array.dtype])
    fresh.numpy()[...] = array
    return fresh.permute(FIRST) if array.ndim == 4 else fresh


def on_wire(sample: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample as the wire has it."""
    return (sample[1], sample[2], sample[0]) if len(sample) == 3 else sample
