"""Lay out the buffers of a range of layers: the place of every number, and the order of all sums.

Everything that decides bits (padding, blocks, orders) follows from the whole plan, so that a half computes what the
whole model computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from splitrelay.kernels.ctypes_structs import LayerC, SlotC, TensorC
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, Plan, ReLU

LANES = 8
LINE = 16  # floats: buffers start on cache lines; one more line follows, because vectors may pass the end
NEAR = 24 * 1024  # bytes of images that stay in the L1 cache
KINDS = {Conv2d: 0, ReLU: 1, MaxPool2d: 2, Flatten: 3, Linear: 4, Dropout: 5}


@dataclass
class Space:
    """The size of a buffer, while parts are added to it."""

    size: int = 0

    def take(self, n: int) -> int:
        """Add n numbers, on a boundary, and one line; return their start."""
        start = self.size
        self.size += round_up(n, LINE) + LINE
        return start


@dataclass
class BufferLayout:
    """The passes of a range of layers, and the sizes of their buffers."""

    passes: list[LayerC] = field(default_factory=list)
    slots: list[SlotC] = field(default_factory=list)
    arena: Space = field(default_factory=Space)
    marks: Space = field(default_factory=Space)
    packed: Space = field(default_factory=Space)
    tables: list[npt.NDArray[np.int32]] = field(default_factory=list)
    found: int = 0


def round_up(n: int, step: int) -> int:
    """Round n up to a multiple of step."""
    return -(-n // step) * step


def get_tensor(plan: Plan, j: int) -> TensorC:
    """Return the layout of one image before layer j.

    Channels are padded to whole vectors, except the few of an input image. A border of zeros surrounds the image.
    """
    C, H, W = plan.shapes[j]
    first = next((k for k, layer in enumerate(plan.layers) if isinstance(layer, Conv2d | Linear)), len(plan.layers))
    stride = C if j <= first and C <= 4 else round_up(C, LANES)
    layer = plan.layers[j] if j < len(plan.layers) else None
    border = max(layer.padding) if isinstance(layer, Conv2d) else 0
    return TensorC(C, H, W, stride, border, round_up((H + 2 * border) * (W + 2 * border) * stride, LANES))


def find_pool(plan: Plan, j: int) -> tuple[int, MaxPool2d] | None:
    """Return the pool that is part of convolution j: directly behind it or its relu, without overlapping windows."""
    behind = j + 2 if j + 1 < len(plan.layers) and isinstance(plan.layers[j + 1], ReLU) else j + 1
    layer = plan.layers[behind] if behind < len(plan.layers) else None
    return (behind, layer) if isinstance(layer, MaxPool2d) and layer.apart else None


class LayoutBuilder:
    """Build the layout of layers first, ..., last - 1 for batches of up to `batch`.

    trains: gradients are needed. input_gradient: the gradient at the input is needed too, as at a cut.
    """

    def __init__(self, plan: Plan, first: int, last: int, batch: int, *, trains: bool, input_gradient: bool) -> None:
        self.plan, self.first, self.last, self.batch = plan, first, last, batch
        self.trains, self.input_gradient = trains, input_gradient
        with_weights = (j for j in range(first, last) if isinstance(plan.layers[j], Conv2d | Linear))
        self.lowest = next(with_weights, last)  # below it no gradient is needed
        self.layout = BufferLayout()

    def build(self) -> BufferLayout:
        """Lay out all passes, from the input on."""
        j, here = self.first, get_tensor(self.plan, self.first)
        at, g_at = self._add_images(here), self._add_gradient(j, here)
        while j < self.last:
            one = LayerC(kind=KINDS[type(self.plan.layers[j])], in_=here, raw=here, bias=-1, in_at=at, g_in_at=g_at)
            j = self._fill(one, j, self.plan.layers[j])
            one.out = here = get_tensor(self.plan, j)
            # A layer may overwrite its input if nothing reads it again.
            alone = one.kind in (KINDS[ReLU], KINDS[Flatten], KINDS[Dropout])
            in_place = alone and bool(one.in_.border == one.out.border)
            one.out_at = at if in_place else self._add_images(here)
            one.g_out_at = g_at if in_place and g_at >= 0 else self._add_gradient(j, here)
            at, g_at = one.out_at, one.g_out_at
            self._finish(one)
            self.layout.passes.append(one)
        return self.layout

    def _add_images(self, here: TensorC) -> int:
        return self.layout.arena.take(self.batch * here.size)

    def _add_gradient(self, j: int, here: TensorC) -> int:
        return self._add_images(here) if self.trains and (self.input_gradient or j > self.lowest) else -1

    def _fill(self, one: LayerC, j: int, layer: Layer) -> int:
        """Fill in the pass that starts with layer j; return the number of the first layer behind the pass."""
        one.number = j
        if isinstance(layer, Conv2d):
            return self._fill_convolution(one, j, layer)
        if isinstance(layer, Linear):
            rows = round_up(layer.outputs, 4)
            one.weight = self._add_slot(j, 0, rows * one.in_.size, 2, one.in_, one.in_.size)
            one.bias = self._add_slot(j, 1, round_up(layer.outputs, LANES), 0, one.in_, 0) if layer.bias else -1
        if isinstance(layer, MaxPool2d):
            (one.kh, one.kw), (one.sh, one.sw), (one.ph, one.pw) = layer.kernel, layer.stride, layer.padding
        if isinstance(layer, Dropout):
            one.p = layer.p
            one.mask = self.layout.arena.take(self.batch * one.in_.C * one.in_.H * one.in_.W) if self.trains else -1
        return j + 1

    def _fill_convolution(self, one: LayerC, j: int, layer: Conv2d) -> int:
        one.kh, one.kw = layer.kernel
        one.vectors = round_up(one.kw * one.in_.stride, LANES) // LANES
        one.corner = (one.in_.border - layer.padding[0]) * one.in_.row() + (
            one.in_.border - layer.padding[1]
        ) * one.in_.stride
        C, H, W = self.plan.shapes[j + 1]
        one.raw = TensorC(C, H, W, round_up(C, LANES), 0, H * W * round_up(C, LANES))
        row = LANES * one.vectors
        one.weight = self._add_slot(j, 0, C * one.kh * row, 1, one.in_, row)
        one.bias = self._add_slot(j, 1, round_up(C, LANES), 0, one.in_, 0) if layer.bias else -1
        one.forward_weight = self.layout.arena.take(one.raw.stride * one.kh * one.kw * one.in_.C)
        behind, pool = j + 1, find_pool(self.plan, j)
        # The images of a block and eight lists of one gradient per window fit into the L1 cache.
        h, w = pool[1].kernel if pool else (1, 1)
        one.block = max(1, NEAR // int(4 * one.in_.size + 8 * LANES * (one.raw.H // h) * (one.raw.W // w)))
        if behind < self.last and isinstance(self.plan.layers[behind], ReLU):
            one.relu, behind = 1, behind + 1
        if pool is not None and pool[0] == behind < self.last:
            one.pooled, (one.sh, one.sw), behind = 1, pool[1].kernel, behind + 1
        else:
            one.sh, one.sw = (1, 1) if pool is None else pool[1].kernel
        return behind

    def _finish(self, one: LayerC) -> None:
        """Fill in what depends on the place of the output too."""
        if one.kind == KINDS[MaxPool2d]:
            one.marks = self.layout.marks.take(self.batch * one.out.C * one.out.H * one.out.W)
        if one.kind != KINDS[Conv2d]:
            return
        one.taps = self._add_table(_get_taps(one))
        if one.pooled:
            one.raw_at = self.layout.arena.take(one.raw.size)
            one.marks = self.layout.marks.take(self.batch * one.out.H * one.out.W * one.out.stride)
            one.count = one.out.H * one.out.W
        else:
            one.positions = self._add_table(_get_positions(one))
            one.count = one.raw.H * one.raw.W
        self.layout.found = max(self.layout.found, 2 * LANES * (one.block * one.count + LANES))

    def _add_table(self, table: npt.NDArray[np.int32]) -> int:
        self.layout.tables.append(table)
        return sum(before.size for before in self.layout.tables[:-1])

    def _add_slot(self, j: int, which: int, size: int, kind: int, here: TensorC, row: int) -> int:
        parameter = [p for p in self.plan.parameters if p.layer == j][which]
        packed = self.layout.packed.take(size)
        C, H, W = (here.C, *parameter.shape[2:]) if kind == 1 else (here.C, here.H, here.W)
        flat = parameter.start - self.plan.ends[self.first]
        self.layout.slots.append(SlotC(flat, packed, size, kind, parameter.shape[0], C, H, W, here.stride, row))
        return packed


def _get_positions(one: LayerC) -> npt.NDArray[np.int32]:
    """Return (offset of an output, offset of the input pixel under the kernel's corner), in the order of summation.

    The order follows the windows of the next pool of the whole net, even if it runs on the other side of a cut. Pixels
    outside all windows come last.
    """
    places = _order_by_windows(one.raw.H, one.raw.W, one.sh, one.sw)
    y, x = places[:, 0], places[:, 1]
    outputs = one.out.inside() + y * one.out.row() + x * one.out.stride
    inputs = one.corner + y * one.in_.row() + x * one.in_.stride
    return np.stack([outputs, inputs], axis=1).astype(np.int32).ravel()


def _get_taps(one: LayerC) -> npt.NDArray[np.int32]:
    """Return the offsets of the inputs under a kernel: row by row, pixel by pixel, channel by channel."""
    rows, pixels = one.in_.row() * np.arange(one.kh), one.in_.stride * np.arange(one.kw)
    taps: npt.NDArray[np.int32] = (rows[:, None, None] + pixels[:, None] + np.arange(one.in_.C)).astype(np.int32)
    return taps.ravel()


def _order_by_windows(H: int, W: int, h: int, w: int) -> npt.NDArray[np.int64]:
    """Return (y, x) of every pixel: window by window, row by row within each; then pixels outside all windows."""
    tall, wide = H // h * h, W // w * w
    y, x = np.mgrid[:tall, :wide].reshape(2, tall // h, h, wide // w, w).swapaxes(2, 3).reshape(2, -1)
    places = np.mgrid[:H, :W].reshape(2, -1).T
    outside = (places[:, 0] >= tall) | (places[:, 1] >= wide)
    return np.concatenate([np.stack([y, x], axis=1), places[outside]])
