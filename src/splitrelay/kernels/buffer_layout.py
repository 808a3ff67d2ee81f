"""From a plan to the passes of a stretch of its layers: where every number lies, in which order sums are made.

Whatever decides bits (padding, blocks, orders) follows from the whole plan, so that a half computes as the whole does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from splitrelay.kernels.ctypes_structs import LayerC, SlotC, TensorC
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, Plan, ReLU

LANES = 8
LINE = 16  # floats: buffers start on cache lines, and have one to spare behind them for vectors that run over
NEAR = 24 * 1024  # bytes of images that stay in the nearest cache
KINDS = {Conv2d: 0, ReLU: 1, MaxPool2d: 2, Flatten: 3, Linear: 4, Dropout: 5}


@dataclass
class Space:
    """A buffer that is being measured out."""

    size: int = 0

    def take(self, n: int) -> int:
        """n places, on a boundary, with a line to spare."""
        start = self.size
        self.size += up(n, LINE) + LINE
        return start


@dataclass
class Geometry:
    """The passes of layers first, ..., last - 1 for batches of up to `batch`, and how much memory they need."""

    passes: list[LayerC] = field(default_factory=list)
    slots: list[SlotC] = field(default_factory=list)
    arena: Space = field(default_factory=Space)
    marks: Space = field(default_factory=Space)
    packed: Space = field(default_factory=Space)
    tables: list[npt.NDArray[np.int32]] = field(default_factory=list)
    found: int = 0


def up(n: int, step: int) -> int:
    """n rounded up."""
    return -(-n // step) * step


def tensor(plan: Plan, j: int) -> TensorC:
    """How one image lies before layer j: channels in whole vectors (a picture's few are not), zeros around it."""
    C, H, W = plan.shapes[j]
    first = next((k for k, layer in enumerate(plan.layers) if isinstance(layer, Conv2d | Linear)), len(plan.layers))
    stride = C if j <= first and C <= 4 else up(C, LANES)
    layer = plan.layers[j] if j < len(plan.layers) else None
    border = max(layer.padding) if isinstance(layer, Conv2d) else 0
    return TensorC(C, H, W, stride, border, up((H + 2 * border) * (W + 2 * border) * stride, LANES))


def pool_behind(plan: Plan, j: int) -> tuple[int, MaxPool2d] | None:
    """The pool that belongs to convolution j: directly behind it or behind its relu, with windows apart."""
    behind = j + 2 if j + 1 < len(plan.layers) and isinstance(plan.layers[j + 1], ReLU) else j + 1
    layer = plan.layers[behind] if behind < len(plan.layers) else None
    return (behind, layer) if isinstance(layer, MaxPool2d) and layer.apart else None


class Survey:
    """Measures out layers first, ..., last - 1. learnt: gradients are wanted; asked: at the input too, as at a cut."""

    def __init__(self, plan: Plan, first: int, last: int, batch: int, *, learnt: bool, asked: bool) -> None:
        self.plan, self.first, self.last, self.batch, self.learnt, self.asked = plan, first, last, batch, learnt, asked
        weighty = (j for j in range(first, last) if isinstance(plan.layers[j], Conv2d | Linear))
        self.lowest = next(weighty, last)  # below it nobody asks for a gradient
        self.found = Geometry()

    def geometry(self) -> Geometry:
        """All passes, from the input on."""
        j, here = self.first, tensor(self.plan, self.first)
        at, g_at = self._room(here), self._gradient_room(j, here)
        while j < self.last:
            one = LayerC(kind=KINDS[type(self.plan.layers[j])], in_=here, raw=here, bias=-1, in_at=at, g_in_at=g_at)
            j = self._fill(one, j, self.plan.layers[j])
            one.out = here = tensor(self.plan, j)
            in_place = self._in_place(one)
            one.out_at = at if in_place else self._room(here)
            one.g_out_at = g_at if in_place and g_at >= 0 else self._gradient_room(j, here)
            at, g_at = one.out_at, one.g_out_at
            self._finish(one)
            self.found.passes.append(one)
        return self.found

    def _room(self, here: TensorC) -> int:
        return self.found.arena.take(self.batch * here.size)

    def _wanted(self, j: int) -> bool:
        return self.learnt and (self.asked or j > self.lowest)

    def _gradient_room(self, j: int, here: TensorC) -> int:
        return self._room(here) if self._wanted(j) else -1

    def _in_place(self, one: LayerC) -> bool:
        """Layers that may overwrite what they read: nobody reads it again."""
        alone = one.kind in (KINDS[ReLU], KINDS[Flatten], KINDS[Dropout])
        return alone and bool(one.in_.border == one.out.border)

    def _fill(self, one: LayerC, j: int, layer: Layer) -> int:
        """What the layer's pass needs to know; the number of the first layer behind it."""
        one.number = j
        if isinstance(layer, Conv2d):
            return self._convolution(one, j, layer)
        if isinstance(layer, Linear):
            rows = up(layer.outputs, 4)
            one.weight = self._slot(j, 0, rows * one.in_.size, 2, one.in_, one.in_.size)
            one.bias = self._slot(j, 1, up(layer.outputs, LANES), 0, one.in_, 0) if layer.bias else -1
        if isinstance(layer, MaxPool2d):
            (one.kh, one.kw), (one.sh, one.sw), (one.ph, one.pw) = layer.kernel, layer.stride, layer.padding
        if isinstance(layer, Dropout):
            one.p = layer.p
            one.mask = self.found.arena.take(self.batch * one.in_.C * one.in_.H * one.in_.W) if self.learnt else -1
        return j + 1

    def _convolution(self, one: LayerC, j: int, layer: Conv2d) -> int:
        one.kh, one.kw = layer.kernel
        one.vectors = up(one.kw * one.in_.stride, LANES) // LANES
        one.corner = (one.in_.border - layer.padding[0]) * one.in_.row() + (
            one.in_.border - layer.padding[1]
        ) * one.in_.stride
        C, H, W = self.plan.shapes[j + 1]
        one.raw = TensorC(C, H, W, up(C, LANES), 0, H * W * up(C, LANES))
        row = LANES * one.vectors
        one.weight = self._slot(j, 0, C * one.kh * row, 1, one.in_, row)
        one.bias = self._slot(j, 1, up(C, LANES), 0, one.in_, 0) if layer.bias else -1
        one.forward_weight = self.found.arena.take(one.raw.stride * one.kh * one.kw * one.in_.C)
        behind, pool = j + 1, pool_behind(self.plan, j)
        one.block = _block(one, pool[1] if pool else None)
        if behind < self.last and isinstance(self.plan.layers[behind], ReLU):
            one.relu, behind = 1, behind + 1
        if pool is not None and pool[0] == behind < self.last:
            one.pooled, (one.sh, one.sw), behind = 1, pool[1].kernel, behind + 1
        else:
            one.sh, one.sw = (1, 1) if pool is None else pool[1].kernel
        return behind

    def _finish(self, one: LayerC) -> None:
        """What depends on the output's place too."""
        if one.kind == KINDS[MaxPool2d]:
            one.marks = self.found.marks.take(self.batch * one.out.C * one.out.H * one.out.W)
        if one.kind != KINDS[Conv2d]:
            return
        one.taps = self._table(_taps(one))
        if one.pooled:
            one.raw_at = self.found.arena.take(one.raw.size)
            one.marks = self.found.marks.take(self.batch * one.out.H * one.out.W * one.out.stride)
            one.count = one.out.H * one.out.W
        else:
            one.positions = self._table(_positions(one))
            one.count = one.raw.H * one.raw.W
        self.found.found = max(self.found.found, 2 * LANES * (one.block * one.count + LANES))

    def _table(self, table: npt.NDArray[np.int32]) -> int:
        self.found.tables.append(table)
        return sum(before.size for before in self.found.tables[:-1])

    def _slot(self, j: int, which: int, size: int, kind: int, here: TensorC, row: int) -> int:
        parameter = [p for p in self.plan.parameters if p.layer == j][which]
        packed = self.found.packed.take(size)
        C, H, W = (here.C, *parameter.shape[2:]) if kind == 1 else (here.C, here.H, here.W)
        flat = parameter.start - self.plan.ends[self.first]
        self.found.slots.append(SlotC(flat, packed, size, kind, parameter.shape[0], C, H, W, here.stride, row))
        return packed


def _block(one: LayerC, pool: MaxPool2d | None) -> int:
    """Images at a time: they, and eight lists of one gradient per window, are to stay in the nearest cache."""
    h, w = pool.kernel if pool else (1, 1)
    return max(1, NEAR // int(4 * one.in_.size + 8 * LANES * (one.raw.H // h) * (one.raw.W // w)))


def _positions(one: LayerC) -> npt.NDArray[np.int32]:
    """(offset of an output, offset of the input pixel under the kernel's corner), in the order of summation.

    Window by window of the pool that follows in the whole net, even if it runs on the other side of a cut; what no
    window covers comes last.
    """
    places = _window_order(one.raw.H, one.raw.W, one.sh, one.sw)
    y, x = places[:, 0], places[:, 1]
    outputs = one.out.inside() + y * one.out.row() + x * one.out.stride
    inputs = one.corner + y * one.in_.row() + x * one.in_.stride
    return np.stack([outputs, inputs], axis=1).astype(np.int32).ravel()


def _taps(one: LayerC) -> npt.NDArray[np.int32]:
    """Offsets of the inputs under a kernel: row by row, pixel by pixel, channel by channel."""
    rows, pixels = one.in_.row() * np.arange(one.kh), one.in_.stride * np.arange(one.kw)
    taps: npt.NDArray[np.int32] = (rows[:, None, None] + pixels[:, None] + np.arange(one.in_.C)).astype(np.int32)
    return taps.ravel()


def _window_order(H: int, W: int, h: int, w: int) -> npt.NDArray[np.int64]:
    """(y, x) of every pixel: window by window, row by row within each; then what no window covers."""
    tall, wide = H // h * h, W // w * w
    y, x = np.mgrid[:tall, :wide].reshape(2, tall // h, h, wide // w, w).swapaxes(2, 3).reshape(2, -1)
    places = np.mgrid[:H, :W].reshape(2, -1).T
    outside = (places[:, 0] >= tall) | (places[:, 1] >= wide)
    return np.concatenate([np.stack([y, x], axis=1), places[outside]])
