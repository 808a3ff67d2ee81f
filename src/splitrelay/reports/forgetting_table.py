"""Tabulate forgetting: the accuracy of single classes while an algorithm trains.

With a(s, r, c) the test accuracy on class c with seed s after round r, over the evaluations of the last 20 rounds,

    worst  the mean over s and r of  min_c a(s, r, c)
    swing  the mean over s and c of the standard deviation over r of a(s, r, c)

An average over clients changes little from round to round. A model that favours the clients that trained last has a
different worst class after every round, and the accuracy of every class varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.summary import find_last_round
from splitrelay.reports.table_layout import AUTO, Choice, choose_runs, describe_choices, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.table import Heading, Table


@dataclass(frozen=True)
class ClassStatistics:
    """Worst and swing in percentage points. swing is NaN for a single evaluation."""

    worst: float
    swing: float


def compute_class_statistics(group: Group, last: int = LAST) -> ClassStatistics:
    """Return the statistics over the classes that occur in the test set."""
    seen = [_select_late(run, last) for run in group.runs]
    worst = np.mean([values.min(1).mean() for values in seen])
    swing = np.mean([values.std(0, ddof=1).mean() if len(values) > 1 else math.nan for values in seen])
    return ClassStatistics(100 * float(worst), 100 * float(swing))


def _select_late(run: Run, last: int) -> NDArray[np.float64]:
    """Return one row per evaluation of the last rounds, with one column per class."""
    rows = [row["test_per_class"] for row in run.select_final_rows(last)]
    values = np.array(rows, dtype=np.float64)  # None (a class without test images) becomes NaN
    return values[:, ~np.isnan(values).any(0)]


def build_classes_table(
    runs: Sequence[Run], *, rule: str = AUTO, last: int = LAST, tuning: Sequence[int] = ()
) -> Table:
    """Build one row per setting and partition, with two columns per algorithm."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning)
    names = list(dict.fromkeys(choice.column.name for choice in choices))
    heads = [Heading(name, is_numeric=name == "K", is_label=True) for name in ("setting", "data", "partition", "K")]
    heads += [Heading(text, name, is_numeric=True) for name in names for text in ("worst", "swing")]
    places = [choice.place for choice in choices]
    lines = list(dict.fromkeys((choice.place, choice.column.partition) for choice in choices))
    rows = []
    for place, partition in lines:
        here = {c.column.name: c for c in choices if (c.place, c.column.partition) == (place, partition)}
        where = map(str, (place.setting, row_label(place, places), partition, place.K))
        rows.append([*where, *(cell for name in names for cell in _build_cells(here.get(name), last))])
    rounds = describe_final_rounds([find_last_round(choice.best) for choice in choices], last)
    caption = (
        f"Test accuracy in % on single classes, over seeds and the {rounds}. Worst: the accuracy of the worst class, "
        "averaged over evaluations. Swing: the standard deviation of a class over evaluations, averaged "
        "over classes."
    )
    said = [*describe_seeds([choice.best for choice in choices]), *describe_choices(choices), *notes]
    records = [_build_record(choice, last) for choice in choices]
    return Table(heads, rows, caption=caption, notes=said, name="classes", records=records)


def _build_cells(choice: Choice | None, last: int) -> list[str]:
    if choice is None:
        return ["", ""]
    found = compute_class_statistics(choice.best, last)
    return [("" if math.isnan(value) else f"{value:.1f}") for value in (found.worst, found.swing)]


def _build_record(choice: Choice, last: int) -> dict[str, object]:
    spec, found = choice.best.spec, compute_class_statistics(choice.best, last)
    where = {"data": spec.data.name, "M": spec.partition.M, "C": spec.partition.C, "K": spec.K}
    swing = None if math.isnan(found.swing) else round(found.swing, 4)
    return {**where, "algorithm": choice.column.name, "worst": round(found.worst, 4), "swing": swing}
