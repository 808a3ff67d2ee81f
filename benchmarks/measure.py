"""Time things in turn, again and again, and compare their best; say so where nothing follows from it."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splitrelay.runs.machine import get_cpu_name

Work = Callable[[], object]
Clock = Callable[[Work], float]
Times = Sequence[Sequence[float]]
STEADY = 0.10  # the best of the first half of the turns and of the second are no further apart
TURN = 0.05  # seconds: of a shorter one too much is lost to caches that the other left cold
LEAST = 8  # turns
PATIENCE = 3  # times the budget, where turns are unsteady


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of ours and of the baseline, and what they do."""

    what: str
    ours: float
    baseline: float
    baseline_is: str

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.baseline / self.ours


def seconds(work: Work) -> float:
    """One run on the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compared(
    what: str,
    ours: Work,
    baseline: Work,
    baseline_is: str,
    *,
    scale: float = 1,
    runs: int = 3,
) -> Row:
    """Best of a few runs of each, in turn; `scale` tells how many times the baseline's share of the work ours does."""
    pairs = [(seconds(ours), seconds(baseline)) for _ in range(runs)]
    return Row(what, min(mine for mine, _ in pairs), scale * min(other for _, other in pairs), baseline_is)


def in_turn(
    *works: Work, budget: float = 3.0, judged: Callable[[Times], Times] = list, clock: Clock = seconds
) -> list[list[float]]:
    """Seconds of every turn of each, A B A B ..., until the budget is spent; twice or thrice that if they are unsteady.

    The first of each does not count. What is judged is the turns, or what is made of them.
    """
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for share in range(1, PATIENCE + 1):
        while len(times[0]) < LEAST or sum(map(sum, times)) < share * budget:
            for one, work in zip(times, works, strict=True):
                one.append(clock(work))
        if all(apart(one) <= STEADY for one in judged(times)):
            break
    return times


def apart(times: Sequence[float]) -> float:
    """How far the best of the first half of the turns is from that of the second."""
    half = len(times) // 2
    before, after = sorted((min(times[:half]), min(times[half:])))
    return (after - before) / before if before > 0 else math.inf  # a difference may be less than nothing


def verdict(**times: Sequence[float]) -> str:
    """What is to be said of turns whose halves differ; nothing where all are steady."""
    worst = max(times, key=lambda whose: apart(times[whose]))
    far = apart(times[worst])
    return f"; NO CONCLUSION, runs of {worst} differ by {far:.0%}" if far > STEADY else ""


def lasting(work: Work, clock: Clock = seconds) -> tuple[Work, int]:
    """The work as often as it fits a turn, and how often that is."""
    work()
    times = max(1, round(TURN / min(clock(work) for _ in range(3))))

    def run() -> None:
        for _ in range(times):
            work()

    return run, times


def beside(
    what: str, ours: Work, theirs: Work, they_are: str, *, budget: float = 3.0, scale: float = 1, clock: Clock = seconds
) -> Row:
    """Both in turns of one length, the best of each; `scale` tells how many times the baseline's work ours does."""
    (mine, often), (other, as_often) = lasting(ours, clock), lasting(theirs, clock)
    a, b = in_turn(mine, other, budget=budget, clock=clock)
    return Row(what, min(a) / often / scale, min(b) / as_often, they_are + verdict(ours=a, baseline=b))


def machine() -> dict[str, object]:
    """Where this was measured."""
    return {
        "cpu": get_cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }
