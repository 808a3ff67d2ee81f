"""How good x is on a set of images, slice by slice on as many threads as there are cores."""

from __future__ import annotations

import ctypes as c
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import fsum
from queue import SimpleQueue

import numpy as np

from splitrelay.kernels.plan import Plan
from splitrelay.kernels.samples import Integers, Pictures, Table
from splitrelay.kernels.workspace import Floats, Workspace

SLICE = 500  # images of one call: the sum of losses has one order
AT_ONCE = 20  # images that go through the layers together


@dataclass(frozen=True, eq=False)
class Tally:
    """The sum of losses over all images; right answers and images by class."""

    loss: float
    right: Integers
    seen: Integers


class Scorer:
    """Scores x on one set of images. Threads share x; each has its own activations."""

    def __init__(self, plan: Plan, images: Pictures, *, threads: int | None = None) -> None:
        self.plan, self.table = plan, Table(images, plan)
        number = threads or os.cpu_count() or 1
        self.works = [Workspace(plan, 0, len(plan.layers), AT_ONCE, learnt=False) for _ in range(number)]
        self.idle: SimpleQueue[Workspace] = SimpleQueue()
        for work in self.works:
            self.idle.put(work)
            work.net.x = self.works[0].x.ctypes.data
        self.threads = ThreadPoolExecutor(number)

    def score(self, x: Floats) -> Tally:
        """x on every image; the parts are added up in the order of the images, whoever was faster."""
        self.works[0].load(x)
        parts = list(self.threads.map(self._part, range(0, len(self.table), SLICE)))
        right, seen = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("right", "seen"))
        return Tally(fsum(part.loss for part in parts), right, seen)

    def _part(self, first: int) -> Tally:
        work, images = self.idle.get(), self.table.all()
        right, seen = np.zeros((2, self.plan.classes), np.int64)
        stop = min(first + SLICE, len(self.table))
        try:
            loss = work.kernels.evaluate(
                work.at, c.addressof(images), first, stop, AT_ONCE, right.ctypes.data, seen.ctypes.data
            )
        finally:
            self.idle.put(work)
        return Tally(loss, right, seen)
