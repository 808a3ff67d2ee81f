"""The interface to the C++ code: its structures (native/net.h), checks of arguments, and codes of errors (checks.h)."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange, SplitrelayError, WorkError

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

i32, i64, f32, f64, pointer = c.c_int32, c.c_int64, c.c_float, c.c_double, c.c_void_p


class TensorC(c.Structure):
    """One image."""

    _fields_ = [(name, i32) for name in ("C", "H", "W", "stride", "border", "size")]

    def row(self) -> int:
        """Return the floats from one row to the next."""
        return int((self.W + 2 * self.border) * self.stride)

    def inside(self) -> int:
        """Return the offset of the first pixel."""
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
    """A range of layers with its buffers."""

    _fields_ = [
        *[(name, pointer) for name in ("layers", "slots", "arena", "marks", "positions", "found", "sums")],
        *[(name, pointer) for name in ("x", "g", "velocity", "start", "shift")],
        *[(name, i64) for name in ("packed_size", "flat_size", "arena_size", "marks_size", "positions_size")],
        *[(name, i64) for name in ("found_size", "sums_size", "batch")],
        *[(name, i32) for name in ("n_layers", "n_slots", "classes", "learns")],
        ("seal", c.c_uint64),
        *[(name, i32) for name in ("has_velocity", "has_shift")],
    ]


class ImagesC(c.Structure):
    """A set of images, and which of them a visit uses."""

    _fields_ = [
        *[(name, pointer) for name in ("x", "y", "levels", "at", "top", "left", "flip")],
        *[(name, i64) for name in ("N", "chosen")],
        *[(name, i32) for name in ("C", "H", "W", "pad")],
        ("features", pointer),
    ]


class StepC(c.Structure):
    """One local step."""

    _fields_ = [*[(name, f32) for name in ("eta", "weight_decay", "momentum", "prox")], ("clip", f64)]


class NameC(c.Structure):
    """The name of a visit's random numbers: the words of the root seed, then round, client, occurrence."""

    _fields_ = [("root", pointer), *[(name, i64) for name in ("words", "r", "m", "i")]]


class VisitC(c.Structure):
    """One visit, or one half of it."""

    _fields_ = [
        *[(name, pointer) for name in ("images", "step", "name", "x", "shift", "out", "sizes")],
        *[(name, pointer) for name in ("labels", "norms", "losses")],
        *[(name, i64) for name in ("x_size", "labels_size", "norms_size")],
        ("loss", f64),
        *[(name, i32) for name in ("K", "dropout", "finite")],
    ]


def address(array: Any) -> int:
    """Return the address of an array's numbers, faster than array.ctypes.data."""
    try:
        return c.addressof(c.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.__array_interface__["data"][0])


def align(array: Floats) -> Floats:
    """Return the array as dense aligned float32. It is copied only if needed, such as a part of a message."""
    array = np.ascontiguousarray(array, dtype=np.float32)
    return array if array.flags.aligned else array.copy()


def check_labels(labels: Integers, classes: int) -> None:
    """Raise OutOfRange if a label is not a position in the net's outputs."""
    if len(labels) and np.maximum.reduce(labels.view(np.uint64)) >= classes:  # a negative number is large as uint64
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise OutOfRange("labels outside the net's classes", value=span, limit=f"0 <= y < {classes}")


SIZES = (
    c.sizeof(LayerC) + 1000 * c.sizeof(SlotC) + 10**6 * c.sizeof(NetC) + 10**9 * (c.sizeof(ImagesC) + c.sizeof(VisitC))
)

# Return codes of the kernels. They return a negative code instead of reading or writing outside their buffers.
NO_IMAGE, NO_NET, BAD_BATCH, BAD_LABEL, BAD_SIZE, NOT_FOR, NO_POINTER, BAD_SET, BAD_DRAW = range(-1, -10, -1)
CALLS = {
    NO_NET: "the kernels got a net that was not checked, or that changed since",
    BAD_BATCH: "the kernels got a batch that is empty, or larger than their buffers",
    BAD_LABEL: "the kernels got a label outside the net's classes",
    BAD_SIZE: "the kernels got a buffer of another size",
    NOT_FOR: "the kernels got a net that cannot do this: it has no gradients or no outputs",
    NO_POINTER: "the kernels got a null pointer",
    BAD_SET: "the kernels got images of another shape, or crops out of range",
    BAD_DRAW: "the kernels have nothing to draw from, or no room for what they draw",
}
FROM_OUTSIDE = (BAD_BATCH, BAD_LABEL, BAD_SIZE, BAD_SET)  # codes that data can cause
NETS = {
    10: "header", 11: "kind", 12: "tensor", 13: "chain", 14: "arena", 15: "weights", 16: "marks", 17: "window",
    18: "table", 19: "room", 20: "probability", 21: "slot",
}  # fmt: skip


def check_call(code: int) -> None:
    """Raise the error that an entry point of the kernels returned. A code from 0 up is a result, not an error."""
    if code < 0:
        raise get_error(code)


def get_error(code: int) -> Exception:
    """Return the error of a negative code: IndexError for an image, InputError for data, else WorkError."""
    if code == NO_IMAGE:
        return IndexError("a visit names an image that is not there")
    what = CALLS.get(code, "the kernels returned an unknown code")
    kind: type[SplitrelayError] = InputError if code in FROM_OUTSIDE else WorkError
    return kind(what, value=f"code {code}")


def check_net(code: int) -> None:
    """Raise the error that check_net returned: which part of a net is wrong, and the number of its layer or slot."""
    if code < 0:
        number, kind = divmod(-code, 100)
        part = NETS.get(kind, f"code {kind}")
        raise WorkError("the kernels refuse a net", value=f"{part} of pass {number}", limit="sizes within its buffers")
