"""The fast engine's local steps, whole or cut: one call into the kernels per visit, or a few per step at a cut."""

from __future__ import annotations

import ctypes as c
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from splitrelay.algorithms.base import Step, Visit
from splitrelay.errors import Diverged, InputError, WorkError
from splitrelay.kernels.batches import Draw, Table, refuse_labels
from splitrelay.kernels.ctypes_structs import StepC, VisitC, address
from splitrelay.kernels.faults import check_call
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.seeded_draws import Integers, root
from splitrelay.kernels.workspace import Floats, Workspace, get_aligned
from splitrelay.randomness import Purpose

CALMER = "Lower eta, or set clip."


@dataclass(frozen=True, eq=False)
class Reply:
    """What the server's half answers: the gradient at the cut, the squared norms of its own gradients, the loss."""

    gradient: Floats
    norms: Sequence[float]
    loss: float


class Top(Protocol):
    """The inner seam, on arrays: the server's half during one visit, here or on another host.

    As in clients.traffic: a step that comes again gets the same reply and changes nothing; one out of order is refused.
    """

    def step(self, k: int, h: Floats, labels: Integers, norm2: float, /) -> Reply:
        """Forward and backward on smashed data. norm2 closes step k - 1: the client's part of the joint norm."""
        ...

    def finish(self, norm2: float, /) -> None:
        """Close the last step, and with it the visit."""
        ...

    def predict(self, h: Floats, /) -> Floats:
        """The model's outputs for smashed data, as in evaluation: nothing is drawn, nothing is learnt."""
        ...


class Descent:
    """One visit on one stretch of layers: from the start of the visit, step by step, in place."""

    def __init__(self, work: Workspace, visit: Visit[Floats], seed: int) -> None:
        step, known = visit.step, root(seed)
        x, shift = work.fitting(visit.x), None if step.shift is None else work.fitting(step.shift)
        name, setting = known.name(visit.r, visit.m, visit.i), settings(step)
        self.work, self.step, self.kept = work, step, (known, name, setting, x, shift)
        self.visit = VisitC(
            step=c.addressof(setting), name=c.addressof(name), x=address(x), K=visit.K, dropout=Purpose.DROPOUT,
            shift=None if shift is None else address(shift), labels=work.labels_at, norms=work.norms_at,
            x_size=work.size, labels_size=work.batch, norms_size=len(work.norms),
        )  # fmt: skip
        self.at = c.addressof(self.visit)

    def begin(self) -> None:
        """x goes to where the kernels want it; a visit in one call does so itself."""
        check_call(self.work.kernels.begin_visit(self.work.at, self.at))

    def norms(self) -> list[float]:
        """The squared norm of each tensor's gradient, from the input on; nothing where nothing is clipped."""
        return self.work.norms.tolist() if self.step.clip is not None else []

    def move(self, norm2: float) -> None:
        """Apply the step, where norm2 is the squared norm of the whole model's gradient."""
        check_call(self.work.kernels.apply(self.work.at, self.at, norm2))


def settings(step: Step[Floats]) -> StepC:
    """A step as the kernels read it."""
    eta: Any = step.eta
    return StepC(eta, step.weight_decay, step.momentum, step.prox, -1.0 if step.clip is None else step.clip)


def descend(descent: Descent, table: Table, draw: Draw) -> tuple[list[float], tuple[Floats, bool]]:
    """K local steps of the whole model in one call: the losses, up to one that is no number; x, and is it finite."""
    work, visit, K = descent.work, descent.visit, len(draw.sizes)
    chosen, kept = table.chosen(draw)
    steps, x = work.steps_of(draw.sizes), np.empty(work.size, np.float32)
    visit.images, visit.sizes, visit.K = c.addressof(chosen), steps.sizes_at, K
    visit.losses, visit.out = steps.losses_at, address(x)
    done = work.kernels.visit(work.at, descent.at)
    del kept
    check_call(done)
    return steps.losses[:done].tolist(), (x, bool(visit.finite))


class Bottom:
    """The client's half of one visit."""

    def __init__(self, descent: Descent, table: Table, draw: Draw) -> None:
        self.descent, self.draw, self.labels = descent, draw, table.y[draw.at]
        self.chosen, self.kept = table.chosen(draw)
        self.sizes = np.array(draw.sizes, np.int32)
        descent.visit.images, descent.visit.sizes = c.addressof(self.chosen), self.sizes.ctypes.data
        descent.visit.K = len(self.sizes)
        descent.begin()
        self.shape, self.flat = smashed(descent.work.plan, descent.work.last)
        self.start = self.k = 0

    def forward(self, k: int) -> tuple[Floats, Integers]:
        """The smashed data of step k, and the labels."""
        work, n, start = self.descent.work, self.draw.sizes[k], self.start
        h = np.empty((n, *self.shape), np.float32)
        check_call(work.kernels.bottom_forward(work.at, self.descent.at, k, start, self.flat, address(h), h.size))
        self.start, self.k = start + n, k
        return channels_last(h), self.labels[start : start + n]

    def backward(self, gradient: Floats) -> None:
        """The client's own gradient, from that at the cut."""
        work = self.descent.work
        if work.weighty:  # layers without parameters have nothing to learn
            g = in_memory(gradient)
            if g.shape != (self.draw.sizes[self.k], *self.shape):
                raise InputError("a gradient of another cut", value=g.shape[1:], limit=self.shape)
            check_call(work.kernels.bottom_backward(work.at, self.descent.at, len(g), address(g), g.size, self.flat))


