"""Summarise a setting as in the paper's tables: accuracy, its spread, and the rounds to reach a goal.

Let a(s, r) be the test accuracy of seed s after round r, over n seeds and the T evaluations of the last 20 rounds (of
at most a fifth of the run). A run that diverged has its last value in place of all T.

    mean    a  = 1/(n T)  sum_s sum_r a(s, r)
    spread  sd = sqrt( 1/(n T - 1)  sum_s sum_r (a(s, r) - a)^2 )

The spread is one standard deviation of all n T values: it includes the differences between seeds and the variation
along a curve. The accuracy of a seed is its mean over the T evaluations. The median is taken over these n accuracies.
A run has collapsed if it diverged, or if its accuracy is more than 20 points below the best mean over T consecutive
evaluations. The rounds to a goal are the first evaluation at which the mean over seeds is at the goal or above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitrelay.paper.cells import CELLS, MODELS, Cell
from splitrelay.reports.seed_groups import Group
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, count_final_rounds
from splitrelay.runs.spec import Spec

Floats = NDArray[np.float64]
GOALS = {1: 0.30}  # by C, of ExDir; the paper's goal elsewhere is
GOAL = 0.75
COLLAPSE = 0.2  # a run that ends this far below its best has collapsed


@dataclass(frozen=True)
class Curve:
    """One field of all seeds, over the rounds in which all of them were evaluated: a row for each seed."""

    rounds: NDArray[np.int64]
    values: Floats

    @property
    def mean(self) -> Floats:
        """Return the mean over seeds."""
        return np.asarray(self.values.mean(0))

    @property
    def deviation(self) -> Floats:
        """Return the standard deviation over seeds, NaN for one seed."""
        n = len(self.values)
        return np.asarray(self.values.std(0, ddof=1)) if n > 1 else np.full(len(self.rounds), math.nan)

    def at(self, keep: NDArray[np.bool_]) -> Curve:
        """Return some of the evaluations."""
        return Curve(self.rounds[keep], self.values[:, keep])


@dataclass(frozen=True)
class Summary:
    """A setting over its seeds.

    Attributes:
        mean: The mean accuracy, between 0 and 1, as all accuracies here.
        spread: The standard deviation of all values, NaN for a single value.
        evaluations: The number of evaluations of each seed that were averaged.
        goal: The accuracy to reach.
        rounds: The first round at the goal or above, None if there is none.
    """

    mean: float
    spread: float
    evaluations: int
    goal: float
    rounds: int | None


def build_curve(group: Group, field: str = "test_accuracy") -> Curve:
    """Return a field of the rows, NaN where a row has none. A run that diverged keeps its last value until round R."""
    columns = [run.column("round") for run in group.runs]
    if not group.diverged and all(column == columns[0] for column in columns):  # the usual case, several times faster
        values = [run.column(field) for run in group.runs]
        return Curve(np.array(columns[0], dtype=np.int64), np.array(values, dtype=np.float64))
    rows = [{row["round"]: row for row in run.rows} for run in group.runs]
    every = set().union(*rows, {run.spec.R for run in group.diverged})
    for run, by_round in zip(group.runs, rows, strict=True):
        if run.has_diverged:
            by_round.update({r: run.rows[-1] for r in every if r > run.rows[-1]["round"]})
    rounds = sorted(set.intersection(*(set(by_round) for by_round in rows)))
    values = [[by_round[r].get(field) for r in rounds] for by_round in rows]
    return Curve(np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64))


def compute_axis(group: Group, axis: str) -> Floats:
    """Return the mean over seeds of the rounds, the MB between clients and server ("bytes"), or the seconds so far."""
    if axis == "bytes":
        return (build_curve(group, "bytes_up").mean + build_curve(group, "bytes_down").mean) / 1e6
    return build_curve(group, "seconds").mean if axis == "seconds" else build_curve(group).rounds.astype(np.float64)


def get_metric_unit(name: str) -> tuple[str, float]:
    """Return the unit in which a field of the rows is shown, and its factor."""
    if name.endswith("accuracy"):
        return "%", 100.0
    return ("MB", 1e-6) if "bytes" in name else ("", 1.0)


def describe_metric(name: str) -> str:
    """Return the name of a field of the rows for people, with its unit."""
    unit, _ = get_metric_unit(name)
    return name.replace("_", " ") + f" ({unit})" * bool(unit)


def select_tail(seen: Curve, last: int = LAST) -> Curve:
    """Return the evaluations of the last rounds, as `select_final_rows` does for one run."""
    end = int(seen.rounds[-1]) if len(seen.rounds) else 0
    return seen.at((seen.rounds > end - count_final_rounds(end, last)) & (seen.rounds > 0))


def select_final_values(group: Group, last: int = LAST, field: str = "test_accuracy") -> Floats:
    """Return a field at the end: a row for each seed, a column for each of its last evaluations.

    A run that diverged has its last value in all columns, even if it ended within the last rounds.
    """
    seen = build_curve(group, field)
    values = select_tail(seen, last).values
    for i, run in enumerate(group.runs):
        if run.has_diverged:
            values[i] = seen.values[i, -1]
    return values


def summarise_group(group: Group, last: int = LAST, goal: float | None = None) -> Summary:
    """Return mean, spread and rounds to the goal (by default the paper's goal for this C)."""
    seen = build_curve(group)
    end = select_final_values(group, last)
    wanted = get_goal(group.spec) if goal is None else goal
    mean = float(end.mean()) if end.size else math.nan
    spread = float(end.std(ddof=1)) if end.size > 1 else math.nan
    return Summary(mean, spread, end.shape[1], wanted, find_first_round(seen, wanted))


def compute_by_seed(group: Group, last: int = LAST) -> dict[int, float]:
    """Return the accuracy of each seed, NaN if it was not evaluated after the first round."""
    return {run.spec.seed: compute_run_accuracy(run, last) for run in group.runs}


def compute_run_accuracy(run: Run, last: int = LAST, field: str = "test_accuracy") -> float:
    """Return the accuracy of one run: its mean over the last rounds, NaN if there is no evaluation after round 0."""
    values = select_final_values(Group((run,)), last, field) if run.rows else np.empty(0)
    return float(values.mean()) if values.size else math.nan


def has_collapsed(run: Run, last: int = LAST) -> bool:
    """Return whether a run diverged, or ended more than `COLLAPSE` below the best mean over as many evaluations."""
    if run.has_diverged:
        return True
    seen = build_curve(Group((run,)))
    width = select_tail(seen, last).values.shape[1]
    values = seen.values[0, seen.rounds > 0]
    if not width or np.isnan(values).any():
        return False
    sums = np.cumsum([0.0, *values])
    means = (sums[width:] - sums[:-width]) / width
    return bool(means.max() - means[-1] > COLLAPSE)


def compare_seeds(ours: Group, theirs: Group, last: int = LAST) -> Floats:
    """Return ours minus theirs for every seed that both have, in percentage points."""
    above, below = compute_by_seed(ours, last), compute_by_seed(theirs, last)
    return np.array([100 * (above[seed] - below[seed]) for seed in above if seed in below], dtype=np.float64)


def find_first_round(seen: Curve, goal: float) -> int | None:
    """Return the first evaluated round in which the mean over seeds is at the goal or above, or None."""
    reached = seen.rounds[seen.mean >= goal]
    return int(reached[0]) if len(reached) else None


def get_goal(spec: Spec) -> float:
    """Return the paper's goal: 30 % if each client has one class, else 75 %."""
    return GOALS.get(spec.partition.C, GOAL) if spec.partition.kind == "exdir" else GOAL


def find_paper_cell(spec: Spec) -> Cell | None:
    """Return the cell of the paper with these settings (of any rate and clipping), or None."""
    part, everyone = spec.partition, spec.S or spec.partition.M
    if part.kind != "exdir" or part.alpha != 10 or everyone != 10 or MODELS.get(spec.data.name) != spec.model.name:
        return None
    same = (found for found in CELLS.values() if (found.data, found.C, found.K) == (spec.data.name, part.C, spec.K))
    return next((found for found in same if found.M == part.M), None)


def describe_ends(groups: Sequence[Group], last: int = LAST) -> list[str]:
    """Return a note if not every one of the last rounds was evaluated."""
    ends = [find_last_round(group) for group in groups]
    counts = [summarise_group(group, last).evaluations for group in groups]
    if all(count == count_final_rounds(end, last) for count, end in zip(counts, ends, strict=True)):
        return []
    few = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return [f"Not every round was evaluated: the means are over {few} evaluation{'s' * (few != '1')} for each seed."]


def find_last_round(group: Group) -> int:
    """Return the last round in which all seeds were evaluated."""
    rounds = build_curve(group).rounds
    return int(rounds[-1]) if len(rounds) else 0
