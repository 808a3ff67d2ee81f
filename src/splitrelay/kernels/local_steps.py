"""Local steps of the fast engine: one call into the kernels per visit of a whole model, a few per step at a cut.

The rules on order, bits and threads are in engine/base.py. Smashed data and gradients are arrays as they lie in
memory: images as (n, H, W, C), vectors as (n, F).
"""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np

from splitrelay.algorithms.base import Step, UpdateRule, Visit
from splitrelay.engine.base import Reply
from splitrelay.errors import InputError
from splitrelay.kernels.batches import Draw, Table
from splitrelay.kernels.ctypes_structs import Floats, Integers, StepC, VisitC, address, align, check_call, check_labels
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.seeded_draws import get_root
from splitrelay.kernels.workspace import Workspace
from splitrelay.randomness import Purpose


class LocalTraining:
    """The local training of one visit on a range of layers. It starts at the visit's x and updates in place."""

    def __init__(self, work: Workspace, visit: Visit[Floats], seed: int) -> None:
        step, root = visit.step, get_root(seed)
        x, shift = work.check_vector(visit.x), None if step.shift is None else work.check_vector(step.shift)
        name, setting = root.name(visit.r, visit.m, visit.i), convert_step(step)
        self.work, self.step = work, step
        self._alive = (root, name, setting, x, shift)  # the kernels read them during the visit
        self.visit = VisitC(
            step=c.addressof(setting), name=c.addressof(name), x=address(x), K=visit.K, dropout=Purpose.DROPOUT,
            shift=None if shift is None else address(shift), labels=work.labels_at, norms=work.norms_at,
            x_size=work.size, labels_size=work.batch, norms_size=len(work.norms),
        )  # fmt: skip
        self.at = c.addressof(self.visit)

    def begin(self) -> None:
        """Copy x into the workspace. A visit that is one call does so itself."""
        check_call(self.work.kernels.begin_visit(self.work.at, self.at))

    def get_norms(self) -> list[float]:
        """Return the squared norm of each tensor's gradient, from the input on; empty without clipping."""
        return self.work.norms.tolist() if self.step.clip is not None else []

    def apply(self, norm2: float) -> None:
        """Update the weights. norm2 is the squared norm of the gradient of the whole model."""
        check_call(self.work.kernels.apply(self.work.at, self.at, norm2))


def convert_step(step: Step[Floats]) -> StepC:
    """Return a step as the kernels read it."""
    if step.rule != UpdateRule() or step.eta_server is not None:
        what = "the fast engine has SGD with one learning rate and without a state between visits"
        raise InputError(what, value=step.rule.kind, hint="Use engine=reference.")
    eta: Any = step.eta
    return StepC(eta, step.weight_decay, step.momentum, step.prox, -1.0 if step.clip is None else step.clip)


def train_whole(training: LocalTraining, table: Table, draw: Draw) -> tuple[list[float], Floats, bool]:
    """Take K local steps of the whole model in one call.

    Returns:
        The losses up to the first that is not a number, x, and whether x is finite.
    """
    work, visit, K = training.work, training.visit, len(draw.sizes)
    images, alive = table.choose(draw)
    steps, x = work.get_steps(draw.sizes), np.empty(work.size, np.float32)
    visit.images, visit.sizes, visit.K = c.addressof(images), steps.sizes_at, K
    visit.losses, visit.out = steps.losses_at, address(x)
    done = work.kernels.visit(work.at, training.at)
    del alive
    check_call(done)
    return steps.losses[:done].tolist(), x, bool(visit.finite)


