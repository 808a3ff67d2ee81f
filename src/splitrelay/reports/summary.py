"""A setting in three numbers, as in the paper's tables: accuracy, its spread, and the rounds that a goal took.

With a(s, r) the test accuracy of seed s after round r, over n seeds and the T looks of the last 20 rounds,

    mean    a  = 1/(n T)  sum_s sum_r a(s, r)
    spread  sd = sqrt( 1/(n T - 1)  sum_s sum_r (a(s, r) - a)^2 )

one standard deviation of all n T values pooled: it holds both how much seeds differ and how much a curve still swings.
The rounds to a goal are the first look at which the mean over seeds, 1/n sum_s a(s, r), is at the goal or above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.paper.cells import CELLS, MODELS, Cell
from splitrelay.reports.seed_groups import Group, is_diverged
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST
from splitrelay.runs.spec import Spec

Floats = NDArray[np.float64]
GOALS = {1: 0.30}  # by C, of ExDir; the paper's goal elsewhere is
GOAL = 0.75


@dataclass(frozen=True)
class Curve:
    """One field of all seeds, over the rounds that all of them have seen: a row for each seed."""

    rounds: NDArray[np.int64]
    values: Floats

    @property
    def mean(self) -> Floats:
        """Over seeds."""
        return np.asarray(self.values.mean(0))

    @property
    def deviation(self) -> Floats:
        """Over seeds; NaN where there is one."""
        n = len(self.values)
        return np.asarray(self.values.std(0, ddof=1)) if n > 1 else np.full(len(self.rounds), math.nan)

    def at(self, keep: NDArray[np.bool_]) -> Curve:
        """The looks that are kept."""
        return Curve(self.rounds[keep], self.values[:, keep])


@dataclass(frozen=True)
class Summary:
    """Shares, not percent; spread is NaN for a single value, rounds None where the goal is never reached."""

    mean: float
    spread: float
    looks: int  # T: looks that were averaged, for each seed
    goal: float
    rounds: int | None


def build_curve(group: Group, field: str = "test_accuracy") -> Curve:
    """A field of the rows; NaN where a row has none. A run that diverged keeps its last value until round R."""
    rows = [{row["round"]: row for row in run.rows} for run in group.runs]
    every = set().union(*rows, {run.spec.R for run in group.diverged})
    for run, by_round in zip(group.runs, rows, strict=True):
        if is_diverged(run):
            by_round.update({r: run.rows[-1] for r in every if r > run.rows[-1]["round"]})
    rounds = sorted(set.intersection(*(set(by_round) for by_round in rows)))
    values = [[_float(by_round[r].get(field)) for r in rounds] for by_round in rows]
    return Curve(np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64))


def select_tail(seen: Curve, last: int = LAST) -> Curve:
    """The looks of the last rounds; the one before the first round never counts."""
    end = seen.rounds[-1] if len(seen.rounds) else 0
    return seen.at((seen.rounds > end - last) & (seen.rounds > 0))


def select_late_rows(run: Run, last: int = LAST) -> list[dict[str, Any]]:
    """The same looks of one run, with all that was seen."""
    end = run.rows[-1]["round"]
    return [row for row in run.rows if row["round"] > max(end - last, 0)]


def summarise_group(group: Group, last: int = LAST, goal: float | None = None) -> Summary:
    """Mean, spread and rounds to the goal (the paper's for this C, unless said)."""
    seen = build_curve(group)
    end = select_tail(seen, last).values
    wanted = get_goal(group.spec) if goal is None else goal
    mean = float(end.mean()) if end.size else math.nan
    spread = float(end.std(ddof=1)) if end.size > 1 else math.nan
    return Summary(mean, spread, end.shape[1], wanted, find_first_round(seen, wanted))


def compute_by_seed(group: Group, last: int = LAST) -> dict[int, float]:
    """The mean over the last rounds, for each seed."""
    return {run.spec.seed: float(select_tail(build_curve(Group((run,))), last).values.mean()) for run in group.runs}


def compare_seeds(ours: Group, theirs: Group, last: int = LAST) -> Floats:
    """How far ours is above theirs with every seed that both have, in points of percent."""
    above, below = compute_by_seed(ours, last), compute_by_seed(theirs, last)
    return np.array([100 * (above[seed] - below[seed]) for seed in above if seed in below], dtype=np.float64)


def find_first_round(seen: Curve, goal: float) -> int | None:
    """The first look at which the mean curve is at the goal or above."""
    reached = seen.rounds[seen.mean >= goal]
    return int(reached[0]) if len(reached) else None


def get_goal(spec: Spec) -> float:
    """30 % where each client has one class, else 75 %."""
    return GOALS.get(spec.partition.C, GOAL) if spec.partition.kind == "exdir" else GOAL


def find_paper_cell(spec: Spec) -> Cell | None:
    """The cell of the paper that has these settings, rates and clipping aside; None where there is none."""
    part, everyone = spec.partition, spec.S or spec.partition.M
    if part.kind != "exdir" or part.alpha != 10 or everyone != 10 or MODELS.get(spec.data.name) != spec.model.name:
        return None
    same = (found for found in CELLS.values() if (found.data, found.C, found.K) == (spec.data.name, part.C, spec.K))
    return next((found for found in same if found.M == part.M), None)


def describe_ends(groups: Sequence[Group], last: int = LAST) -> list[str]:
    """A sentence where fewer rounds than asked for, or not every round, went into the means."""
    looks = {summarise_group(group, last).looks for group in groups}
    if looks == {last}:
        return []
    few = f"{min(looks)}" if len(looks) == 1 else f"{min(looks)} to {max(looks)}"
    return [f"The means are over {few} looks a seed: not every one of the last {last} rounds was looked at."]


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
