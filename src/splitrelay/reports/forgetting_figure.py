"""Draw forgetting: the test accuracy on a client's classes by the position of the client in the round.

With every client in every round, in a fresh order, pi_r(i) the client at place i of round r, and a(s, r, c) the test
accuracy on class c with seed s after round r: the line at place i is the mean of a(s, r, c) over the evaluations of
the last rounds and the classes c whose last holder in round r is pi_r(i). If each class has one holder, all classes
take all places equally often, and a model that does not forget has a horizontal line. The holders follow from the spec
alone, so no data are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from splitrelay.data.partition_schemes import draw_covering
from splitrelay.errors import InputError
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.reports.curves import ACCURACY, build_panels, choose_line_styles, get_label
from splitrelay.reports.line_plots import Drawing, Line, LineStyle, grid
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.summary import Curve, select_late_rows
from splitrelay.reports.table_layout import Choice, choose_runs, describe_choices
from splitrelay.runs.records import Run
from splitrelay.runs.rows import LAST
from splitrelay.runs.spec import Spec

PLACE = "place in the round of the client with the class"


def draw_memory(runs: Sequence[Run], *, rule: str = "test", last: int = LAST) -> Drawing:
    """Draw one panel per data set and partition, with one line per algorithm and K."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last)
    line_styles = choose_line_styles(choices)
    panels = build_panels(choices, lambda choice: _line(choice, choices, line_styles, last))
    said = [*describe_seeds([choice.best for choice in choices]), *describe_choices(choices), *notes]
    said = [f"Each point is the mean over the evaluations of the last {last} rounds.", *said]
    caption = (
        "Test accuracy on a class against the place in the round of the last client that holds it: mean over seeds; "
        "the band is one standard deviation over seeds."
    )
    return Drawing(grid(panels, (PLACE, ACCURACY), said, line_styles), [caption, *said])


def _line(choice: Choice, choices: Sequence[Choice], line_styles: dict[str, LineStyle], last: int) -> Line:
    label, seen = get_label(choice, choices), compute_by_place(choice.best, last)
    return Line(label, line_styles[label], seen.rounds.astype(np.float64), seen.mean, seen.deviation)


def compute_by_place(group: Group, last: int = LAST) -> Curve:
    """Return percent at the places 1, ..., M, one row per seed; NaN at a place without a last holder."""
    values = [_of_run(run, last) for run in group.runs]
    return Curve(np.arange(1, group.spec.partition.M + 1), 100 * np.array(values, dtype=np.float64))


def _of_run(run: Run, last: int) -> list[float]:
    M = run.spec.partition.M
    holds, order = find_holders(run.spec, len(run.rows[-1]["test_per_class"])), Permutation(M, run.spec.seed)
    found: list[list[float]] = [[] for _ in range(M)]
    for row in select_late_rows(run, last):
        latest = M - 1 - holds[order(row["round"] - 1)][::-1].argmax(0)  # by class: its last holder
        for place, accuracy in zip(latest, row["test_per_class"], strict=True):
            found[place].append(math.nan if accuracy is None else accuracy)
    return [float(np.nanmean(seen)) if np.isfinite(seen).any() else math.nan for seen in found]


def find_holders(spec: Spec, classes: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return which clients (rows) hold which classes, if it follows from the spec."""
    part = spec.partition
    if part.kind != "exdir" or part.form != "paper" or (spec.S or part.M) < part.M or spec.order != "permutation":
        raise InputError(
            "memory needs runs in which all clients train in every round in a fresh order, with ExDir's classes",
            value=f"partition={part.kind} form={part.form} order={spec.order} S={spec.S} M={part.M}",
            limit="partition=exdir form=paper order=permutation S=M",
        )
    seed = spec.seed if part.seed is None else part.seed
    return draw_covering(part.M, part.C, classes, rng(seed, Purpose.PARTITION))
