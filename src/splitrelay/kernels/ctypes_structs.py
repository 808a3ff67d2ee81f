"""The C++ side's structures (native/net.h), field by field."""

from __future__ import annotations

import ctypes as c
from typing import Any

i32, i64, f32, f64, pointer = c.c_int32, c.c_int64, c.c_float, c.c_double, c.c_void_p


class TensorC(c.Structure):
    """One image."""

    _fields_ = [(name, i32) for name in ("C", "H", "W", "stride", "border", "size")]

    def row(self) -> int:
        """Floats from one row to the next."""
        return int((self.W + 2 * self.border) * self.stride)

    def inside(self) -> int:
        """Of the first pixel."""
        return int(self.border * (self.row() + self.stride))


class LayerC(c.Structure):
    """One pass over a layer, or over a convolution with what follows it."""

    _fields_ = [
        *[(name, i32) for name in ("kind", "kh", "kw", "sh", "sw", "ph", "pw", "relu", "pooled", "vectors")],
        *[(name, i32) for name in ("block", "corner", "number")],
        ("p", f32),
        *[(name, TensorC) for name in ("in_", "raw", "out")],
        *[(name, i64) for name in ("in_at", "out_at", "g_in_at", "g_out_at", "weight", "bias", "forward_weight")],
        *[(name, i64) for name in ("raw_at", "marks", "mask", "taps", "positions", "count")],
    ]


class SlotC(c.Structure):
    """One tensor of x."""

    _fields_ = [
        *[(name, i64) for name in ("flat", "packed", "packed_size")],
        *[(name, i32) for name in ("kind", "out", "C", "H", "W", "stride", "row")],
    ]


class NetC(c.Structure):
    """A stretch of layers with its buffers."""

    _fields_ = [
        *[(name, pointer) for name in ("layers", "slots", "arena", "marks", "positions", "found", "sums")],
        *[(name, pointer) for name in ("x", "g", "velocity", "start", "shift")],
        *[(name, i64) for name in ("packed_size", "flat_size", "arena_size", "marks_size", "positions_size")],
        *[(name, i64) for name in ("found_size", "sums_size", "batch")],
        *[(name, i32) for name in ("n_layers", "n_slots", "classes", "learns")],
        ("seal", c.c_uint64),
        *[(name, i32) for name in ("moved", "shifted")],
    ]


class ImagesC(c.Structure):
    """A set of images, and which of them."""

    _fields_ = [
        *[(name, pointer) for name in ("x", "y", "levels", "at", "top", "left", "flip")],
        *[(name, i64) for name in ("N", "chosen")],
        *[(name, i32) for name in ("C", "H", "W", "pad")],
    ]


class StepC(c.Structure):
    """One local step."""

    _fields_ = [*[(name, f32) for name in ("eta", "weight_decay", "momentum", "prox")], ("clip", f64)]


class NameC(c.Structure):
    """What names a visit's randomness: the words of the root seed, then round, client, occurrence."""

    _fields_ = [("root", pointer), *[(name, i64) for name in ("words", "r", "m", "i")]]


class VisitC(c.Structure):
    """One visit, or a half of one."""

    _fields_ = [
        *[(name, pointer) for name in ("images", "step", "name", "x", "shift", "out", "sizes")],
        *[(name, pointer) for name in ("labels", "norms", "losses")],
        *[(name, i64) for name in ("x_size", "labels_size", "norms_size")],
        ("loss", f64),
        *[(name, i32) for name in ("K", "dropout", "finite")],
    ]


def address(array: Any) -> int:
    """Where an array's numbers lie: as array.ctypes.data says, in less time."""
    try:
        return c.addressof(c.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.__array_interface__["data"][0])


SIZES = (
    c.sizeof(LayerC) + 1000 * c.sizeof(SlotC) + 10**6 * c.sizeof(NetC) + 10**9 * (c.sizeof(ImagesC) + c.sizeof(VisitC))
)
