"""Run a batch of a study: search the rates of every setting with one seed, then run the best with all seeds."""

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
    best: dict[Settings, tuple[Settings, RateScore]] = {}
    for choice in choices:
        fixed = tuple(setting for setting in choice.settings if setting[0] != "clip")
        if choice.best.score is not None and (fixed not in best or choice.best.rank > best[fixed][1].rank):
            best[fixed] = choice.settings, choice.best
    return [plan.build_final_point(settings, tried.eta, seed) for seed in seeds for settings, tried in best.values()]


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
    return RateScore(point.spec.optimiser.eta, score or 0.0, point.name)
