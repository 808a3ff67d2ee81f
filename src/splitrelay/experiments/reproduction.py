"""What to run to see the paper's section 5 again: which cells, what they cost here, and which to take first."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from splitrelay.data import load
from splitrelay.errors import InputError, UnknownName
from splitrelay.experiments.learning import Learning
from splitrelay.experiments.paper.cells import CELLS, GRID, SEEDS
from splitrelay.experiments.points import Point
from splitrelay.experiments.presets import PRESETS
from splitrelay.experiments.running import partition_of, trial_of
from splitrelay.experiments.spec import Spec, spec_of
from splitrelay.experiments.studies import PAIR, STUDIES, Batch, batches
from splitrelay.experiments.sweep import home
from splitrelay.experiments.tuning import Tuning, expected
from splitrelay.records import RunDirectory
from splitrelay.training import resume

UNTRAINED = ("quadratics", "partitions")
LISTS = (*UNTRAINED, "cross-device", "cross-silo", "rates", "clipping", *STUDIES)
SETS = ("mnist", "fashion-mnist", "cifar10")  # from the cheapest on
PROBE, PROBED = 20, 500  # rounds and test images of a probe
Words = tuple[str, ...]
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Unit:
    """What only tells something together: the same cell and seed with every algorithm or rate; or a batch to tune."""

    kind: str  # cells, rates, clipping or a study: the folder
    name: str
    points: tuple[Point, ...]
    rank: tuple[int, ...]  # the most telling come first
    tuning: Tuning | None = None
    seeds: tuple[int, ...] = SEEDS

    def runs(self, out: Path) -> list[tuple[Path, Point]]:
        """Every run with its folder; of a batch, as far as is known."""
        if self.tuning is not None:
            return expected(self.tuning, out / self.kind, self.seeds)
        return [(out / self.kind, point) for point in self.points]


@dataclass(frozen=True)
class Pace:
    """Seconds of one step and of one look at the whole test set, on one core of this machine."""

    step: float
    look: float

    def seconds(self, spec: Spec) -> float:
        """Of a whole run."""
        visits = spec.S or spec.partition.M
        return spec.R * (visits * spec.K * self.step + self.look / spec.every)


def units(names: Sequence[str], seeds: Sequence[int] = SEEDS, words: Sequence[str] = ()) -> list[Unit]:
    """All that the names ask for, the most telling first; a name may be a list of the paper, or one of its cells.

    `words` go on top of every spec: fewer rounds, another protocol.
    """
    found: dict[str, Unit] = {}
    for name in names:
        if name not in (*LISTS, *CELLS):
            raise UnknownName("reproduction", name, (*LISTS, *CELLS))
        found |= {f"{unit.kind} {unit.name}": unit for unit in _units(name, seeds, tuple(words))}
    return sorted(found.values(), key=lambda unit: unit.rank)


def _units(name: str, seeds: Sequence[int], words: Words) -> Iterator[Unit]:
    if name == "clipping":
        yield from (_clipping(C, algorithm, words) for C, algorithm in product((2, 1), PAIR))
    elif name == "rates":
        yield from (_rates(cell, algorithm, words) for cell, algorithm in product(CELLS, PAIR))
    elif name in STUDIES:
        yield from (_batch(number, batch, seeds, words) for number, batch in enumerate(batches(name)))
    elif name not in UNTRAINED:
        cells = [cell for cell in CELLS if name in (cell, CELLS[cell].setting)]
        yield from (_cell(cell, seed, number, words) for cell in cells for number, seed in enumerate(seeds))


def _cell(name: str, seed: int, number: int, words: Words) -> Unit:
    points = [_point(f"paper/{name}", algorithm, words, seed=seed) for algorithm in PAIR]
    return Unit("cells", f"{name}, seed {seed}", tuple(points), (number, *_telling(name)))


def _rates(name: str, algorithm: str, words: Words) -> Unit:
    points = [_point(f"paper/{name}", algorithm, words, eta=eta, seed=SEEDS[0]) for eta in GRID]
    return Unit("rates", f"{name}, {algorithm}", tuple(points), (len(SEEDS), *_telling(name)))


def _clipping(C: int, algorithm: str, words: Words) -> Unit:
    names = [name for name in PRESETS if name.startswith(f"paper/clipping-c{C}-")]
    points = [_point(name, algorithm, words, seed=SEEDS[0]) for name in names]
    return Unit(
        "clipping", f"clipping, C={C}, {algorithm}", tuple(points), (1, *_telling(f"cross-device-mnist-c{C}-k10"))
    )


def _batch(number: int, batch: Batch, seeds: Sequence[int], words: Words) -> Unit:
    plan, rank = Tuning(batch, words), (len(SEEDS) + 1, list(STUDIES).index(batch.study), number)
    return Unit(batch.study, f"{batch.study}: {batch.name}", tuple(plan.points().points), rank, plan, tuple(seeds))


def _telling(name: str) -> tuple[int, ...]:
    """Cheap sets before dear ones, one class a client before two, few local steps before many, devices before silos."""
    cell = CELLS[name]
    return SETS.index(cell.data), cell.K, cell.C, int(cell.setting == "cross-silo")


def _point(preset: str, algorithm: str, words: Words, **settings: float) -> Point:
    own = {name: f"{value:g}" for name, value in settings.items()}
    said = [f"preset={preset}", f"algorithm={algorithm}", *(f"{name}={text}" for name, text in own.items()), *words]
    return Point(
        spec_of(None, said), (("preset", preset.removeprefix("paper/")), ("algorithm", algorithm), *own.items())
    )


class Paces:
    """Paces of this machine, measured once for every pair of set and model."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Pace] = {}

    def of(self, spec: Spec) -> Pace:
        """The pace of a run like this."""
        pair = spec.data.name, spec.model.name
        if pair not in self.known:
            self.known[pair] = probe(spec)
        return self.known[pair]


