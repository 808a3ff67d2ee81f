"""Estimate the cost of runs, on this machine with a short probe or on a GPU from FLOPs, and fit a budget."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splitrelay.errors import InputError
from splitrelay.models import get_model_spec
from splitrelay.models.summary import summarize_model
from splitrelay.paper.cells import CELLS, Cell
from splitrelay.paper.plan import Unit
from splitrelay.paper.studies import PAIR
from splitrelay.runs.build import build_partition, load_data
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import SEEDS, Spec, load_spec
from splitrelay.runs.trainer import Trainer
from splitrelay.sweeps.points import Point
from splitrelay.sweeps.sweep import find_run_folder
from splitrelay.table import Heading, Table
from splitrelay.training import resume

PROBE, PROBED = 20, 500  # rounds and test images of a probe
PROBE_RATE = 1e-9  # learning rate of a probe, so small that no loss overflows
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Pace:
    """Seconds of one step and of one evaluation on the whole test set, on one core of this machine."""

    step: float
    evaluation: float

    def seconds(self, spec: Spec) -> float:
        """Return the estimated seconds of a whole run."""
        visits = spec.S or spec.partition.M
        return spec.R * (visits * spec.mean_K * self.step + self.evaluation / spec.every)


class Paces:
    """Paces of this machine, measured once for every pair of data set and model."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Pace] = {}

    def get(self, spec: Spec) -> Pace:
        """Return the pace of runs with this data set and model."""
        pair = spec.data.name, spec.model.name
        if pair not in self.known:
            self.known[pair] = measure_pace(spec)
        return self.known[pair]


def measure_pace(spec: Spec) -> Pace:
    """Measure the seconds of a step and of an evaluation on the whole test set, with a few steps and images.

    The shortest of several rounds counts, because other programs only make rounds longer.
    """
    data = load_data(spec.data)
    few = min(PROBED, len(data.test))
    small = replace(data, test=data.test.part(np.arange(few)))
    learning = Trainer(_shorten(spec), small, build_partition(spec, data))
    state = learning.algorithm.init(learning.x0())
    rounds = resume(learning.algorithm, 0, state, learning.order, learning.clients, R=PROBE)
    step = _measure_shortest(lambda: next(rounds)) / _shorten(spec).K
    evaluation = _measure_shortest(lambda: learning.evaluator.score(learning.x0()))
    return Pace(step, evaluation * len(data.test) / few)


