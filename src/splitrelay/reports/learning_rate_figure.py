"""Draw accuracy against the learning rate, with and without clipping."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from splitrelay.errors import InputError
from splitrelay.notation import get_axis_label as symbol
from splitrelay.reports.accuracy import get_printed_value
from splitrelay.reports.curves import ACCURACY, ROUNDS, compute_accuracy_line
from splitrelay.reports.line_plots import (
    HEIGHT,
    LETTERS_AN_INCH,
    WIDTH,
    Drawing,
    Line,
    LineStyle,
    Panel,
    colours,
    count_key_columns,
    footnotes,
    grid,
    legend,
    set_percent_axis,
    styles,
)
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.style import GREEN, ORANGE, PURPLE, SKY, open_figure
from splitrelay.reports.summary import find_last_round
from splitrelay.reports.table_layout import AUTO, Choice, choose_runs, describe_choices, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds

TICKS = 6  # labels of rates are at least a sixth of the axis apart


def draw_rates(runs: Sequence[Run], *, rule: str = AUTO, last: int = LAST, tuning: Sequence[int] = ()) -> Drawing:
    """A row for each set and setting, a column for each partition; a star on the rate that the rule chooses."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning)
    said = [*describe_choices(choices, "starred"), *_papers(choices), *_unfinished(choices), *notes]
    rows = list(dict.fromkeys(_row(choice) for choice in choices))
    ends = [find_last_round(choice.best) for choice in choices]
    what = f"{choices[0].rule} accuracy (%), {describe_final_rounds(ends, last)}"
    columns = list(dict.fromkeys(c.column.partition for c in sorted(choices, key=lambda c: c.column.C)))
    line_styles = _choose_line_styles(choices)
    width = max(3.4, WIDTH * len(columns) + 0.3)
    lines = textwrap.wrap(" ".join(said), round(LETTERS_AN_INCH * width))
    across = count_key_columns(line_styles, width)
    with open_figure(
        width, HEIGHT * len(rows) + 0.35 + 0.15 * -(-len(line_styles) // across) + 0.1 * len(lines)
    ) as figure:
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey=True)
        for i, row in enumerate(rows):
            for j, part in enumerate(columns):
                inside = [choice for choice in choices if _row(choice) == row and choice.column.partition == part]
                _draw_panel(grid[i, j], inside, choices, line_styles)
                grid[i, j].set_ylabel(what if j == 0 else "")
        legend(figure, line_styles, across)
        footnotes(figure, lines)
    caption = f"Mean {what} against the rate; the star marks the best."
    return Drawing(figure, [caption, *said])