def probe(spec: Spec) -> Pace:
    """A few steps and a few test images, timed: seconds of a step and of a look at the whole test set.

    The best of several rounds counts: whatever else runs here only ever makes them longer.
    """
    data, few = load(spec.data.name), min(PROBED, len(load(spec.data.name).test))
    small = replace(data, test=data.test.part(np.arange(few)))
    learning = Learning(trial_of(_short(spec)), small, partition_of(spec, data))
    state = learning.algorithm.init(learning.x0())
    rounds = resume(learning.algorithm, 0, state, learning.order, learning.clients, R=PROBE)
    step = _least(lambda: next(rounds)) / _short(spec).K
    look = _least(lambda: learning.evaluator.score(learning.x0()))
    return Pace(step, look * len(data.test) / few)


def _least(work: Callable[[], object]) -> float:
    """The shortest of at most PROBE times, within about a second after the first."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < PROBE - 1 and (not times or time.perf_counter() - began < 1):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return min(times)


def _short(spec: Spec) -> Spec:
    """Rounds of one visit."""
    K = 1 if spec.model.name == "vgg11" else 10
    return spec.model_copy(update={"K": K, "order": "sampled", "S": 1, "algorithm": "ssl"})


@dataclass(frozen=True)
class Price:
    """Runs of a unit, those that are done, and the seconds that the others take on one core."""

    runs: int
    done: int
    left: float


def prices(found: Sequence[Unit], out: Path) -> list[Price]:
    """What each unit costs here; what lies in the folder is paid."""
    paces = Paces()
    return [_price(unit, out, paces) for unit in found]


def _price(unit: Unit, out: Path, paces: Paces) -> Price:
    runs = unit.runs(out)
    shares = [_left(folder, point) for folder, point in runs]
    costs = (
        share and share * paces.of(point.spec).seconds(point.spec)
        for share, (_, point) in zip(shares, runs, strict=True)
    )
    return Price(len(runs), shares.count(0.0), sum(costs))


def _left(folder: Path, point: Point) -> float:
    """The share of a run's rounds that are still to be run."""
    rows = RunDirectory(home(folder, point)).seen()
    return 1 - min(1.0, rows[-1]["round"] / point.spec.R) if rows else 1.0


def within(found: Sequence[Unit], costs: Sequence[float], budget: float | None) -> list[Unit]:
    """The most telling units whose costs, one after another, stay within the budget."""
    if budget is None:
        return list(found)
    taken, spent = [], 0.0
    for unit, cost in zip(found, costs, strict=True):
        if spent + cost <= budget:
            taken.append(unit)
            spent += cost
    return taken


def seconds_of(text: str) -> float:
    """'2h', '30m', '1h30m', '90s' in seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError("a budget is a time", value=repr(text), way_out="For example: --budget 2h, 1h30m or 90s.")
    return sum(float(number) * UNITS[unit] for number, unit in parts)
