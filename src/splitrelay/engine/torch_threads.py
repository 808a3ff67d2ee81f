"""The number of torch threads: limit it during a run, and measure which number is faster.

The bits of a result depend on the number of threads, so a run records it. A measurement may end differently next time.
Therefore `threads=0` is measured once, when a run starts, and a continued run keeps the recorded number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from threading import Lock
from typing import ClassVar

import torch

GAIN = 1.2  # several threads must be so many times faster than one
REPEATS = 7  # timings of each number of threads; their median counts, because on a busy machine several threads wait


class _Limits:
    """The limits of all runs in this process, the newest last, and the number of threads before the first of them."""

    lock, before = Lock(), 0
    active: ClassVar[list[tuple[object, int]]] = []


@contextmanager
def limit_torch_threads(threads: int = 1) -> Iterator[None]:
    """Let torch compute with so many threads, and restore its number of threads at the end.

    Cores are used by several engines, one thread each. If runs overlap in time, the newest limit applies, and the
    number before the first run is restored when the last of them ends.
    """
    own = (object(), threads)
    with _Limits.lock:
        if not _Limits.active:
            _Limits.before = torch.get_num_threads()
        _Limits.active.append(own)
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        with _Limits.lock:
            _Limits.active.remove(own)
            torch.set_num_threads(_Limits.active[-1][1] if _Limits.active else _Limits.before)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_threads(work: Callable[[], object], cores: int) -> tuple[int, str]:
    """Time some work with one thread and with one thread per core, in turn.

    Args:
        work: Local steps on the CPU. It is called several times and must change nothing.
        cores: The cores that this process may use.

    Returns:
        The number of threads to use, and the times as the reason. One thread is kept unless the others gain 20 %.
    """
    if cores < 2:
        return 1, "there is one core"
    times: dict[int, list[float]] = {1: [], cores: []}
    for repeat in range(REPEATS + 1):
        for threads, seconds in times.items():
            with limit_torch_threads(threads):
                start = time.perf_counter()
                work()
                if repeat:  # the first call allocates memory and starts threads
                    seconds.append(time.perf_counter() - start)
    return choose_faster(median(times[1]), median(times[cores]), cores)


def choose_faster(one: float, several: float, cores: int) -> tuple[int, str]:
    """Return the number of threads with the better time, and both times in words."""
    words = f"the steps take {one * 1e3:.1f} ms with 1 thread and {several * 1e3:.1f} ms with {cores}"
    return (cores if one >= GAIN * several else 1), words
