"""The demo: SSL and FedAvg on real digits, cut in two, each at the best rate of a small grid, on two partitions."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from threading import Thread

from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import Diverged
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import Row, RunDirectory, build_row, count_final_rounds
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer

ALGORITHMS = ("ssl", "fedavg")
CLASSES = (1, 2)  # C of ExDir(C, 10): one or two classes a client
ETAS = (0.03, 0.1, 0.3, 1.0)
SEEDS = (1234, 666, 22)  # the paper's; the grid is searched with the first, as in the paper
M, K, R, ALPHA = 10, 5, 25, 10.0
LAST = count_final_rounds(R)  # rounds over which a final accuracy is the mean


@dataclass(frozen=True)
class Point:
    """One run of the demo."""

    C: int
    algorithm: str
    eta: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """The result of a run: a row after every round, or the reason why it failed."""

    point: Point
    rows: Sequence[Row]
    failed: str = ""

    @property
    def accuracy(self) -> float:
        """Return the mean test accuracy over the last rounds, or 0 for a run that diverged."""
        return fmean(row["test_accuracy"] for row in self.rows[-LAST:]) if not self.failed else 0.0

    @property
    def traffic(self) -> int:
        """Return the bytes between clients and server in both directions."""
        return int(self.rows[-1]["bytes_up"] + self.rows[-1]["bytes_down"]) if not self.failed else 0


@dataclass(frozen=True)
class Cell:
    """One algorithm on one partition, at its best rate: all seeds."""

    C: int
    algorithm: str
    eta: float
    outcomes: Sequence[Outcome]

    @property
    def mean(self) -> float:
        """Return the mean accuracy over seeds."""
        return fmean(outcome.accuracy for outcome in self.outcomes)

    @property
    def spread(self) -> float:
        """Return the standard deviation of the accuracy over seeds."""
        return stdev(outcome.accuracy for outcome in self.outcomes)

    @property
    def on_edge(self) -> bool:
        """Return whether the best rate is on the edge of the grid."""
        return self.eta in (ETAS[0], ETAS[-1])


def search() -> list[Point]:
    """Return the points of the grid: every rate with the first seed."""
    return [Point(C, name, eta, SEEDS[0]) for C in CLASSES for name in ALGORITHMS for eta in ETAS]


def list_repeats(outcomes: Iterable[Outcome]) -> list[Point]:
    """Return the points of the other seeds, at the best rate of each algorithm and partition."""
    best = find_best_rates(outcomes)
    return [Point(C, name, eta, seed) for (C, name), eta in best.items() for seed in SEEDS[1:]]


def find_best_rates(outcomes: Iterable[Outcome]) -> dict[tuple[int, str], float]:
    """Return the rate with the highest accuracy, or the smallest of several."""
    best: dict[tuple[int, str], Outcome] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.point.eta):
        key = (outcome.point.C, outcome.point.algorithm)
        if key not in best or outcome.accuracy > best[key].accuracy:
            best[key] = outcome
    return {key: outcome.point.eta for key, outcome in sorted(best.items(), key=lambda item: _get_sort_key(item[0]))}


def cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """Return every algorithm and partition at its best rate, over all seeds."""
    found = []
    for (C, name), eta in find_best_rates(o for o in outcomes if o.point.seed == SEEDS[0]).items():
        runs = {o.point.seed: o for o in outcomes if (o.point.C, o.point.algorithm, o.point.eta) == (C, name, eta)}
        found.append(Cell(C, name, eta, [runs[seed] for seed in SEEDS]))
    return found


def partition(C: int, seed: int) -> Partition:
    """Return the partition ExDir(C, 10) of the digits for a seed."""
    return draw_partition("exdir", digits().train.y, M=M, C=C, alpha=ALPHA, seed=seed)


@cache
def digits() -> DataSet:
    """Return the embedded data set, read once per process."""
    return load("digits")


def run_point(point: Point, folder: Path | None = None) -> Outcome:
    """Run one point. The numbers depend only on its settings, not on the process.

    Args:
        point: The settings.
        folder: Where the run directory is made; None to keep nothing. A finished run in it is not repeated.
    """
    spec = make_spec(algorithm=point.algorithm, eta=point.eta, K=K, seed=point.seed, M=M, C=point.C, alpha=ALPHA, R=R)
    try:
        if folder is None:
            trainer = Trainer(spec, digits(), partition(point.C, point.seed))
            return Outcome(point, [build_row(row) for row, _ in trainer.run(R)])
        directory = RunDirectory(folder / f"{point.algorithm}-C{point.C}-eta{point.eta:g}-seed{point.seed}")
        return Outcome(point, [progress.row for progress in execute(spec, directory, checkpoint=R)])
    except Diverged as error:
        return Outcome(point, [], str(error))


class Workers:
    """A pool with one process per core. The processes end with the demo and ignore Ctrl-C, which the demo handles."""

    def __init__(self, number: int | None = None, folder: Path | None = None) -> None:
        self.folder = folder  # of the run directories, if they are to be made
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(number or os.cpu_count() or 1, context, initializer=_init_worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()

    def outcomes(self, points: Iterable[Point]) -> Iterator[Outcome]:
        """Yield each outcome as soon as it is finished."""
        with _hold_interrupts():  # the processes start here and inherit the mask, so Ctrl-C cannot stop a starting one
            futures: list[Future[Outcome]] = [self.pool.submit(run_point, point, self.folder) for point in points]
        for future in as_completed(futures):
            yield future.result()


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Delay Ctrl-C. New processes inherit the mask; another thread may still receive the signal."""
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if received:
        raise KeyboardInterrupt


def _init_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    demo = multiprocessing.parent_process()
    if demo is not None:
        demo.join()  # also returns when the demo was killed
        os._exit(1)


def _get_sort_key(key: tuple[int, str]) -> tuple[int, int]:
    return key[0], ALGORITHMS.index(key[1])