class KernelClientHalf:
    """The client half of one visit (engine.base.ClientHalf)."""

    def __init__(self, training: LocalTraining, table: Table, draw: Draw) -> None:
        self.training, self.step, self.draw, self.labels = training, training.step, draw, table.y[draw.at]
        self.images, self._alive = table.choose(draw)
        self.sizes = np.array(draw.sizes, np.int32)
        training.visit.images, training.visit.sizes = c.addressof(self.images), self.sizes.ctypes.data
        training.visit.K = len(self.sizes)
        training.begin()
        self.shape, self.flat = get_smashed_shape(training.work.plan, training.work.last)
        self.start = self.k = 0

    def forward(self, k: int, /) -> tuple[Floats, Integers]:
        """Return the smashed data and the labels of step k."""
        work, n, start = self.training.work, self.draw.sizes[k], self.start
        h = np.empty((n, *self.shape), np.float32)
        check_call(work.kernels.bottom_forward(work.at, self.training.at, k, start, self.flat, address(h), h.size))
        self.start, self.k = start + n, k
        return h, self.labels[start : start + n]

    def backward(self, gradient: Floats, /) -> list[float]:
        """Compute the client's gradient; return its squared norms."""
        work = self.training.work
        if work.has_weights:
            g = align(gradient)
            if g.shape != (self.draw.sizes[self.k], *self.shape):
                raise InputError("a gradient of another cut", value=g.shape[1:], limit=self.shape)
            check_call(work.kernels.bottom_backward(work.at, self.training.at, len(g), address(g), g.size, self.flat))
        return self.training.get_norms()

    def apply(self, norm2: float, /) -> None:
        """Update the weights."""
        self.training.apply(norm2)

    def prepare_next(self) -> None:
        """Do nothing: all batches were drawn when the visit started."""


class KernelServerLayers:
    """The server's layers during one visit (engine.base.ServerLayers).

    With `defer_gradient` the gradients of the linear layers' weights are computed in `apply`, after the reply was
    sent. With clipping they are not deferred, because the reply contains their norms.
    """

    def __init__(self, training: LocalTraining, *, defer_gradient: bool = False) -> None:
        self.training, self.step = training, training.step
        self._defers = defer_gradient and training.step.clip is None
        self._deferred = 0  # images of the step whose weight gradient is still to be computed
        self.shape, self.flat = get_smashed_shape(training.work.plan, training.work.first)
        self.classes = training.work.plan.classes
        training.begin()

    def prepare(self, h: Floats, labels: Integers, /) -> tuple[Floats, Integers]:
        """Check the shape of the batch and the range of the labels."""
        work, h, labels = self.training.work, self._check_shape(h), np.ascontiguousarray(labels, np.int64)
        if labels.shape != (len(h),) or not 0 < len(h) <= work.batch:
            value, limit = f"{len(h)} and {labels.shape}", f"equal numbers from 1 to {work.batch}"
            raise InputError("a batch and its labels", value=value, limit=limit)
        check_labels(labels, self.classes)
        return h, labels

    def compute(self, k: int, h: Floats, labels: Integers, /) -> Reply[Floats]:
        """Compute forward and backward."""
        work, n, g = self.training.work, len(h), np.empty((len(h), *self.shape), np.float32)
        arguments = (address(h), h.size, self.flat, address(labels), address(g))
        check_call(work.kernels.top_step(work.at, self.training.at, k, n, *arguments, int(self._defers)))
        self._deferred = n * self._defers
        return Reply(g, self.training.get_norms(), self.training.visit.loss)

    def apply(self, norm2: float, /) -> None:
        """Compute the deferred gradients and update the weights."""
        if self._deferred:
            check_call(self.training.work.kernels.top_learn(self.training.work.at, self._deferred))
        self._deferred = 0
        self.training.apply(norm2)

    def predict(self, h: Floats, /) -> Floats:
        """Return the outputs as in evaluation."""
        work, h = self.training.work, self._check_shape(h)
        outputs = np.empty((len(h), work.plan.classes), np.float32)
        for b in range(0, len(h), work.batch):
            part, out = h[b : b + work.batch], outputs[b : b + work.batch]
            arguments = (part.ctypes.data, part.size, self.flat, out.ctypes.data, out.size)
            check_call(work.kernels.top_predict(work.at, len(part), *arguments))
        return outputs

    def _check_shape(self, h: Floats) -> Floats:
        h = align(h)
        if h.shape[1:] != self.shape:
            raise InputError("smashed data of another cut", value=h.shape[1:], limit=self.shape)
        return h


def get_smashed_shape(plan: Plan, cut: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of one image's smashed data, (H, W, C) or (F,), and 1 if it is a vector, else 0."""
    C, H, W = plan.shapes[cut]
    return ((C * H * W,), 1) if plan.flat(cut) else ((H, W, C), 0)
