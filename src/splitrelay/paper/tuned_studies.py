"""A batch of a study, run: the grid of every setting with one seed, on beyond its edges, then the best with all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitrelay.paper.studies import Batch
from splitrelay.runs.rows import compute_final_accuracy
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import SEEDS, load_spec
from splitrelay.sweeps.grid_search import Choice, RateScore, search_rates
from splitrelay.sweeps.points import Point, Points, Settings, drop_duplicates
from splitrelay.sweeps.sweep import SweepStatus, find_run_folder

SEARCH, BEST = "search", "best"  # the two folders of a study
Words = tuple[str, ...]
Sweep = Callable[[Sequence[Point], Path], SweepStatus]


@dataclass(frozen=True)
class Tuning:
    """The search of a batch; `words` go on top of every spec."""

    batch: Batch
    words: Words = ()
    tune: str = "test"

    def points(self) -> Points:
        """Every setting with every norm and rate."""
        found = [(*setting, ("clip", clip)) for setting in self.batch.settings for clip in self.batch.clips]
        return drop_duplicates([point for settings in found for point in self.list_points(settings, self.batch.rates)])

    def list_points(self, settings: Settings, etas: Sequence[float]) -> list[Point]:
        """One setting and norm at these rates."""
        looks = (("seed", str(SEEDS[0])), ("every", str(self.batch.look)))
        return [self._point((*settings, ("eta", f"{eta:.6g}")), looks) for eta in etas]

    def final(self, settings: Settings, eta: float, seed: int) -> Point:
        """A setting as it is shown in the end."""
        looks = (("every", str(self.batch.final_look)),)
        return self._point((*settings, ("eta", f"{eta:.6g}"), ("seed", str(seed))), looks)

    def _point(self, telling: Settings, more: Settings) -> Point:
        return Point(load_spec(None, [*(f"{name}={text}" for name, text in (*telling, *more)), *self.words]), telling)


def run_batch(plan: Tuning, folder: Path, run: Sweep, seeds: Sequence[int]) -> None:
    """Search, then all seeds of the best; what lies in the folder is not run again."""
    choices = search_rates(plan, lambda points: run(points, folder / SEARCH), extend=True)
    points = find_winners(plan, choices, seeds)
    if points:
        run(points, folder / BEST)


def find_winners(plan: Tuning, choices: Iterable[Choice], seeds: Sequence[int]) -> list[Point]:
    """Of every setting the best norm and rate, with each seed; none where every rate diverged."""
    best: dict[Settings, tuple[Settings, RateScore]] = {}
    for choice in choices:
        contest = tuple(setting for setting in choice.settings if setting[0] != "clip")
        if choice.best.score is not None and (contest not in best or choice.best.rank > best[contest][1].rank):
            best[contest] = choice.settings, choice.best
    return [plan.final(settings, tried.eta, seed) for seed in seeds for settings, tried in best.values()]


def list_expected_runs(plan: Tuning, folder: Path, seeds: Sequence[int]) -> list[tuple[Path, Point]]:
    """All runs of a batch with their folders, as far as is known: whatever leads now is taken for the best."""
    points = plan.points().points
    choices = [
        Choice(tuple(pair for pair in point.settings if pair[0] != "eta"), (_tried(point, folder / SEARCH),))
        for point in points
    ]
    return [(folder / SEARCH, point) for point in points] + [
        (folder / BEST, point) for point in find_winners(plan, choices, seeds)
    ]


def _tried(point: Point, folder: Path) -> RateScore:
    rows = RunDirectory(find_run_folder(folder, point)).read_rows()
    score = compute_final_accuracy(rows) if rows else None
    return RateScore(point.spec.optimiser.eta, score or 0.0, point.name)
