"""Define our own studies: the settings to compare, their rates and their rounds.

Every batch is a fair comparison: each of its settings is tuned on the same grid with one seed, and its best rate
is then run with all seeds.

Run a batch of a study: search the rates of every setting with one seed, then run the best with all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from splitrelay.runs.run_directory import RunDirectory, compute_final_accuracy
from splitrelay.runs.spec import SEEDS, load_spec
from splitrelay.sweeps.grid_search import Choice, RateScore, choose_settings, search_rates
from splitrelay.sweeps.points import Point, Points, Settings, drop_duplicates
from splitrelay.sweeps.sweep import SweepStatus, find_run_folder

PAIR = ("ssl", "fedavg")
SMALL = ("mnist", "fashion-mnist")  # data sets on which LeNet-5 runs in minutes
RATES = (0.003, 0.01, 0.03, 0.05, 0.1, 0.3)
FOUR = (0.003, 0.01, 0.03, 0.1)
EITHER, CLIPPED = ("10", "none"), ("10",)  # clipping norms to choose from


@dataclass(frozen=True)
class Batch:
    """Settings to compare, each tuned over the rates and norms.

    Attributes:
        every: Rounds between two evaluations while tuning.
        final_every: Rounds between two evaluations of the final runs.
    """

    study: str
    name: str
    settings: tuple[Settings, ...]
    rates: tuple[float, ...]
    clips: tuple[str, ...]
    every: int = 5
    final_every: int = 1


def parse_settings(*words: str) -> Settings:
    """Return settings from words such as 'algorithm=ssl'."""
    return tuple((name, text) for name, _, text in (word.partition("=") for word in words))


def build_tuned() -> Iterator[Batch]:
    """Yield the paper's cells for MNIST and Fashion-MNIST, with rates and clipping tuned for both algorithms alike."""
    for K, data, C in product((10, 20), SMALL, (1, 2)):
        cell = f"cross-device-{data}-c{C}-k{K}"
        settings = tuple(parse_settings(f"preset=paper/{cell}", f"algorithm={name}") for name in PAIR)
        yield Batch("tuned", cell, settings, RATES, EITHER)


def get_silo_settings(data: str, C: int, K: int) -> tuple[str, ...]:
    """Return the settings of ten clients that all take part in every round."""
    return f"data={data}", "model=lenet5", "M=10", f"C={C}", "alpha=10", f"K={K}", "R=300", "protocol=paper"


def build_silos() -> Iterator[Batch]:
    """Yield ten clients, all in every round, on the small data sets. The paper has silos for CIFAR-10 only."""
    for data, K, C in product(SMALL, (5, 10, 20, 30), (1, 2)):
        settings = tuple(parse_settings(*get_silo_settings(data, C, K), f"algorithm={name}") for name in PAIR)
        yield Batch("silos", f"{data}, ExDir({C}, 10), K={K}", settings, FOUR, CLIPPED)


VARIANTS = (  # of the family, in the cell ExDir(1, 10), K=10; each differs from SSL or FedAvg of the paper in one key
    ("algorithm=ssl",),
    ("algorithm=ssl", "order=sampled"),
    ("algorithm=ssl", "tau=proportional"),
    ("algorithm=ssl", "form=balanced"),
    ("algorithm=ssl", "draw=replacement"),
    ("algorithm=fedavg",),
    ("algorithm=fedavg", "order=replacement"),
    ("algorithm=fedavg", "weighted=true"),
    ("algorithm=fedavg", "tau=proportional"),
    ("algorithm=fedavg", "form=balanced"),
    ("algorithm=fedavg", "draw=replacement"),
    ("algorithm=splitfed-v2",),
    ("algorithm=splitfed-v3",),
    ("algorithm=sflg", "G=2"),
    ("algorithm=fedseq", "G=2"),
    ("algorithm=scaffold",),
    ("algorithm=minibatch-sgd",),
)


AT_ONCE = 5  # settings that are searched together, so that all cores have work


def build_family() -> Iterator[Batch]:
    """Yield every algorithm and variant on one informative cell of each small data set.

    The fixed order is compared with new permutations with ten clients, because a round of all 500 clients is too long.
    """
    for data in SMALL:
        cell, ten = (f"preset=paper/cross-device-{data}-c1-k10", "R=400"), get_silo_settings(data, 1, 10)
        settings = [(*cell, *variant) for variant in VARIANTS]
        settings += [(*ten, "algorithm=ssl", f"order={order}") for order in ("permutation", "fixed")]
        for first in range(0, len(settings), AT_ONCE):
            some = tuple(parse_settings(*where) for where in settings[first : first + AT_ONCE])
            name = f"{data}, {first + 1} to {first + len(some)} of {len(settings)}"
            yield Batch("family", name, some, FOUR, CLIPPED, every=10, final_every=5)


