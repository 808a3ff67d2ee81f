"""What this machine can do: its CPU, the engines, the threads, and how fast a LeNet-5 step is on each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.kernels.library import find_build, find_obstacle, get_cpu_level
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.host import cpu_name

STEPS, BATCH = 10, 20
BUILD = "to build: python -m splitrelay.kernels.build"
Work = Callable[[], object]


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and what was seen."""

    what: str
    seen: str


def findings(seconds: float = 2.0) -> Iterator[Finding]:
    """All that is worth knowing; the measurement takes about so many seconds."""
    yield Finding("cpu", f"{cpu_name()}, {get_cpu_level()}")
    yield Finding("cores", f"{os.cpu_count()}; runs use as many, each engine on one thread of its own")
    obstacle, torch = find_obstacle(), find_spec("torch") is not None
    path = find_build()
    yield Finding(
        "fast engine", f"ready ({path.name})" if obstacle is None and path else f"not here: {obstacle} ({BUILD})"
    )
    yield Finding("reference engine", "ready" if torch else "not here: torch is not installed")
    if torch:
        yield from _speeds(seconds, obstacle is None)


def _speeds(seconds: float, fast: bool) -> Iterator[Finding]:
    """Steps of both engines, in turn so that a busy moment strikes both."""
    works = {"fast": _work("fast")} if fast else {}
    works["reference"] = _work("reference")
    took = {name: float("inf") for name in works}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, work in works.items():
            start = time.perf_counter()
            work()
            took[name] = min(took[name], (time.perf_counter() - start) / STEPS)
    for name, best in took.items():
        yield Finding(f"LeNet-5 step, batch {BATCH}, {name}", f"{1e6 * best:,.0f} microseconds")
    if fast:
        yield Finding("fast against reference", f"{took['reference'] / took['fast']:.1f}x")


def _work(name: str) -> Work:
    """A visit of some steps on random pictures of MNIST's form."""
    import torch  # noqa: PLC0415 - it may be missing

    from splitrelay.engine.select import build_engine  # noqa: PLC0415
    from splitrelay.models import get_model_spec  # noqa: PLC0415
    from splitrelay.objectives.batches import Batches  # noqa: PLC0415
    from splitrelay.objectives.network import DeviceImages, Network  # noqa: PLC0415

    torch.set_num_threads(1)  # as in runs
    g, N = rng(1, Purpose.INSTANCES), STEPS * BATCH
    x = g.integers(0, 256, (N, 1, 28, 28), dtype=np.uint8)
    images = ImageSet(x, g.integers(0, 10, N), tuple("0123456789"), (0.1307,), (0.3081,))
    network = Network(get_model_spec("lenet5", (1, 28, 28), 10), DeviceImages(images), [np.arange(N)], Batches(BATCH))
    one = build_engine(name, network, 1, "whole", None)
    visit = Visit(0, 0, 0, network.model_spec.x0(1), Step(0.01), STEPS)
    one.run(visit)
    return lambda: one.run(visit)
