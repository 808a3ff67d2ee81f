"""The machine and the software of a run: names and versions, engines, and the time of a LeNet-5 step."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay import __version__
from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.kernels.library import find_build, find_obstacle, get_cpu_level
from splitrelay.randomness import Purpose, rng

STEPS, BATCH = 10, 20
PACKAGE = Path(__file__).resolve().parents[1]
COMMIT_FILE = "COMMIT"  # in wheels: the commit, and the word modified if the files were not those of the commit
UNKNOWN_COMMIT = "unknown"
GIT_SECONDS = 10.0  # a folder on a slow network must not keep a run from starting
BUILD = "to build: python -m splitrelay.kernels.build"
Work = Callable[[], object]


def get_cpu_name() -> str:
    """Return the processor's name as its maker gives it, if the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or "unknown"


@cache
def describe_commit(package: Path = PACKAGE) -> dict[str, Any]:
    """Return the commit of the code in a package folder, and whether its files differ from that commit.

    A checkout asks git. A wheel has a file COMMIT, written when it was built. The commit of other code is "unknown".
    The answer is kept for the life of the process, because the code was loaded at its start.
    """
    if (package / COMMIT_FILE).is_file():
        built, _, state = (package / COMMIT_FILE).read_text(encoding="ascii").strip().partition(" ")
        return {"commit": built, "modified": state == "modified"}
    commit = _ask_git(package, "rev-parse", "HEAD")
    is_tracked = commit and _ask_git(package, "ls-files", "__init__.py")  # a venv may be inside another repository
    if not commit or not is_tracked:
        return {"commit": UNKNOWN_COMMIT, "modified": False}
    return {"commit": commit, "modified": _ask_git(package, "status", "--porcelain", "--", ".") != ""}


def _ask_git(folder: Path, *words: str) -> str | None:
    """Return what git prints, or None if there is no git or no repository. Nothing is written, not even the index."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe_environment() -> dict[str, Any]:
    """Return the content of environment.json. Two runs have equal bits if these values are equal."""
    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    system = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()}
    return {"splitrelay": __version__, **describe_commit(), **packages, **system, "cpu": get_cpu_name()}


def describe_machine(seconds: float = 2.0) -> Iterator[tuple[str, str]]:
    """Yield (what, description) of CPU, cores, engines and speed. The measurement takes about `seconds` seconds."""
    yield "cpu", f"{get_cpu_name()}, {get_cpu_level()}"
    yield "cores", f"{os.cpu_count()}; runs use as many, each engine on one thread of its own"
    obstacle, path = find_obstacle(), find_build()
    is_ready = obstacle is None and path is not None
    yield "fast engine", f"ready ({path.name})" if is_ready and path else f"not available: {obstacle} ({BUILD})"
    if find_spec("torch") is None:
        yield "reference engine", "not available: torch is not installed"
        return
    yield "reference engine", "ready"
    times = _measure_steps(seconds, ["fast", "reference"] if obstacle is None else ["reference"])
    for name, best in times.items():
        yield f"LeNet-5 step, batch {BATCH}, {name}", f"{1e6 * best:,.0f} microseconds"
    if "fast" in times:
        yield "fast against reference", f"{times['reference'] / times['fast']:.1f}x"


def _measure_steps(seconds: float, engines: list[str]) -> dict[str, float]:
    """Return the shortest time of a step for each engine. They take turns, so that other load affects both."""
    works = {name: _build_work(name) for name in engines}
    shortest = dict.fromkeys(works, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, work in works.items():
            start = time.perf_counter()
            work()
            shortest[name] = min(shortest[name], (time.perf_counter() - start) / STEPS)
    return shortest


def _build_work(name: str) -> Work:
    """Build a visit of some steps on random images of MNIST's shape."""
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
