"""What keeping records costs: a checkpoint, a run over the bare loop, a sweep over runs by hand, Ray over processes.

The clock of a shared machine swings. So a run is compared with the loop that it has inside, on the same clock and in
the CPU time of the same thread; and whatever is compared with something else is run in turn with it.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Row, seconds
from splitrelay.randomness import Purpose, rng
from splitrelay.runs import execute as execution
from splitrelay.runs.checkpoint import Checkpoints
from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec
from splitrelay.sweeps.jobs import JobRunner
from splitrelay.sweeps.points import Point, check_points, expand_points
from splitrelay.sweeps.process_backend import ProcessBackend, list_cores
from splitrelay.sweeps.ray_backend import RayBackend, connect_ray
from splitrelay.sweeps.sweep import run_sweep

R, RUNS = 200, 2  # rounds of a run that is compared with its loop, half of the paper's shortest; how often
TURNS = 3  # of a sweep on local processes and on Ray
EVERY = 10  # rounds between two checkpoints, unless said
PROGRAM = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "-q", "run"]
LENET = {"model": ["lenet5"], "M": ["500"], "S": ["10"], "K": ["10"], "order": ["sampled"], "eta": ["0.01"]}
Times = npt.NDArray[np.float64]
EIGHT = {"seed": [str(seed) for seed in range(8)]}


@dataclass(frozen=True)
class Held(Row):
    """A comparison with a goal: `measured` is what the goal is about, in the unit that the goal names."""

    measured: float
    goal: str

    @classmethod
    def over(cls, what: str, ours: float, baseline: float, baseline_is: str, goal: float) -> Held:
        """How much more ours takes, in percent."""
        more = 100 * (ours / baseline - 1)
        said = f"{baseline_is}: {more:+.2f} % (goal: at most {goal:g} %)"
        return cls(what, ours, baseline, said, more, f"at most {goal:g} % more")


def rows() -> Iterator[Row]:
    """Every comparison, as it is measured. MNIST's shape and size, random pixels; LeNet-5, S = 10, K = 10."""
    with tempfile.TemporaryDirectory() as choose_folder:
        folder = Path(choose_folder)
        fresh = partial(next, (folder / f"run{number}" for number in count()))
        data = {"data": [str(_pictures(folder / "random.npz"))]}
        (point,) = _points({**data, **LENET, "R": [str(R)]})
        yield _checkpoint(point.spec, folder)
        yield from _run(point.spec, fresh)
        yield from _sweeps(_points({**data, **LENET, "R": ["60"], **EIGHT}), fresh)
        yield from _ray(_points({"data": ["digits"], "R": ["2"], **EIGHT}), fresh)


def _checkpoint(spec: Spec, folder: Path) -> Row:
    """Added, not subtracted: what it takes is far below the noise of a run. In turn with the rounds it follows."""
    learning, _ = build_trainer(spec)
    state = learning.algorithm.init(learning.x0())
    checkpoints, alone, saves = Checkpoints(folder / "kept"), [], []
    for r in range(9):
        alone.append(seconds(lambda: list(learning.run(EVERY))))
        saves.append(seconds(partial(checkpoints.save, r, state, 0, 0)))
    rounds = min(alone)
    return Held.over(f"{EVERY} rounds and a checkpoint", rounds + statistics.median(saves), rounds, "without", 2)


def _run(spec: Spec, fresh: Callable[[], Path]) -> Iterator[Row]:
    """All of a run against the loop inside it. What is beside the loop is done by the thread that trains."""
    on_clock, in_cpu = [], []
    for _ in range(RUNS):
        used, began = time.process_time(), now()
        with LoopTimed() as inside:
            for _ in execute(spec, RunDirectory(fresh())):
                pass
        wall, thread = now() - began
        used = time.process_time() - used
        beside = np.array([wall, thread]) - np.sum(inside, axis=0)
        on_clock.append((wall, wall - beside[0]))
        in_cpu.append((used, used - beside[1]))
    what = f"a run of {spec.R} rounds, each evaluated and recorded"
    for name, found in ((what, on_clock), (f"{what}: CPU time", in_cpu)):
        total, loop = min(found, key=lambda pair: pair[0] / pair[1])
        yield Held.over(name, total, loop, "the loop inside it", 3)


