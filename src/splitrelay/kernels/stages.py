"""Where a step's time goes: python -m splitrelay.kernels.stages [MODEL] [BATCH] [--compiler COMMAND]

The kernels are built once more with a clock around each stage; what is shown is the best of many runs of each.
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
from splitrelay.errors import WorkError
from splitrelay.kernels.batches import Draw
from splitrelay.kernels.build import build, compiler
from splitrelay.kernels.ctypes_structs import LayerC
from splitrelay.kernels.engine import Whole
from splitrelay.kernels.library import BY_HAND, level, library
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Plan, ReLU
from splitrelay.randomness import Purpose, rng

LENET = (
    Conv2d("conv1", 6, (5, 5)), ReLU("relu1"), MaxPool2d("pool1", (2, 2), (2, 2)),
    Conv2d("conv2", 16, (5, 5)), ReLU("relu2"), MaxPool2d("pool2", (2, 2), (2, 2)),
    Flatten("flatten"), Linear("fc1", 120), ReLU("relu3"), Linear("fc2", 84), ReLU("relu4"), Linear("fc3", 10),
)  # fmt: skip
PLANS = {
    "lenet5": Plan((1, 28, 28), LENET),
    "mlp": Plan(
        (1, 28, 28),
        (Flatten("flatten"), Linear("fc1", 64), Dropout("dropout", 0.5), ReLU("relu"), Linear("fc2", 10)),
    ),
    "logistic": Plan((1, 28, 28), (Flatten("flatten"), Linear("fc", 10))),
    "cnnmnist": Plan(
        (1, 28, 28),
        (
            Conv2d("conv1", 32, (5, 5), (2, 2)), ReLU("relu1"), MaxPool2d("pool1", (2, 2), (2, 2)),
            Conv2d("conv2", 32, (5, 5), (2, 2)), ReLU("relu2"), MaxPool2d("pool2", (2, 2), (2, 2)),
            Flatten("flatten"), Linear("fc1", 128), ReLU("relu3"), Linear("fc2", 10),
        ),
    ),
    "cnncifar": Plan(
        (3, 32, 32),
        (
            Conv2d("conv1", 16, (3, 3), (1, 1)), ReLU("relu1"), MaxPool2d("pool1", (2, 2), (2, 2)),
            Conv2d("conv2", 16, (3, 3), (1, 1)), ReLU("relu2"), MaxPool2d("pool2", (2, 2), (2, 2)),
            Conv2d("conv3", 32, (3, 3), (1, 1)), ReLU("relu3"), MaxPool2d("pool3", (2, 2), (2, 2)),
            Flatten("flatten"), Linear("fc1", 64), ReLU("relu4"), Linear("fc2", 10),
        ),
    ),
    "pool": Plan(  # one that runs by itself, since its windows overlap; no net of ours has it
        (1, 28, 28),
        (Conv2d("conv", 16, (5, 5)), MaxPool2d("pool", (3, 3), (2, 2)), Flatten("flatten"), Linear("fc", 10)),
    ),
}  # fmt: skip

BESIDE = ("gather", "kernels and masks made ready", "loss", "update", "x packed (a visit)", "x unpacked (a visit)")


class Pictures:
    """Random images: what is in them does not matter here."""

    def __init__(self, plan: Plan, N: int) -> None:
        generator = rng(1, Purpose.INSTANCES)
        self.x = generator.integers(0, 256, (N, *plan.shape), dtype=np.uint8)
        self.y = generator.integers(0, plan.classes, N)
        grey = (np.arange(256, dtype=np.float32) / 255 - 0.13) / np.float32(0.31)
        self.levels = np.tile(grey.astype(np.float32), (plan.shape[0], 1))


def start(plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Weights of torch's usual size."""
    x = np.zeros(plan.size, np.float32)
    for p in plan.parameters:
        n, inputs = int(np.prod(p.shape)), int(np.prod(p.shape[1:])) or p.shape[0]
        x[p.start : p.start + n] = rng(2, Purpose.INSTANCES, p.start).uniform(-1, 1, n) / np.sqrt(inputs)
    return x


def ticks_per_microsecond() -> float:
    """The clock's own speed."""
    library().now.restype = c.c_int64
    began, then = library().now(), time.perf_counter()
    time.sleep(0.2)
    return float((library().now() - began) / (time.perf_counter() - then) / 1e6)


def measured(plan: Plan, batch: int, runs: int) -> list[tuple[str, float]]:
    """(stage, microseconds) of one step."""
    draw = Draw(np.arange(10 * batch), [batch] * 10)
    engine, x = Whole(plan, Pictures(plan, 10 * batch), lambda _: draw, 1), start(plan)
    for _ in range(runs):
        engine.run(Visit(0, 0, 0, x, Step(0.01, 1e-4), 10))
    if engine.work is None:
        raise WorkError("nothing was run")
    library().stages.restype = c.POINTER(c.c_int64)
    ticks, scale = library().stages(), ticks_per_microsecond()
    rows = [(name, ticks[j] / scale) for j, name in enumerate(BESIDE)]
    for j, one in enumerate(engine.work.layers):
        rows += [
            (f"{_pass_said(plan, one)}, {way}", ticks[len(BESIDE) + 2 * j + back] / scale)
            for back, way in enumerate(("forward", "backward"))
        ]
    return rows


def _pass_said(plan: Plan, one: LayerC) -> str:
    """The layers that one pass makes, and the shapes before and behind it."""
    last = one.number + 1 + one.relu + one.pooled
    names = " + ".join(layer.name for layer in plan.layers[one.number : last])
    return f"{names}, {one.in_.C}x{one.in_.H}x{one.in_.W} -> {one.out.C}x{one.out.H}x{one.out.W}"


def main(words: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m splitrelay.kernels.stages", description=__doc__)
    parser.add_argument("model", nargs="?", default="lenet5", choices=PLANS)
    parser.add_argument("batch", nargs="?", type=int, default=20)
    parser.add_argument("--compiler", help="zig, or a command; zig or the system's unless given")
    parser.add_argument("--runs", type=int, default=200)
    given = parser.parse_args(words)
    command = compiler(given.compiler)
    if command is None:
        sys.exit("no compiler: pip install ziglang, or install g++")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.so"
        build(level(), command, path, "-DSTAGES")
        os.environ[BY_HAND] = str(path)
        rows = measured(PLANS[given.model], given.batch, given.runs)
    for name, microseconds in rows:
        print(f"{name:<54} {microseconds:8.1f} us")
    steps = sum(microseconds for name, microseconds in rows if not name.endswith("(a visit)"))
    print(f"{'sum of a step':<54} {steps:8.1f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
