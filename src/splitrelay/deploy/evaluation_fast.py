"""The evaluator's part of a look on the fast engine: the same kernels as a simulation's, so the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum, prod

import numpy as np

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import Outfit, Tally, Vector
from splitrelay.deploy.backend_fast import derive_plan, shape_from
from splitrelay.kernels.batches import Table
from splitrelay.kernels.evaluator import AT_ONCE, SLICE
from splitrelay.kernels.faults import check_call
from splitrelay.kernels.local_steps import Descent
from splitrelay.kernels.network_plan import Flatten, Linear, Plan
from splitrelay.kernels.workspace import Workspace, zeros


class Looking:
    """A test set on its way through the client's half, and what comes back."""

    def __init__(self, outfit: Outfit, test: ImageSet) -> None:
        self.plan, cut = derive_plan(outfit.spec, test.shape, len(test.classes), outfit.pinned_plan)
        self.table, self.shape = Table(test, self.plan), shape_from(self.plan, cut).h
        self.work = Workspace(self.plan, 0, cut, AT_ONCE, learnt=False)
        self.loss = Loss(self.plan.classes)

    def through(self, bottom: Vector) -> Iterator[Vector]:
        """Smashed data, slice by slice, as the wire has them."""
        self.work.load(bottom)
        for first in range(0, len(self.table), SLICE):
            pixels = self.table.x[first : first + SLICE]
            yield np.concatenate([self._part(pixels[b : b + AT_ONCE]) for b in range(0, len(pixels), AT_ONCE)])

    def _part(self, pixels: Vector) -> Vector:
        channel = np.arange(self.plan.shape[0])[:, None, None]
        features = self.table.levels[channel, pixels]
        features = np.ascontiguousarray(features.transpose(0, 2, 3, 1), np.float32)  # channels last
        out = np.empty((len(pixels), prod(self.shape)), np.float32)
        given = (features.ctypes.data, features.size, 0, out.ctypes.data, out.size)
        check_call(self.work.kernels.top_predict(self.work.at, len(pixels), *given))
        if len(self.shape) == 1:
            return out
        height, width, channels = self.shape
        return out.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)

    def tally(self, outputs: Sequence[Vector]) -> Tally:
        """Losses are added up as in kernels.scoring: within a turn, within a slice, then all slices."""
        out, y, classes = np.concatenate(outputs), self.table.y, self.plan.classes
        rows = np.zeros(-(-len(y) // SLICE) * SLICE)
        rows[: len(y)] = [self.loss(*pair) for pair in zip(out, y, strict=True)]
        turns = np.cumsum(rows.reshape(-1, AT_ONCE), axis=1)[:, -1]
        slices = np.cumsum(turns.reshape(-1, SLICE // AT_ONCE), axis=1)[:, -1]
        right, seen = (np.bincount(some, minlength=classes) for some in (y[out.argmax(1) == y], y))
        return Tally(fsum(slices), right.tolist(), seen.tolist())


class Loss:
    """The kernels' loss of one image from its outputs: behind a half that changes nothing, W = I and b = 0."""

    def __init__(self, classes: int) -> None:
        plan = Plan((classes, 1, 1), (Flatten("flat"), Linear("same", classes)))
        self.work = Workspace(plan, 1, 2, 1, asked=True)
        x = np.zeros(self.work.size, np.float32)
        x[: classes * classes] = np.eye(classes, dtype=np.float32).ravel()
        still: Step[Vector] = Step(0.0)
        self.descent = Descent(self.work, Visit(0, 0, 0, x, still, 1), 0)
        self.descent.begin()
        self.out, self.label, self.gradient = zeros(classes), np.zeros(1, np.int64), zeros(classes)

    def __call__(self, out: Vector, label: int) -> float:
        self.out[:], self.label[0] = out, label
        h, labels, g = (array.ctypes.data for array in (self.out, self.label, self.gradient))
        given = (0, 1, h, self.out.size, 1, labels, g, 0)
        check_call(self.work.kernels.top_step(self.work.at, self.descent.at, *given))
        return float(self.descent.visit.loss)