def build_cnncifar() -> Iterator[Batch]:
    """Yield CIFAR-10 with a small network, for which a few hundred rounds are affordable."""
    for C in (1, 2):
        where = (
            "data=cifar10",
            "model=cnncifar",
            "M=500",
            "S=10",
            f"C={C}",
            "alpha=10",
            "K=5",
            "R=400",
            "protocol=paper",
        )
        settings = tuple(parse_settings(*where, f"algorithm={name}") for name in PAIR)
        yield Batch("cnncifar", f"cifar10, ExDir({C}, 10), K=5", settings, FOUR, CLIPPED, every=10, final_every=5)


def get_device_settings(S: int, C: int, alpha: float) -> tuple[str, ...]:
    """Return the settings of 500 clients, S of them in a round."""
    return "M=500", f"S={S}", f"C={C}", f"alpha={alpha:g}"


def build_landscape() -> Iterator[Batch]:
    """Yield variations of the paper's cell in one factor: heterogeneity (C, alpha) or participation S."""
    places = [(C, 10.0, 10) for C in (1, 2, 5, 10)] + [(2, alpha, 10) for alpha in (1.0, 100.0)]
    places += [(C, 10.0, S) for C in (1, 2) for S in (3, 30)]
    for C, alpha, S in places:
        where = (
            "data=fashion-mnist",
            "model=lenet5",
            *get_device_settings(S, C, alpha),
            "K=10",
            "R=400",
            "protocol=paper",
        )
        settings = tuple(parse_settings(*where, f"algorithm={name}") for name in PAIR)
        yield Batch("landscape", f"ExDir({C}, {alpha:g}), S={S}", settings, FOUR, CLIPPED, every=10, final_every=5)


STUDIES = {
    "tuned": build_tuned,
    "silos": build_silos,
    "family": build_family,
    "cnncifar": build_cnncifar,
    "landscape": build_landscape,
}


def list_batches(study: str) -> list[Batch]:
    """Return all batches of a study, the most informative first."""
    return list(STUDIES[study]())


SEARCH, BEST = "search", "best"  # the two folders of a study
Words = tuple[str, ...]
Sweep = Callable[[Sequence[Point], Path], SweepStatus]


@dataclass(frozen=True)
class Tuning:
    """The search of a batch. `words` are settings that override every spec."""

    batch: Batch
    words: Words = ()
    tune: str = "test"

    def points(self) -> Points:
        """Return every setting with every norm and rate."""
        found = [(*setting, ("clip", clip)) for setting in self.batch.settings for clip in self.batch.clips]
        return drop_duplicates([point for settings in found for point in self.list_points(settings, self.batch.rates)])

    def list_points(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """Return the points of one setting and norm at these rates."""
        more = (("seed", str(SEEDS[0])), ("every", str(self.batch.every)))
        return [self._build_point((*settings, ("eta", f"{eta:.6g}")), more) for eta in etas]

    def build_final_point(self, settings: Settings, eta: float, seed: int) -> Point:
        """Return the point of a final run."""
        more = (("every", str(self.batch.final_every)),)
        return self._build_point((*settings, ("eta", f"{eta:.6g}"), ("seed", str(seed))), more)

    def _build_point(self, shown: Settings, more: Settings) -> Point:
        return Point(load_spec(None, [*(f"{name}={text}" for name, text in (*shown, *more)), *self.words]), shown)


def run_batch(plan: Tuning, folder: Path, run: Sweep, seeds: Sequence[int]) -> None:
    """Search the rates, then run the best with all seeds. Finished runs in the folder are not repeated."""
    choices = search_rates(plan, lambda points: run(points, folder / SEARCH), extend=True)
    points = choose_final_points(plan, choices, seeds)
    if points:
        run(points, folder / BEST)


def choose_final_points(plan: Tuning, choices: Iterable[Choice], seeds: Sequence[int]) -> list[Point]:
    """Return the best norm and rate of every setting, with each seed. Skip settings whose rates all diverged."""
    best = {settings: tried for settings, tried in choose_settings(list(choices)).items() if tried.score is not None}
    return [plan.build_final_point(settings, tried.eta, seed) for seed in seeds for settings, tried in best.items()]


def list_expected_runs(plan: Tuning, folder: Path, seeds: Sequence[int]) -> list[tuple[Path, Point]]:
    """Return all runs of a batch with their folders. The best rate so far is taken for the final one."""
    points = plan.points().points
    choices = [
        Choice(tuple(pair for pair in point.settings if pair[0] != "eta"), (_score_point(point, folder / SEARCH),))
        for point in points
    ]
    return [(folder / SEARCH, point) for point in points] + [
        (folder / BEST, point) for point in choose_final_points(plan, choices, seeds)
    ]


def _score_point(point: Point, folder: Path) -> RateScore:
    rows = RunDirectory(find_run_folder(folder, point)).read_rows()
    score = compute_final_accuracy(rows) if rows else None
    step = point.spec.optimiser
    return RateScore(step.eta, (score or 0.0,), (point.name,), point.spec.R, step.clip)
