"""Measure the stages of one step: python -m benchmarks.profile_kernels [MODEL] [BATCH] [--compiler COMMAND]

The kernels are built once more with a clock around each stage. The table shows the best of many runs of each stage.
"""

from __future__ import annotations

import argparse
import ctypes as c
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.errors import WorkError
from splitrelay.kernels.batches import Draw
from splitrelay.kernels.build import build, find_compiler
from splitrelay.kernels.builtin_models import get_builtin_plan
from splitrelay.kernels.ctypes_structs import LayerC
from splitrelay.kernels.engine import WholeEngine
from splitrelay.kernels.library import BY_HAND, get_cpu_level, load_library
from splitrelay.kernels.network_plan import Conv2d, Flatten, Linear, MaxPool2d, Plan
from splitrelay.randomness import Purpose, rng

POOL = Plan(  # its pool runs by itself, because its windows overlap; no built-in model has such a pool
    (1, 28, 28), (Conv2d("conv", 16, (5, 5)), MaxPool2d("pool", (3, 3), (2, 2)), Flatten("flatten"), Linear("fc", 10))
)
SHAPES = {"cnncifar": (3, 32, 32)}
MODELS = ("lenet5", "mlp", "logistic", "cnnmnist", "cnncifar", "pool")
BESIDE = ("gather", "kernels and masks made ready", "loss", "update", "x packed (a visit)", "x unpacked (a visit)")


def get_plan(model: str) -> Plan:
    """Return the layers of a model of this benchmark."""
    return POOL if model == "pool" else get_builtin_plan(model, SHAPES.get(model, (1, 28, 28)), 10)


def make_images(plan: Plan, N: int) -> ImageSet:
    """Make random images. Their content does not change the time of a step."""
    generator, channels = rng(1, Purpose.INSTANCES), plan.shape[0]
    x = generator.integers(0, 256, (N, *plan.shape), dtype=np.uint8)
    y, classes = generator.integers(0, plan.classes, N), tuple(map(str, range(plan.classes)))
    return ImageSet(x, y, classes, (0.13,) * channels, (0.31,) * channels)


def draw_weights(plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Draw weights of torch's usual size."""
    x = np.zeros(plan.size, np.float32)
    for p in plan.parameters:
        n, inputs = int(np.prod(p.shape)), int(np.prod(p.shape[1:])) or p.shape[0]
        x[p.start : p.start + n] = rng(2, Purpose.INSTANCES, p.start).uniform(-1, 1, n) / np.sqrt(inputs)
    return x


def count_ticks_per_microsecond() -> float:
    """Compare the clock of the kernels with Python's."""
    load_library().now.restype = c.c_int64
    ticks, start = load_library().now(), time.perf_counter()
    time.sleep(0.2)
    return float((load_library().now() - ticks) / (time.perf_counter() - start) / 1e6)


def measure_stages(plan: Plan, batch: int, runs: int) -> list[tuple[str, float]]:
    """Return (stage, microseconds) of one step."""
    draw = Draw(np.arange(10 * batch), [batch] * 10)
    engine, x = WholeEngine(plan, make_images(plan, 10 * batch), lambda _: draw, 1), draw_weights(plan)
    for _ in range(runs):
        engine.run(Visit(0, 0, 0, x, Step(0.01, 1e-4), 10))
    if engine.work is None:
        raise WorkError("nothing was run")
    load_library().stages.restype = c.POINTER(c.c_int64)
    ticks, scale = load_library().stages(), count_ticks_per_microsecond()
    rows = [(name, ticks[j] / scale) for j, name in enumerate(BESIDE)]
    for j, one in enumerate(engine.work.layers):
        rows += [
            (f"{describe_pass(plan, one)}, {way}", ticks[len(BESIDE) + 2 * j + back] / scale)
            for back, way in enumerate(("forward", "backward"))
        ]
    return rows


def describe_pass(plan: Plan, one: LayerC) -> str:
    """Return the names of the layers of one pass, and the shapes before and behind it."""
    last = one.number + 1 + one.relu + one.pooled
    names = " + ".join(layer.name for layer in plan.layers[one.number : last])
    return f"{names}, {one.in_.C}x{one.in_.H}x{one.in_.W} -> {one.out.C}x{one.out.H}x{one.out.W}"


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_kernels", description=__doc__)
    parser.add_argument("model", nargs="?", default="lenet5", choices=MODELS)
    parser.add_argument("batch", nargs="?", type=int, default=20)
    parser.add_argument("--compiler", help="zig, or a command; zig or the system's unless given")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args(arguments)
    command = find_compiler(options.compiler)
    if command is None:
        sys.exit("no compiler: pip install ziglang, or install g++")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.so"
        build(get_cpu_level(), command, path, "-DSTAGES")
        os.environ[BY_HAND] = str(path)
        rows = measure_stages(get_plan(options.model), options.batch, options.runs)
    for name, microseconds in rows:
        print(f"{name:<54} {microseconds:8.1f} us")
    steps = sum(microseconds for name, microseconds in rows if not name.endswith("(a visit)"))
    print(f"{'sum of a step':<54} {steps:8.1f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