def _measure_shortest(work: Callable[[], object]) -> float:
    """Return the shortest of at most PROBE times, within about a second after the first call."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < PROBE - 1 and (not times or time.perf_counter() - began < 1):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return min(times)


def _shorten(spec: Spec) -> Spec:
    """Return a spec with rounds of one visit, at a rate at which no loss can overflow."""
    K = 1 if spec.model.name == "vgg11" else 10
    calm = spec.optimiser.model_copy(update={"eta": PROBE_RATE})
    return spec.model_copy(update={"K": K, "order": "sampled", "S": 1, "algorithm": "ssl", "optimiser": calm})


@dataclass(frozen=True)
class Cost:
    """The number of runs of a unit, how many are done, and the seconds that the others take on one core."""

    runs: int
    done: int
    left: float


def compute_costs(found: Sequence[Unit], out: Path) -> list[Cost]:
    """Return the cost of each unit on this machine. Finished runs in the folder cost nothing."""
    paces = Paces()
    return [_compute_cost(unit, out, paces) for unit in found]


def _compute_cost(unit: Unit, out: Path, paces: Paces) -> Cost:
    runs = unit.runs(out)
    shares = [_count_rounds_left(folder, point) for folder, point in runs]
    costs = (
        share and share * paces.get(point.spec).seconds(point.spec)
        for share, (_, point) in zip(shares, runs, strict=True)
    )
    return Cost(len(runs), shares.count(0.0), sum(costs))


def _count_rounds_left(folder: Path, point: Point) -> float:
    """Return the share of rounds that remain to be run."""
    rows = RunDirectory(find_run_folder(folder, point)).read_rows()
    return 1 - min(1.0, rows[-1]["round"] / point.spec.R) if rows else 1.0


def choose_within(found: Sequence[Unit], costs: Sequence[float], budget: float | None) -> list[Unit]:
    """Return the most informative units whose total cost is within the budget."""
    if budget is None:
        return list(found)
    taken, spent = [], 0.0
    for unit, cost in zip(found, costs, strict=True):
        if spent + cost <= budget:
            taken.append(unit)
            spent += cost
    return taken


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as '2h', '30m', '1h30m' or '90s'."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError(
            "the budget must be a duration", value=repr(text), hint="For example: --budget 2h, 1h30m or 90s."
        )
    return sum(float(number) * UNITS[unit] for number, unit in parts)


IMAGE, CLASSES = (3, 32, 32), 10  # of CIFAR-10
TEST = 10_000  # images of its test set
SHARE = 0.3  # assumed share of the peak for batches of 20
LAUNCHED = 2e-3  # shortest seconds of a step: about 150 kernel launches
BACKWARD = 2  # times the forward pass


@dataclass(frozen=True)
class Accelerator:
    """A GPU with the peak performance of its data sheet."""

    name: str
    peak: float  # FLOPs a second, float32

    def seconds(self, flops: float) -> float:
        """Return the seconds of one step or one evaluation."""
        return max(flops / (SHARE * self.peak), LAUNCHED)


KINDS = (
    Accelerator("T4", 8.1e12),
    Accelerator("V100", 15.7e12),
    Accelerator("A100", 19.5e12),
    Accelerator("RTX 4090", 82.6e12),
)


def estimate_hours(spec: Spec, kind: Accelerator, forward: float) -> float:
    """Return the hours of one run of VGG-11: its steps, one after another, and its evaluations."""
    steps = spec.R * (spec.S or spec.partition.M) * spec.mean_K
    step = kind.seconds((1 + BACKWARD) * forward * spec.optimiser.batch)
    return (steps * step + spec.R // spec.every * kind.seconds(forward * TEST)) / 3600


def build_accelerators_table() -> Table:
    """Build one row per VGG-11 cell of the paper, for both algorithms and all seeds, on each GPU."""
    forward = float(summarize_model(get_model_spec("vgg11", IMAGE, CLASSES)).flops)
    cells = [cell for cell in CELLS.values() if cell.data == "cifar10"]
    found = [[_estimate_cell(cell, kind, forward) for kind in KINDS] for cell in cells]
    names = ("C", "K", *(kind.name for kind in KINDS))
    heads = [Heading("setting"), *(Heading(name, is_numeric=True) for name in names)]
    rows = [
        [cell.setting, str(cell.C), str(cell.K), *_format_hours(times)]
        for cell, times in zip(cells, found, strict=True)
    ]
    rows.append(["all", "", "", *_format_hours([sum(column) for column in zip(*found, strict=True)])])
    caption = (
        f"Hours for VGG-11 on CIFAR-10, both algorithms, {len(SEEDS)} seeds, one after another. An estimate: "
        f"nothing was run on a GPU. FLOPs at {SHARE:.0%} of the float32 peak, at least {1e3 * LAUNCHED:g} ms a step."
    )
    records = [
        {"cell": cell.name, **{kind.name: time for kind, time in zip(KINDS, times, strict=True)}}
        for cell, times in zip(cells, found, strict=True)
    ]
    return Table(heads, rows, caption=caption, name="accelerators", records=records)


def _estimate_cell(cell: Cell, kind: Accelerator, forward: float) -> float:
    specs = [load_spec(None, [f"preset=paper/{cell.name}", f"algorithm={name}"]) for name in PAIR]
    return len(SEEDS) * sum(estimate_hours(spec, kind, forward) for spec in specs)


def _format_hours(times: Sequence[float]) -> list[str]:
    return [f"{time:.0f}" for time in times]