def _draw_panel(
    axis: Axes, inside: Sequence[Choice], choices: Sequence[Choice], line_styles: dict[str, LineStyle]
) -> None:
    if not inside:
        axis.set_axis_off()
        return
    for choice in inside:
        for clip in _clips([choice]):
            tried = sorted((g for g in choice.tried if g.spec.optimiser.clip == clip), key=_eta)
            _draw_points(axis, choice, tried, line_styles[_format_label(choice, clip, choices)])
    for choice in inside:
        _draw_printed(axis, choice, line_styles[_format_label(choice, choice.best.spec.optimiser.clip, choices)].colour)
    places = {choice.place for choice in choices}
    place = inside[0].place
    several = len({_row(choice) for choice in choices}) > 1
    where = f"{row_label(place, places)}, {place.setting.partition(', ')[2]}, " if several else ""
    axis.set_title(f"{where}{inside[0].column.partition}")
    axis.set_xscale("log")
    printed = [found.eta for found in map(get_printed_value, inside) if found is not None]
    ticks = _choose_ticks(sorted({*printed, *(_eta(group) for choice in inside for group in choice.tried)}))
    axis.set_xticks(ticks, [f"{eta:g}" for eta in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel(f"rate {symbol('eta')}")
    set_percent_axis(axis)


def _choose_ticks(etas: Sequence[float]) -> list[float]:
    """Return rates that are far enough from each other on a log axis for their labels."""
    gap = (etas[-1] / etas[0]) ** (1 / TICKS)
    ticks = [etas[0]]
    for eta in etas[1:]:
        if eta >= ticks[-1] * gap * (1 - 1e-9):
            ticks.append(eta)
    return ticks


def _draw_points(axis: Axes, choice: Choice, tried: Sequence[Group], line_style: LineStyle) -> None:
    x = [_eta(group) for group in tried]
    y = [_compute_score(choice, group) for group in tried]
    axis.plot(x, y, linestyle=line_style.style, color=line_style.colour)
    for marker, whole in (("o", True), ("x", False)):
        at = [j for j, group in enumerate(tried) if (group.complete and not group.diverged) is whole]
        _draw_marks(axis, [x[j] for j in at], [y[j] for j in at], marker=marker, color=line_style.colour, markersize=3)
    if choice.chosen in tried:
        best = tried.index(choice.chosen)
        star: Any = {"marker": "*", "markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.4}
        _draw_marks(axis, [x[best]], [y[best]], color=line_style.colour, zorder=4, **star)


def _draw_printed(axis: Axes, choice: Choice, colour: str) -> None:
    """What the paper has for this algorithm, at its rate."""
    told = get_printed_value(choice)
    if told is not None:
        hollow: Any = {"marker": "D", "markersize": 4, "markerfacecolor": "white", "zorder": 4}
        _draw_marks(axis, [told.eta], [told.accuracy], color=colour, **hollow)


def _draw_marks(axis: Axes, x: Sequence[float], y: Sequence[float], **how: Any) -> None:
    """Marks that are whole at 100 % too; the layout need not make room for them."""
    if x:
        axis.plot(x, y, linestyle="none", clip_on=False, **how)[0].set_in_layout(False)


def _compute_score(choice: Choice, group: Group) -> float:
    score = choice.score(group)
    return 100 * score if np.isfinite(score) else np.nan


def _choose_line_styles(choices: Sequence[Choice]) -> dict[str, LineStyle]:
    colour = colours((choice.column.algorithm, choice.column.variant) for choice in choices)
    style = styles((K, clip) for K in sorted({c.place.K for c in choices}) for clip in _clips(choices))
    return {
        _format_label(choice, clip, choices): LineStyle(
            colour[choice.column.algorithm, choice.column.variant], style[choice.place.K, clip]
        )
        for choice in choices
        for clip in _clips([choice])
    }


def _format_label(choice: Choice, clip: float | None, choices: Sequence[Choice]) -> str:
    words = [choice.column.name]
    if len({other.place.K for other in choices}) > 1:
        words.append(f"$K={choice.place.K}$")
    if len(_clips(choices)) > 1:
        words.append("no clipping" if clip is None else f"max norm {clip:g}")
    return ", ".join(words)


def _clips(choices: Sequence[Choice]) -> list[float | None]:
    found = {group.spec.optimiser.clip for choice in choices for group in choice.tried}
    return sorted(found, key=lambda clip: (clip is not None, clip or 0.0))


def _papers(choices: Sequence[Choice]) -> list[str]:
    printed = any(get_printed_value(choice) is not None for choice in choices)
    return ["A hollow diamond: what the paper prints, at its rate."] if printed else []


def _unfinished(choices: Sequence[Choice]) -> list[str]:
    every = [group for choice in choices for group in choice.tried]
    diverged, short = any(group.diverged for group in every), any(not group.complete for group in every)
    what = " or ".join(["a seed diverged"] * diverged + ["not run to the last round"] * short)
    return [f"A cross: {what}."] if what else []


def _row(choice: Choice) -> tuple[str, str, str]:
    return choice.place.setting, choice.place.data, choice.place.model


def _eta(group: Group) -> float:
    return group.spec.optimiser.eta


NORMS = (GREEN, PURPLE, ORANGE, SKY)


def draw_clipping(
    runs: Sequence[Run], *, rule: str = AUTO, last: int = LAST, tuning: Sequence[int] = (), smooth: int = 1
) -> Drawing:
    """Draw one row per algorithm and one column per partition. The colour is the norm, the pattern is the rate."""
    groups, notes = group_runs(runs)
    searched = [
        choice
        for choice in choose_runs(groups, rule, last, tuning=tuning)
        if len({_norm(group) for group in choice.tried}) > 1
    ]
    choices = [replace(choice, tried=_at_two_rates(choice)) for choice in searched]
    if not choices:
        hint = "Run one setting with clip=10 and with clip=none; presets paper/clipping-... do."
        raise InputError("nothing here was run both with and without clipping", hint=hint)
    norms = sorted({_norm(group) for choice in choices for group in choice.tried}, key=lambda norm: norm or np.inf)
    colours = {norm: NORMS[j % len(NORMS)] for j, norm in enumerate(norms)}
    rows = list(dict.fromkeys(_build_row(choice) for choice in choices))
    columns = list(dict.fromkeys(choice.column.partition for choice in choices))
    panels = [[_build_panel(_at(choices, row, part), choices, colours, smooth) for part in columns] for row in rows]
    said = [
        *describe_seeds(group for choice in choices for group in choice.tried),
        *_describe_left_out(searched, choices),
        *notes,
    ]
    said += [f"Each point is the mean of {smooth} evaluations that end there."] * (smooth > 1)
    key = {_words(norm): LineStyle(colours[norm], "-") for norm in norms}
    caption = "Test accuracy with and without clipping, mean over seeds; the band is one standard deviation over seeds."
    upright = ACCURACY if smooth == 1 else f"{ACCURACY},\nmean of {smooth} evaluations"
    return Drawing(grid(panels, (ROUNDS, upright), said, key), [caption, *said])


def _at_two_rates(choice: Choice) -> tuple[Group, ...]:
    """Return the runs at the best rate and at the next higher one, as in the paper (the next lower one if needed)."""
    best, etas = choice.best.spec.optimiser.eta, set(map(_eta, choice.tried))
    below = max((eta for eta in etas if eta < best), default=best)
    other = min((eta for eta in etas if eta > best), default=below)
    return tuple(group for group in sorted(choice.tried, key=_eta) if _eta(group) in (best, other))


def _describe_left_out(searched: Sequence[Choice], choices: Sequence[Choice]) -> list[str]:
    if [len(choice.tried) for choice in searched] == [len(choice.tried) for choice in choices]:
        return []
    return [f"Of the rates tried, the best by {choices[0].rule} accuracy and the next above it are drawn (else below)."]


def _build_panel(
    choice: Choice | None, choices: Sequence[Choice], colours: dict[float | None, str], smooth: int
) -> Panel | None:
    if choice is None:
        return None
    etas = sorted(set(map(_eta, choice.tried)))
    style = styles(etas)
    lines = [
        _build_line(group, LineStyle(colours[_norm(group)], style[group.spec.optimiser.eta]), smooth)
        for group in choice.tried
    ]
    rates = f"{etas[0]:g}" if len(etas) == 1 else f"{etas[0]:g} (solid), {etas[1]:g} (dashed)"
    places = {other.place for other in choices}
    where = f"{row_label(choice.place, places)}, K={choice.place.K}, " if len(places) > 1 else ""
    return Panel(f"{choice.column.name}, {where}{choice.column.partition}\n$\\eta=$ {rates}", lines)


def _build_line(group: Group, style: LineStyle, smooth: int) -> Line:
    seen = compute_accuracy_line(group, smooth)
    return Line(_words(_norm(group)), style, seen.rounds.astype(np.float64), seen.mean, seen.deviation)


def _at(choices: Sequence[Choice], row: tuple[object, ...], part: str) -> Choice | None:
    return next((c for c in choices if _build_row(c) == row and c.column.partition == part), None)


def _build_row(choice: Choice) -> tuple[object, ...]:
    return choice.place, choice.column.name


def _norm(group: Group) -> float | None:
    return group.spec.optimiser.clip


def _words(norm: float | None) -> str:
    return "no clipping" if norm is None else f"max norm {norm:g}"
