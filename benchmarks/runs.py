"""What keeping records costs: a run over the bare loop, a checkpoint, a sweep over runs by hand, Ray over processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.measure import Row, compared, seconds
from splitrelay.experiments.cluster import OnRay, joined
from splitrelay.experiments.feasible import settled
from splitrelay.experiments.places import Places
from splitrelay.experiments.points import Point, points_of
from splitrelay.experiments.pool import Local, cores
from splitrelay.experiments.running import execute, prepared
from splitrelay.experiments.spec import Spec
from splitrelay.experiments.sweep import sweep
from splitrelay.randomness import Purpose, rng
from splitrelay.records import RunDirectory
from splitrelay.records.checkpoint import Checkpoints

EVERY = 10  # rounds between two checkpoints, unless said
PROGRAM = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "-q", "run"]
LENET = {"model": ["lenet5"], "M": ["500"], "S": ["10"], "K": ["10"], "order": ["sampled"], "eta": ["0.01"]}
EIGHT = {"seed": [str(seed) for seed in range(8)]}


def rows() -> Iterator[Row]:
    """Every comparison, as it is measured. MNIST's shape and size, random pixels; LeNet-5, S = 10, K = 10."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fresh = partial(next, (folder / f"run{number}" for number in count()))
        data = {"data": [str(_pictures(folder / "random.npz"))]}
        (point,) = _points({**data, **LENET, "R": ["40"]})
        yield compared(
            "a run of 40 rounds, each evaluated and on the disk",
            lambda: list(execute(point.spec, RunDirectory(fresh()))),
            lambda: list(prepared(point.spec)[0].run(point.spec.R)),
            "the bare loop",
        )
        yield _checkpoint(point.spec, folder)
        yield from _sweeps(_points({**data, **LENET, "R": ["60"], **EIGHT}), fresh)
        yield _ray(_points({"data": ["digits"], "R": ["2"], **EIGHT}), fresh)


def _checkpoint(spec: Spec, folder: Path) -> Row:
    """Added, not subtracted: what it takes is far below the noise of a run."""
    learning, _ = prepared(spec)
    state = learning.algorithm.init(learning.x0())
    saves = [seconds(partial(Checkpoints(folder / "kept").save, r, state, 0, 0)) for r in range(10)]
    alone = min(seconds(lambda: list(learning.run(EVERY))) for _ in range(3))
    return Row(f"{EVERY} rounds and a checkpoint", alone + sorted(saves)[5], alone, f"{EVERY} rounds")


def _sweeps(eight: list[Point], fresh: partial[Path]) -> Iterator[Row]:
    before, wall = _children(), seconds(lambda: _swept(eight, fresh(), Local()))
    busy = _children() - before
    yield Row("a sweep of 8, 60 rounds each", wall, seconds(lambda: _by_hand(eight, fresh())), "8 runs by hand")
    yield Row(
        "of which: all cores together, and the CPU time used", wall * len(cores()), busy, "CPU time (ratio: busy)"
    )


def _ray(eight: list[Point], fresh: partial[Path]) -> Row:
    """Ray's own start is not counted; that of its processes is, as it is for ours."""
    here = seconds(lambda: _swept(eight, fresh(), Local()))
    with joined(None):
        there = seconds(lambda: _swept(eight, fresh(), OnRay()))
    return Row("a sweep of 8 short points on Ray, once it is up", there, here, "the same on local processes")


def _swept(points: list[Point], folder: Path, places: Places) -> None:
    *_, (board, _) = sweep(points, folder, places)
    assert board.number("done") == len(points)
    shutil.rmtree(folder)


def _by_hand(points: list[Point], folder: Path) -> None:
    """One command after another."""
    for point in points:
        folder.mkdir(exist_ok=True)
        (folder / "spec.toml").write_text(point.spec.toml())
        command = [*PROGRAM, str(folder / "spec.toml"), "--out", str(folder / point.name)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)


def _points(values: dict[str, list[str]]) -> list[Point]:
    return settled(points_of(None, values).points).points


def _pictures(path: Path) -> Path:
    generator, labels = rng(1, Purpose.INSTANCES), np.arange(70_000) % 10
    pixels = generator.integers(0, 256, (70_000, 28, 28), dtype=np.uint8)
    np.savez(path, x_train=pixels[:60_000], y_train=labels[:60_000], x_test=pixels[60_000:], y_test=labels[60_000:])
    return path


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
