"""Buffers of a range of layers. They belong to Python objects that outlive every call into the kernels."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange
from splitrelay.kernels.buffer_layout import LINE, LayoutBuilder, round_up
from splitrelay.kernels.ctypes_structs import Floats, LayerC, NetC, SlotC, VisitC, address, align, check_call, check_net
from splitrelay.kernels.library import load_library
from splitrelay.kernels.network_plan import BATCH, ROOM, Plan, get_brief

ALIGNED = 64  # bytes


def make_zeros(n: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return n zeros that start on a cache line."""
    item = np.dtype(dtype).itemsize
    raw = np.zeros(n * item + ALIGNED, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + n * item].view(dtype)


class Steps:
    """Buffers for the batch size and the loss of each step of a visit."""

    def __init__(self, K: int) -> None:
        self.sizes, self.losses = np.zeros(K, np.int32), np.zeros(K)
        self.sizes_at, self.losses_at = address(self.sizes), address(self.losses)


class Workspace:
    """The buffers of layers first, ..., last - 1 of a plan, for batches of up to `batch`; used by one thread at a time.

    trains: allocate gradients. input_gradient: also for the input, as at a cut.
    """

    def __init__(
        self, plan: Plan, first: int, last: int, batch: int, *, trains: bool = True, input_gradient: bool = False
    ) -> None:
        self.plan, self.first, self.last, self.batch = plan, first, last, batch
        if type(batch) is not int or not 1 <= batch <= BATCH:
            raise OutOfRange("the images of a batch", value=get_brief(batch), limit=f"an integer from 1 to {BATCH}")
        if not 0 <= first < last <= len(plan.layers):
            limit = f"0 <= first < last <= {len(plan.layers)}"
            raise OutOfRange("the layers of a workspace", value=f"{first} to {last}", limit=limit)
        layout = LayoutBuilder(plan, first, last, batch, trains=trains, input_gradient=input_gradient).build()
        if max(layout.arena.size, layout.marks.size) > ROOM:
            raise OutOfRange("the activations of a batch", value=layout.arena.size, limit=f"<= {ROOM} numbers")
        self.size = plan.ends[last] - plan.ends[first]
        self.has_weights = bool(layout.slots)
        self.layers = (LayerC * len(layout.passes))(*layout.passes)
        self.slots = (SlotC * len(layout.slots))(*layout.slots)
        packed = round_up(layout.packed.size + LINE, 2 * LINE)
        self.arena, self.x = make_zeros(layout.arena.size + LINE), make_zeros(packed)
        self.g, self.velocity, self.start, self.shift = (make_zeros(packed if trains else 0) for _ in range(4))
        self.marks = make_zeros(layout.marks.size, np.int32)
        self.positions = np.concatenate([np.zeros(0, np.int32), *layout.tables])
        self.found = make_zeros(layout.found, np.int32)
        self.sums = np.zeros(max((one.raw.stride for one in layout.passes), default=0))
        self.norms, self.labels = np.zeros(len(layout.slots)), np.zeros(batch, np.int64)
        self.norms_at, self.labels_at = self.norms.ctypes.data, self.labels.ctypes.data
        self.steps = Steps(1)
        self.net = self._build_net(trains)
        self.at = c.addressof(self.net)
        self.kernels = load_library()
        check_net(self.kernels.check_net(self.at))

    def _build_net(self, trains: bool) -> NetC:
        net = NetC(packed_size=len(self.x), n_layers=len(self.layers), n_slots=len(self.slots))
        net.flat_size, net.batch, net.learns = self.size, self.batch, trains
        net.arena_size, net.marks_size, net.positions_size = len(self.arena), len(self.marks), len(self.positions)
        net.found_size, net.sums_size = len(self.found), len(self.sums)
        net.layers, net.slots = c.addressof(self.layers), c.addressof(self.slots)
        for name in ("arena", "marks", "positions", "found", "sums", "x", "g", "velocity", "start", "shift"):
            setattr(net, name, getattr(self, name).ctypes.data)
        net.classes = self.plan.classes
        return net

    def get_steps(self, sizes: Sequence[int]) -> Steps:
        """Return the buffers for the steps of a visit, with these batch sizes."""
        if len(sizes) > len(self.steps.sizes):
            self.steps = Steps(len(sizes))
        self.steps.sizes[: len(sizes)] = sizes
        return self.steps

    def load(self, x: Floats) -> None:
        """Copy x into the workspace, for evaluation."""
        x = self.check_vector(x)
        visit = VisitC(x=address(x), x_size=len(x))
        check_call(self.kernels.begin_visit(self.at, c.addressof(visit)))

    def share_x(self, other: Workspace) -> None:
        """Use the x of another workspace of the same layers, so that threads share one copy."""
        if (self.plan, self.first, self.last) != (other.plan, other.first, other.last):
            raise InputError("workspaces of different layers cannot share x")
        self.x = other.x
        self.net.x = other.net.x
        check_net(self.kernels.check_net(self.at))

    def check_vector(self, x: Floats) -> Floats:
        """Return x as the kernels can read it. Raise InputError if its length is not that of these layers."""
        if x.shape != (self.size,):
            raise InputError("a vector of another model", value=x.shape, limit=f"{self.size} numbers")
        return align(x)

    def save(self) -> tuple[Floats, bool]:
        """Return a copy of x in the layout of models.layout, and whether all of it is finite."""
        x = np.empty(self.size, dtype=np.float32)
        is_finite = self.kernels.save_x(self.at, address(x), len(x))
        check_call(is_finite)
        return x, bool(is_finite)

    def save_gradient(self) -> Floats:
        """Return the gradient of the last step, in the layout of x."""
        g = np.empty(self.size, dtype=np.float32)
        check_call(self.kernels.save_gradient(self.at, g.ctypes.data, len(g)))
        return g


def ensure_workspace(
    work: Workspace | None, plan: Plan, first: int, last: int, batch: int, *, input_gradient: bool = False
) -> Workspace:
    """Return the workspace if it is large enough for the batch, else a larger one."""
    if work is not None and batch <= work.batch:
        return work
    return Workspace(plan, first, last, batch, input_gradient=input_gradient)
