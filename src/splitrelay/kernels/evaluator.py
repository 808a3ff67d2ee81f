"""Evaluate x on a set of images, with as many threads as there are cores."""

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

from splitrelay.engine.base import EvaluationSums
from splitrelay.kernels.batches import Images, Table
from splitrelay.kernels.ctypes_structs import Floats, Integers, address, align, check_call
from splitrelay.kernels.network_plan import Plan
from splitrelay.kernels.workspace import Workspace

AT_ONCE = 20  # images of one call
SLICE = 500  # images whose losses are added one after another; the sums of all slices are then added exactly
CALLS = SLICE // AT_ONCE
NICE = 3  # lower priority of evaluation: training comes first, and other programs are hardly preferred


class ImageEvaluator:
    """Evaluate x on one set of images. The threads, one of them the caller's, share x but not the activations."""

    def __init__(self, plan: Plan, images: Images, *, threads: int | None = None) -> None:
        self.plan, self.table = plan, Table(images, plan)
        number = threads or count_cores()
        self.works = [Workspace(plan, 0, len(plan.layers), AT_ONCE, trains=False) for _ in range(number)]
        for work in self.works[1:]:
            work.share_x(self.works[0])
        self.helpers = ThreadPoolExecutor(number - 1, initializer=lower_priority) if number > 1 else None
        self._lock = Lock()

    def evaluate(self, x: Floats) -> EvaluationSums:
        """Evaluate x on every image. An idle thread takes the next images; sums are in the order of the images."""
        with self._lock:
            self.works[0].load(x)
            evaluation = Evaluation(self.table, np.zeros(-(-len(self.table) // SLICE) * CALLS), c.c_int64())
            others = [self.helpers.submit(evaluation.run, work) for work in self.works[1:]] if self.helpers else []
            right, seen = sum((other.result() for other in others), start=evaluation.run(self.works[0]))
        loss = fsum(np.cumsum(evaluation.losses.reshape(-1, CALLS), axis=1)[:, -1])
        return EvaluationSums(loss, right.tolist(), seen.tolist())

    def predict(self, x: Floats) -> Floats:
        """Return the outputs of x for every image, (N, classes)."""
        outputs = np.empty((len(self.table), self.plan.classes), np.float32)
        with self._lock:
            work = self.works[0]
            work.load(x)
            for first in range(0, len(outputs), AT_ONCE):
                out = outputs[first : first + AT_ONCE]
                features = align(self.table.load(first, first + AT_ONCE))
                arguments = (address(features), features.size, 0, out.ctypes.data, out.size)
                check_call(work.kernels.top_predict(work.at, len(out), *arguments))
        return outputs


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation of all images: the loss of each call, and the number of the next call."""

    table: Table
    losses: npt.NDArray[np.float64]
    next: c.c_int64

    def run(self, work: Workspace) -> Integers:
        """Evaluate until no image is left; return the correct answers and the images of this thread by class."""
        counts = np.zeros((2, work.plan.classes), np.int64)
        done = work.kernels.evaluate(
            work.at, c.addressof(self.table.images), c.addressof(self.next), AT_ONCE, self.losses.ctypes.data,
            len(self.losses), counts[0].ctypes.data, counts[1].ctypes.data, counts.shape[1],
        )  # fmt: skip
        check_call(done)
        return counts


def count_cores() -> int:
    """Count the cores that this process may use. It is one if a sweep has pinned the process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lower_priority() -> None:
    """Let this thread use only the time that training leaves; with equal priority both would be slower."""
    if sys.platform == "linux":  # elsewhere the priority is that of the whole process
        os.setpriority(os.PRIO_PROCESS, get_native_id(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE))
