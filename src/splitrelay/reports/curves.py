"""Draw accuracy by round or by bytes: the mean and standard deviation over seeds, one panel per partition.

Draw forgetting: the test accuracy on a client's classes by the position of the client in the round.

With every client in every round, in a fresh order, pi_r(i) the client at place i of round r, and a(s, r, c) the test
accuracy on class c with seed s after round r: the line at place i is the mean of a(s, r, c) over the evaluations of
the last rounds and the classes c whose last holder in round r is pi_r(i). If each class has one holder, all classes
take all places equally often, and a model that does not forget has a horizontal line. The holders follow from the spec
alone, so no data are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splitrelay.data.partition_schemes import draw_covering
from splitrelay.errors import InputError
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.reports.labels import get_data_label
from splitrelay.reports.line_plots import Drawing, Line, LineStyle, Panel, colours, grid, styles
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.style import LABEL, LOOK, open_figure, save_figure
from splitrelay.reports.summary import Curve, build_curve, compute_axis, find_last_round
from splitrelay.reports.table_layout import (
    AUTO,
    Choice,
    Place,
    choose_runs,
    column_key,
    describe_choices,
    name_splitfed,
    row_label,
)
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.runs.spec import Spec

if TYPE_CHECKING:
    from splitrelay.paper.demo import Cell


STRIDES = {"cifar10": 5}  # rounds between two points, as in the paper
FAR = 20  # times: lines that end further apart share a log axis
ROUNDS, ACCURACY = "training rounds", "test accuracy (%)"


def draw_curves(
    runs: Sequence[Run],
    *,
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
    smooth: int = 1,
    every_rate: bool = False,
    by_bytes: bool = False,
) -> Drawing:
    """Draw accuracy by round, or by the megabytes that clients and server have exchanged.

    If curves are smoothed, the label of the axis states it.
    """
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning, every_rate=every_rate)
    choices = [_name_splitfed(choice) for choice in choices] if by_bytes else choices
    along = "MB between clients and server" if by_bytes else ROUNDS
    return _build_drawing(choices, [*_describe(choices, smooth), *notes], along, smooth, by_bytes=by_bytes)


def _name_splitfed(choice: Choice) -> Choice:
    """Call FedAvg over a cut SplitFed V1: its traffic is not that of FedAvg."""
    return replace(choice, column=name_splitfed(choice.column, choice.best.spec))


def compute_accuracy_line(group: Group, smooth: int = 1) -> Curve:
    """Return percent at the rounds that are drawn: every fifth round of CIFAR-10, every round of other data sets."""
    found = build_curve(group)
    thin = found.at(found.rounds % STRIDES.get(group.spec.data.name, 1) == 0)
    return _smooth(Curve(thin.rounds, 100 * thin.values), smooth)


def _smooth(found: Curve, n: int) -> Curve:
    """Replace each point by the mean of the last n evaluations, seed by seed. The first n - 1 points are dropped."""
    if n == 1:
        return found
    if n > len(found.rounds):
        raise InputError("smooth is longer than a curve", value=n, limit=f"<= {len(found.rounds)} evaluations")
    windows = np.lib.stride_tricks.sliding_window_view(found.values, n, axis=1)
    return Curve(found.rounds[n - 1 :], np.asarray(windows.mean(-1)))


def _build_drawing(choices: Sequence[Choice], said: list[str], across: str, smooth: int, *, by_bytes: bool) -> Drawing:
    line_styles = choose_line_styles(choices)
    panels = build_panels(
        choices, lambda choice: _build_line(choice, choices, line_styles, smooth, by_bytes), log=by_bytes
    )
    upright = ACCURACY if smooth == 1 else f"{ACCURACY},\nmean of {smooth} evaluations"
    said = [*said, *_gaps(panels)]
    caption = f"Test accuracy against {across}: mean over seeds; the band is one standard deviation over seeds."
    return Drawing(grid(panels, (across, upright), said, line_styles), [caption, *said])


def build_panels(
    choices: Sequence[Choice], line: Callable[[Choice], Line], *, log: bool = False
) -> list[list[Panel | None]]:
    """Build one row of panels per data set and setting, with one column per partition.

    Args:
        choices: The runs to draw.
        line: Builds the line of a choice.
        log: Use a log x axis where the ends of the lines are far apart.
    """
    places = list(dict.fromkeys(choice.place for choice in choices))
    rows = list(dict.fromkeys(_build_row(place) for place in places))
    partitions = list(dict.fromkeys(c.column.partition for c in sorted(choices, key=lambda c: c.column.C)))
    found: list[list[Panel | None]] = []
    for row in rows:
        inside = [choice for choice in choices if _build_row(choice.place) == row]
        title = f"{row_label(inside[0].place, places)}, {row[0].partition(', ')[2]}, " if len(rows) > 1 else ""
        lines = {part: [line(c) for c in inside if c.column.partition == part] for part in partitions}
        panels = [Panel(f"{title}{part}", lines[part], log and _far_apart(lines[part])) for part in partitions]
        found.append([panel if panel.lines else None for panel in panels])
    return found


def _far_apart(lines: Sequence[Line]) -> bool:
    """Return whether the ends of these lines are too far apart for one linear axis."""
    ends = [float(line.x[-1]) for line in lines if len(line.x) and line.x[-1] > 0]
    return bool(ends) and max(ends) > FAR * min(ends)


def _build_row(place: Place) -> tuple[str, str, str]:
    return place.setting, place.data, place.model


def _build_line(
    choice: Choice, choices: Sequence[Choice], line_styles: dict[str, LineStyle], smooth: int, by_bytes: bool
) -> Line:
    seen, label = compute_accuracy_line(choice.best, smooth), get_label(choice, choices)
    x = compute_axis(choice.best, "bytes" if by_bytes else "round")
    x = x[np.isin(build_curve(choice.best).rounds, seen.rounds)]
    return Line(label, line_styles[label], x, seen.mean, seen.deviation)


def get_label(choice: Choice, choices: Sequence[Choice]) -> str:
    """Return the algorithm, its K if there are several, and its rate if each line has one rate everywhere."""
    name = choice.column.name
    words = [name]
    if len({other.place.K for other in choices}) > 1:
        words.append(f"$K={choice.place.K}$")
    if _one_rate_a_line(choices) and "eta=" not in name:
        words.append(rf"$\eta={choice.best.spec.optimiser.eta:g}$")
    return ", ".join(words)


def _one_rate_a_line(choices: Sequence[Choice]) -> bool:
    rates = {(other.column.name, other.place.K, other.best.spec.optimiser.eta) for other in choices}
    return len(rates) == len({(name, K) for name, K, _ in rates})


def choose_line_styles(choices: Sequence[Choice]) -> dict[str, LineStyle]:
    """Return the colour by algorithm and variant, and the pattern by K (by algorithm if there is one K)."""
    colour = colours((choice.column.algorithm, choice.column.variant) for choice in choices)
    style = styles(sorted({choice.place.K for choice in choices}))
    line_styles = {}
    for choice in sorted(choices, key=lambda choice: (choice.place.K, column_key(choice.column)[3:])):
        own = LOOK.get(choice.column.algorithm, ("", "-"))[1] if len(style) == 1 else style[choice.place.K]
        line_styles[get_label(choice, choices)] = LineStyle(colour[choice.column.algorithm, choice.column.variant], own)
    return line_styles


def _describe(choices: Sequence[Choice], smooth: int) -> list[str]:
    notes = [*describe_seeds([choice.best for choice in choices]), *describe_choices(choices)]
    strided = sorted({choice.place.data for choice in choices if _thin(choice)})
    notes += [f"{get_data_label(name)}: every {STRIDES[name]}th round is drawn." for name in strided]
    return notes + [f"Each point is the mean of {smooth} evaluations that end there."] * (smooth > 1)


def _thin(choice: Choice) -> bool:
    """Return whether there are more evaluations than drawn points."""
    steps = np.diff(build_curve(choice.best).rounds)
    return bool(steps.size) and int(steps.min()) < STRIDES.get(choice.place.data, 1)


def _gaps(panels: Sequence[Sequence[Panel | None]]) -> list[str]:
    lines = [line for row in panels for panel in row if panel for line in panel.lines]
    gaps = sum(int(np.isnan(line.mean).sum()) for line in lines)
    return [f"{gaps} points are not numbers and leave gaps."] if gaps else []


def draw(cells: Sequence[Cell], path: Path) -> Path:
    """Draw the figure of the demo: its partitions side by side on one scale."""
    panels = sorted({cell.C for cell in cells})
    with open_figure(2.6 * len(panels) + 0.3, 2.1) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
        for axis, C in zip(axes, panels, strict=True):
            for cell in (cell for cell in cells if cell.C == C):
                accuracy = 100 * np.array([[row["test_accuracy"] for row in run.rows] for run in cell.outcomes])
                rounds = [row["round"] for row in cell.outcomes[0].rows]
                mean, spread = accuracy.mean(0), accuracy.std(0, ddof=1)
                colour, line = LOOK[cell.algorithm]
                axis.plot(rounds, mean, line, color=colour, label=rf"{LABEL[cell.algorithm]}, $\eta={cell.eta:g}$")
                axis.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
            axis.set_title(f"ExDir({C}, 10)")
            axis.set_xlabel("training rounds")
            axis.set_xlim(rounds[0], rounds[-1])
            axis.set_ylim(0, 100)
            axis.legend(loc="best")
        axes[0].set_ylabel("test accuracy (%)")
        return save_figure(figure, path)


PLACE = "place in the round of the client with the class"


def draw_memory(runs: Sequence[Run], *, rule: str = AUTO, last: int = LAST, tuning: Sequence[int] = ()) -> Drawing:
    """Draw one panel per data set and partition, with one line per algorithm and K."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning)
    line_styles = choose_line_styles(choices)
    panels = build_panels(choices, lambda choice: _line(choice, choices, line_styles, last))
    said = [*describe_seeds([choice.best for choice in choices]), *describe_choices(choices), *notes]
    ends = [find_last_round(choice.best) for choice in choices]
    said = [f"Each point is the mean over the evaluations of the {describe_final_rounds(ends, last)}.", *said]
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
    rows = [row for row in run.select_final_rows(last) if row["round"] and row.get("test_per_class")]
    if not rows:
        raise InputError(f"{run.path} has no evaluation of single classes after the first round")
    holds, order = find_holders(run.spec, len(rows[0]["test_per_class"])), Permutation(M, run.spec.seed)
    found: list[list[float]] = [[] for _ in range(M)]
    for row in rows:
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