def descend_cut(bottom: Bottom, top: Top) -> list[float]:
    """K local steps of the client's half against the server's (Algorithm 4); the loss of each."""
    losses, own, descent = [], 0.0, bottom.descent
    for k in range(len(bottom.draw.sizes)):
        h, labels = bottom.forward(k)
        reply = top.step(k, h, labels, own)
        bottom.backward(reply.gradient)
        own = continued(0.0, descent.norms())
        descent.move(own if descent.step.per_half else continued(own, reply.norms))
        losses.append(reply.loss)
    top.finish(own)
    return losses


class TopHalf:
    """The server's half of one visit (Algorithm 3). Its update waits for the client's part of the norm.

    With `later` the gradient of its own linear layers waits for the update, where no norm of it is part of the answer.
    """

    def __init__(self, descent: Descent, later: bool = False) -> None:
        self.descent, self.later = descent, later and descent.step.clip is None
        self.owed = 0  # images of the step whose own gradient is still to be made
        self.shape, self.flat = smashed(descent.work.plan, descent.work.first)
        descent.begin()
        self.k, self.closed = -1, False
        self.reply: Reply | None = None  # to step k, the last one: it may have been lost on its way
        self.norms: Sequence[float] | None = None  # of a step that is not yet applied

    def step(self, k: int, h: Floats, labels: Integers, norm2: float, /) -> Reply:
        """Apply step k - 1, then forward and backward on h: the gradient at the cut is taken at the old x_s."""
        if k == self.k and self.reply is not None:
            return self.reply
        if k != self.k + 1 or self.closed:
            again = [] if self.reply is None else [f"step {self.k} again"]
            allowed = again + ([] if self.closed else [f"step {self.k + 1}"])
            raise WorkError("a step of this visit came out of order", limit=" or ".join(allowed) or "none", value=k)
        h, labels = self._fitting(h), np.ascontiguousarray(labels, np.int64)
        if labels.shape != (len(h),) or not 0 < len(h) <= self.descent.work.batch:
            limit = f"equal numbers from 1 to {self.descent.work.batch}"
            raise InputError("a batch and its labels", value=f"{len(h)} and {labels.shape}", limit=limit)
        refuse_labels(labels, self.descent.work.plan.classes)
        self._apply(norm2)
        self.reply = self._answered(k, h, labels)
        self.k = k
        return self.reply

    def finish(self, norm2: float, /) -> None:
        """Apply the step that waits, if one does; no step comes after it."""
        self._apply(norm2)
        self.closed = True

    def predict(self, h: Floats, /) -> Floats:
        """The outputs of the half as it stands between two visits."""
        if self.norms is not None:
            raise WorkError("the server's half cannot be asked in the middle of a visit", hint="Finish it first.")
        work, h = self.descent.work, self._fitting(h)
        outputs = np.empty((len(h), work.plan.classes), np.float32)
        for b in range(0, len(h), work.batch):
            part, out = h[b : b + work.batch], outputs[b : b + work.batch]
            given = (part.ctypes.data, part.size, self.flat, out.ctypes.data, out.size)
            check_call(work.kernels.top_predict(work.at, len(part), *given))
        return outputs

    def _fitting(self, h: Floats) -> Floats:
        found = in_memory(h)
        if found.shape[1:] != self.shape:
            raise InputError("smashed data of another cut", value=found.shape[1:], limit=self.shape)
        return found

    def _answered(self, k: int, h: Floats, labels: Integers) -> Reply:
        work, n, g = self.descent.work, len(h), np.empty((len(h), *self.shape), np.float32)
        given = (address(h), h.size, self.flat, address(labels), address(g))
        check_call(work.kernels.top_step(work.at, self.descent.at, k, n, *given, int(self.later)))
        self.owed = n * self.later
        self.norms = self.descent.norms()
        return Reply(channels_last(g), self.norms, self.descent.visit.loss)

    def _apply(self, norm2: float) -> None:
        if self.owed:
            check_call(self.descent.work.kernels.top_learn(self.descent.work.at, self.owed))
        self.owed = 0
        if self.norms is not None:
            self.descent.move(continued(0.0 if self.descent.step.per_half else norm2, self.norms))
        self.norms = None


def smashed(plan: Plan, cut: int) -> tuple[tuple[int, ...], int]:
    """The shape in memory of one image's smashed data: (H, W, C), or a vector; and whether it is one."""
    C, H, W = plan.shapes[cut]
    return ((C * H * W,), 1) if plan.flat(cut) else ((H, W, C), 0)


def channels_last(h: Floats) -> Floats:
    """Images as torch names their axes, (n, C, H, W), lying as (n, H, W, C)."""
    return h.transpose(0, 3, 1, 2) if h.ndim == 4 else h


def in_memory(h: Floats) -> Floats:
    """What lies in memory, densely: (n, H, W, C) or (n, F)."""
    return get_aligned(np.ascontiguousarray(h.transpose(0, 2, 3, 1) if h.ndim == 4 else h, dtype=np.float32))


def continued(norm2: float, norms: Sequence[float]) -> float:
    """The joint squared norm, summed tensor by tensor from the input on, wherever the model is cut."""
    for square in norms:
        norm2 += square
    return norm2


def mean_loss(losses: Sequence[float], visit: Visit[Floats]) -> float:
    """The mean over the visit's steps. NaN or an infinite loss stops the run, with its name."""
    for k, loss in enumerate(losses):
        if not math.isfinite(loss):
            where = f"the loss of client {visit.m} became {loss} in round {visit.r}, step {k}, at eta={visit.step.eta}"
            raise Diverged(where, hint=CALMER)
    return math.fsum(losses) / len(losses)


def finite(found: tuple[Floats, bool], visit: Visit[Floats]) -> Floats:
    """x, unless the visit's last step overflowed: its loss was still a number, the next client's would not be."""
    if not found[1]:
        where = f"the model of client {visit.m} overflowed in round {visit.r}, last step, at eta={visit.step.eta}"
        raise Diverged(where, hint=CALMER)
    return found[0]