class LoopTimed:
    """Within it, runs tell how long they read data, make ready, train and look: what they do beside it is our cost."""

    def __enter__(self) -> list[Times]:
        self.spent: list[Times] = []
        self.before = vars(execution)["load"], execution.build_trainer
        vars(execution)["load"] = partial(self._told, self.before[0])
        execution.build_trainer = self._prepared
        return self.spent

    def __exit__(self, *_: object) -> None:
        vars(execution)["load"], execution.build_trainer = self.before

    def _told(self, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        began = now()
        found = work(*args, **how)
        self.spent.append(now() - began)
        return found

    def _prepared(self, *args: Any, **how: Any) -> Any:
        learning, partition = self._told(self.before[1], *args, **how)
        learning.run = partial(self._looks, learning.run)
        return learning, partition

    def _looks(self, run: Callable[..., Iterator[Any]], *args: Any, **how: Any) -> Iterator[Any]:
        looks = run(*args, **how)
        while (found := self._told(next, looks, None)) is not None:
            yield found


def _sweeps(eight: list[Point], fresh: Callable[[], Path]) -> Iterator[Row]:
    before, idle = _used(), _idle()
    wall = seconds(lambda: _swept(eight, fresh(), ProcessBackend()))
    used, idle = _used() - before, _idle() - idle
    room = wall * len(list_cores())
    before, by_hand = _used(), seconds(lambda: _by_hand(eight, fresh()))
    hand_used = _used() - before
    yield Row("a sweep of 8, 60 rounds each", wall, by_hand, "8 runs by hand, one after another")
    yield Row("the same in CPU time", used, hand_used, "8 runs by hand")
    busy, system = 100 * used / room, 100 * (1 - idle / room)
    said = f"CPU time used: {busy:.1f} % busy by us, {system:.1f} % by anybody (goal: at least 95 %)"
    yield Held("of the sweep: all cores together", room, used, said, busy, "at least 95 % busy")


def _ray(eight: list[Point], fresh: Callable[[], Path]) -> Iterator[Row]:
    """Ray's own start is not counted; that of its processes is, as it is for ours. The best of a few, in turn."""
    here, there = [], []
    for _ in range(TURNS):
        here.append(seconds(lambda: _swept(eight, fresh(), ProcessBackend())))
        with connect_ray(None):
            there.append(seconds(lambda: _swept(eight, fresh(), RayBackend())))
    more = min(there) - min(here)
    said = f"on local processes: {more:+.2f} s, {more / len(eight):+.2f} s a point (goal: at most 3 s)"
    yield Held("a sweep of 8 short points on Ray, once it is up", min(there), min(here), said, more, "at most 3 s more")


def _swept(points: list[Point], folder: Path, places: JobRunner) -> None:
    *_, (board, _) = run_sweep(points, folder, places)
    assert board.count("done") == len(points), board
    shutil.rmtree(folder)


def _by_hand(points: list[Point], folder: Path) -> None:
    """One command after another."""
    for point in points:
        folder.mkdir(exist_ok=True)
        (folder / "spec.toml").write_text(point.spec.to_toml())
        command = [*PROGRAM, str(folder / "spec.toml"), "--out", str(folder / point.name)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)


def _points(values: dict[str, list[str]]) -> list[Point]:
    return check_points(expand_points(None, values).points).points


def _pictures(path: Path) -> Path:
    generator, labels = rng(1, Purpose.INSTANCES), np.arange(70_000) % 10
    pixels = generator.integers(0, 256, (70_000, 28, 28), dtype=np.uint8)
    np.savez(path, x_train=pixels[:60_000], y_train=labels[:60_000], x_test=pixels[60_000:], y_test=labels[60_000:])
    return path


def now() -> Times:
    """(the clock, CPU seconds of this thread)."""
    return np.array([time.perf_counter(), time.thread_time()])


def _used() -> float:
    """CPU seconds of this process and of those that it has seen end."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in found)


def _idle() -> float:
    """Seconds for which the cores that we may use have had nothing to do; NaN where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("nan")
    names = {f"cpu{core}" for core in list_cores()}
    ticks = [sum(map(int, line.split()[4:6])) for line in lines if line.split()[0] in names]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")
