"""How good x is on a set of images, a few at a time on as many threads as there are cores."""

from __future__ import annotations

import ctypes as c
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import fsum
from threading import Lock, get_native_id

import numpy as np
import numpy.typing as npt

from splitrelay.kernels.batches import Pictures, Table
from splitrelay.kernels.faults import check_call
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.seeded_draws import Integers
from splitrelay.kernels.workspace import Floats, Workspace

AT_ONCE = 20  # images that go through the layers together
SLICE = 500  # images whose losses are added up one after another; these sums are then added exactly
TURNS = SLICE // AT_ONCE
LESS = 3  # steps of priority (nice): enough for training to be done first, and little where others want the cores too


@dataclass(frozen=True, eq=False)
class Tally:
    """The sum of losses over all images; right answers and images by class."""

    loss: float
    right: Integers
    seen: Integers


class Scorer:
    """Scores x on one set of images. Threads share x; each has its own activations. The caller's is one of them."""

    def __init__(self, plan: Plan, images: Pictures, *, threads: int | None = None) -> None:
        self.plan, self.table = plan, Table(images, plan)
        number = threads or cores()
        self.works = [Workspace(plan, 0, len(plan.layers), AT_ONCE, learnt=False) for _ in range(number)]
        for work in self.works[1:]:
            work.share_x(self.works[0])
        self.helpers = ThreadPoolExecutor(number - 1, initializer=step_back) if number > 1 else None
        self.turn = Lock()

    def score(self, x: Floats) -> Tally:
        """x on every image. Whoever is free takes the next few; sums are made in the order of the images."""
        with self.turn:
            self.works[0].load(x)
            look = Look(self.table, np.zeros(-(-len(self.table) // SLICE) * TURNS), c.c_int64())
            others = [] if self.helpers is None else [self.helpers.submit(look.share, work) for work in self.works[1:]]
            right, seen = sum((other.result() for other in others), start=look.share(self.works[0]))
        return Tally(fsum(np.cumsum(look.losses.reshape(-1, TURNS), axis=1)[:, -1]), right, seen)


@dataclass(frozen=True, eq=False)
class Look:
    """One look at all images: the losses of each turn, and whose turn is next."""

    table: Table
    losses: npt.NDArray[np.float64]
    next: c.c_int64

    def share(self, work: Workspace) -> Integers:
        """One thread's share, until no image is left: right answers and images, by class."""
        counts = np.zeros((2, work.plan.classes), np.int64)
        done = work.kernels.evaluate(
            work.at, c.addressof(self.table.images), c.addressof(self.next), AT_ONCE, self.losses.ctypes.data,
            len(self.losses), counts[0].ctypes.data, counts[1].ctypes.data, counts.shape[1],
        )  # fmt: skip
        check_call(done)
        return counts


def cores() -> int:
    """Those that this process may use: one, where a sweep has pinned it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def step_back() -> None:
    """A thread that helps to look takes what training leaves of a core: with equal rights, both would be late."""
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.setpriority(os.PRIO_PROCESS, get_native_id(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + LESS))
