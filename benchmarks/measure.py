"""Time two things in turn, again and again, and compare their best."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

from splitrelay.records.host import cpu_name


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


def seconds(work: Callable[[], object]) -> float:
    """One run on the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compared(
    what: str,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    baseline_is: str,
    *,
    scale: float = 1,
    runs: int = 3,
) -> Row:
    """Best of a few runs of each, in turn; `scale` tells how many times the baseline's share of the work ours does."""
    pairs = [(seconds(ours), seconds(baseline)) for _ in range(runs)]
    return Row(what, min(mine for mine, _ in pairs), scale * min(other for _, other in pairs), baseline_is)


def machine() -> dict[str, object]:
    """Where this was measured."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }
