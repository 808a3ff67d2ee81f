"""List the runs that reproduce the paper's section 5 and our own studies, the most informative first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from splitrelay.errors import UnknownName
from splitrelay.models import get_model_spec
from splitrelay.models.summary import summarize_model
from splitrelay.paper.cells import CELLS
from splitrelay.paper.presets import PRESETS
from splitrelay.paper.studies import PAIR, SMALL, STUDIES, Batch, Tuning, list_batches, list_expected_runs
from splitrelay.runs.spec import SEEDS, load_spec
from splitrelay.sweeps.grid_search import DEFAULT_RATES
from splitrelay.sweeps.points import Point

UNTRAINED = ("quadratics", "partitions")
LISTS = (*UNTRAINED, "cross-device", "cross-silo", "rates", "clipping", *STUDIES, "cuts", "reasons", "vgg11")
SETS = ("mnist", "fashion-mnist", "cifar10")  # the cheapest first
AFFORDABLE = 150  # rounds of VGG-11 with 15 evaluations: about an hour on one core, on the fast engine
DOUBTS: tuple[dict[str, str], ...] = (
    {}, {"form": "balanced"}, {"draw": "replacement"}, {"weighted": "true"}, {"clip": "10"}, {"eta": "0.0005"}
)  # fmt: skip
Words = tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """Runs that belong together: the same cell and seed with every algorithm or rate, or a batch to tune."""

    kind: str  # cells, rates, clipping or a study: the folder
    name: str
    points: tuple[Point, ...]
    rank: tuple[int, ...]  # the most informative units come first
    tuning: Tuning | None = None
    seeds: tuple[int, ...] = SEEDS

    def runs(self, out: Path) -> list[tuple[Path, Point]]:
        """Return every run with its folder. Of a batch, return the runs that are known already."""
        if self.tuning is not None:
            return list_expected_runs(self.tuning, out / self.kind, self.seeds)
        return [(out / self.kind, point) for point in self.points]


def find_units(names: Sequence[str], seeds: Sequence[int] = SEEDS, words: Sequence[str] = ()) -> list[Unit]:
    """Return the units of the given lists and cells, the most informative first.

    Args:
        names: Lists (LISTS) or cells of the paper.
        seeds: The seeds of each cell.
        words: Settings that override every spec, for example fewer rounds.
    """
    found: dict[str, Unit] = {}
    for name in names:
        if name not in (*LISTS, *CELLS):
            raise UnknownName("reproduction", name, (*LISTS, *CELLS))
        found |= {f"{unit.kind} {unit.name}": unit for unit in _find_units(name, seeds, tuple(words))}
    return sorted(found.values(), key=lambda unit: unit.rank)


def _find_units(name: str, seeds: Sequence[int], words: Words) -> Iterator[Unit]:
    if name == "clipping":
        yield from (_build_clipping(C, algorithm, words) for C, algorithm in product((2, 1), PAIR))
    elif name == "rates":
        yield from (_build_rates(cell, algorithm, words) for cell, algorithm in product(CELLS, PAIR))
    elif name == "cuts":
        yield _build_cuts(words)
    elif name == "reasons":
        yield from (_build_reasons(data, words) for data in SMALL)
    elif name == "vgg11":
        yield from (_build_vgg11(setting, words) for setting in ("cross-device", "cross-silo"))
    elif name in STUDIES:
        yield from (_build_batch(number, batch, seeds, words) for number, batch in enumerate(list_batches(name)))
    elif name not in UNTRAINED:
        cells = [cell for cell in CELLS if name in (cell, CELLS[cell].setting)]
        yield from (_build_cell(cell, seed, number, words) for cell in cells for number, seed in enumerate(seeds))


def _build_cell(name: str, seed: int, number: int, words: Words) -> Unit:
    points = [_build_point(f"paper/{name}", algorithm, words, seed=seed) for algorithm in PAIR]
    return Unit("cells", f"{name}, seed {seed}", tuple(points), (number, *_rank_cell(name)))


def _build_rates(name: str, algorithm: str, words: Words) -> Unit:
    points = [_build_point(f"paper/{name}", algorithm, words, eta=eta, seed=SEEDS[0]) for eta in DEFAULT_RATES]
    return Unit("rates", f"{name}, {algorithm}", tuple(points), (len(SEEDS), *_rank_cell(name)))


def _build_clipping(C: int, algorithm: str, words: Words) -> Unit:
    names = [name for name in PRESETS if name.startswith(f"paper/clipping-c{C}-")]
    points = [_build_point(name, algorithm, words, seed=SEEDS[0]) for name in names]
    return Unit(
        "clipping", f"clipping, C={C}, {algorithm}", tuple(points), (1, *_rank_cell(f"cross-device-mnist-c{C}-k10"))
    )


def _build_cuts(words: Words) -> Unit:
    """Cut LeNet-5 at every layer: the accuracies are the same, the bytes are not."""
    layers = [row.name for row in summarize_model(get_model_spec("lenet5", (1, 28, 28), 10)).layers[:-1]]
    short = ("R=20", *words)
    points = [
        _build_point("paper/cross-device-mnist-c2-k10", "ssl", short, cut=layer, seed=SEEDS[0]) for layer in layers
    ]
    return Unit("cuts", "cuts, LeNet-5 at every layer", tuple(points), (1, *_rank_cell("cross-device-mnist-c2-k10")))


def _build_reasons(data: str, words: Words) -> Unit:
    """Run FedAvg with one class per client at the paper's rate, where our results differ, with one change each."""
    cell = f"cross-device-{data}-c1-k10"
    rarely = ("every=5", *words)
    points = [_build_point(f"paper/{cell}", "fedavg", rarely, **doubt, seed=SEEDS[0]) for doubt in DOUBTS]
    return Unit("reasons", f"reasons: FedAvg in {cell}", tuple(points), (len(SEEDS), *_rank_cell(cell)))


def _build_vgg11(setting: str, words: Words) -> Unit:
    """Run the paper's set-up on CIFAR-10 for about an hour without a GPU."""
    cell = f"{setting}-cifar10-c1-k5"
    short = (f"R={AFFORDABLE}", "every=10", "engine=fast", *words)  # auto leaves it to torch, which is slower here
    points = [_build_point(f"paper/{cell}", algorithm, short, seed=SEEDS[0]) for algorithm in PAIR]
    return Unit("vgg11", f"vgg11: {cell}, {AFFORDABLE} rounds", tuple(points), (len(SEEDS) + 2, *_rank_cell(cell)))


def _build_batch(number: int, batch: Batch, seeds: Sequence[int], words: Words) -> Unit:
    plan, rank = Tuning(batch, words), (len(SEEDS) + 1, list(STUDIES).index(batch.study), number)
    return Unit(batch.study, f"{batch.study}: {batch.name}", tuple(plan.points().points), rank, plan, tuple(seeds))


def _rank_cell(name: str) -> tuple[int, ...]:
    """Return a sort key: cheap data sets, few local steps, one class per client and cross-device come first."""
    cell = CELLS[name]
    return SETS.index(cell.data), cell.K, cell.C, int(cell.setting == "cross-silo")


def _build_point(preset: str, algorithm: str, words: Words, **settings: float | str) -> Point:
    own = {name: value if isinstance(value, str) else f"{value:g}" for name, value in settings.items()}
    settings_list = [
        f"preset={preset}",
        f"algorithm={algorithm}",
        *(f"{name}={text}" for name, text in own.items()),
        *words,
    ]
    return Point(
        load_spec(None, settings_list),
        (("preset", preset.removeprefix("paper/")), ("algorithm", algorithm), *own.items()),
    )
