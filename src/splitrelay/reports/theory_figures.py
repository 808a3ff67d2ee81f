"""Bounds as figures: terms stacked up to the total, hatched where the statement does not apply, never extrapolated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from splitrelay.reports.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, drawn, save
from splitrelay.reports.theory_panels import Array, Panel
from splitrelay.reports.theory_words import Words

COLOUR = {
    "optimization": SKY,
    "noise": ORANGE,
    "sampling": PURPLE,
    "noise drift": GREEN,
    "heterogeneity drift": VERMILION,
    "lower bound": BLUE,
}
RULE_LOOK: dict[str, tuple[str, Any]] = {"printed": (VERMILION, "--"), "mended": (GREEN, "-."), "best": (BLUE, "-")}
RULE_LABEL = {"printed": "printed rule", "mended": "mended rule (E14)", "best": "minimiser of the bound"}
HATCH: Any = {"facecolor": "0.96", "edgecolor": "0.7", "hatch": "/////", "linewidth": 0}
VACUOUS: Any = {"color": BLACK, "linestyle": ":", "linewidth": 0.8}
FEW, SHORT = 30, 6  # points of x up to which each is marked, and up to which each has its tick
DEPTH = 100  # the axis ends so far below the smallest total


def draw_stacks(panels: Sequence[Panel], words: Words, path: Path) -> Path:
    """The stacks of a range of x, or the bars of one."""
    return save((bars if all(len(panel.x) == 1 for panel in panels) else stacks)(panels, words), path)


def stacks(panels: Sequence[Panel], words: Words) -> Figure:
    """Above, the terms stacked up to the total on log axes; below, the share of each."""
    across, down = _places(len(panels))
    width = max(4.0, 0.6 + 2.1 * across)
    with drawn(width, 0.9 + 2.2 * down) as figure:
        uppers = _grid(figure, panels, words, down, across)
        _heights(uppers[0], panels)
        _legend(figure, panels, 3 if across == 1 else 4)
        figure.suptitle(words.caption(width), fontsize=8)
        return figure


def _grid(figure: Figure, panels: Sequence[Panel], words: Words, down: int, across: int) -> list[Axes]:
    grid = figure.add_gridspec(2 * down, across, height_ratios=[3, 1] * down)
    uppers: list[Axes] = []
    for j, panel in enumerate(panels):
        row, place = divmod(j, across)
        upper = figure.add_subplot(grid[2 * row, place], sharey=uppers[0] if uppers else None)
        lower = figure.add_subplot(grid[2 * row + 1, place], sharex=upper)
        _upper(upper, panel)
        _lower(lower, panel)
        _frame(upper, lower, panel, words, place == 0)
        uppers.append(upper)
    return uppers


def _upper(axis: Axes, panel: Panel) -> None:
    pile(axis, panel.x, panel.terms)
    axis.plot(
        panel.x, panel.total, color=BLACK, marker="o" if len(panel.x) <= FEW else "", markersize=2.5, clip_on=False
    )
    if panel.start is not None:
        axis.plot(panel.x, panel.start, **VACUOUS)
    for rule, x in panel.marks.items():
        axis.axvline(x, color=RULE_LOOK[rule][0], linestyle=RULE_LOOK[rule][1])
    hatch(axis, panel.x, panel.applicable)
    if not panel.applicable.any():
        nowhere(axis, panel.why_not)


def nowhere(axis: Axes, why: str) -> None:
    """Where a statement applies to no x at all, say why."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    words = f"applies nowhere here:\n{why}"
    axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", bbox=box)


def _lower(axis: Axes, panel: Panel) -> None:
    pile(axis, panel.x, panel.shares)
    hatch(axis, panel.x, panel.applicable)
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1], ["0", "½", "1"])


def pile(axis: Axes, x: Array, terms: Mapping[str, Array]) -> None:
    """One term on the other, the first at the bottom."""
    below = np.zeros(x.shape)
    for name, values in terms.items():
        axis.fill_between(x, below, below + values, color=COLOUR[name], alpha=0.55, linewidth=0)
        below = below + values


def hatch(axis: Axes, x: Array, applicable: Array) -> None:
    """Over every stretch of x where the statement does not apply."""
    for low, high in stretches(x, applicable):
        axis.axvspan(low, high, **HATCH)


def stretches(x: Array, applicable: Array) -> list[tuple[float, float]]:
    """The stretches of x on which a statement does not apply: each reaches to where the curve ends or begins."""
    outside = np.flatnonzero(~applicable)
    runs = np.split(outside, np.flatnonzero(np.diff(outside) > 1) + 1) if outside.size else []
    return [(float(x[max(run[0] - 1, 0)]), float(x[min(run[-1] + 1, len(x) - 1)])) for run in runs]


def _frame(upper: Axes, lower: Axes, panel: Panel, words: Words, leftmost: bool) -> None:
    scale_x(upper, panel.x)
    upper.set_title(panel.label)
    upper.tick_params(labelbottom=False, labelleft=leftmost)
    lower.tick_params(labelleft=leftmost)
    lower.set_xlabel(words.x_label)
    if leftmost:
        upper.set_ylabel(words.y_label)
        lower.set_ylabel("share")


def scale_x(axis: Axes, x: Array) -> None:
    """Log where x spans a decade, from its first value to its last; a short list is ticked at its values."""
    low, high = float(x.min()), float(x.max())
    if low > 0 and high >= 10 * low:
        axis.set_xscale("log")
    if len(x) <= SHORT:
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.set_xticks([], minor=True)
    if low < high:
        axis.set_xlim(low, high)


def _heights(axis: Axes, panels: Sequence[Panel]) -> None:
    """Log, from well below the smallest total to above the largest."""
    totals = np.concatenate([panel.total for panel in panels])
    positive = totals[np.isfinite(totals) & (totals > 0)]
    if positive.size:
        starts = [float(panel.start.max()) for panel in panels if panel.start is not None]
        axis.set_yscale("log")
        axis.set_ylim(positive.min() / DEPTH, max(positive.max(), *starts, 0) * 2)
    else:
        axis.set_yticks([])


def _legend(figure: Figure, panels: Sequence[Panel], columns: int) -> None:
    names = dict.fromkeys(name for panel in panels for name in panel.terms)
    handles: list[Any] = [Line2D([], [], color=BLACK, label="total")]
    handles += [Patch(facecolor=COLOUR[name], alpha=0.55, label=name) for name in names]
    if any(panel.start is not None for panel in panels):
        handles.append(Line2D([], [], **VACUOUS, label="vacuous from here up"))
    handles += [
        Line2D([], [], color=RULE_LOOK[rule][0], linestyle=RULE_LOOK[rule][1], label=RULE_LABEL[rule])
        for rule in dict.fromkeys(rule for panel in panels for rule in panel.marks)
    ]
    if not all(panel.applicable.all() for panel in panels):
        handles.append(Patch(**HATCH, label="does not apply"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def bars(panels: Sequence[Panel], words: Words) -> Figure:
    """One setting: a bar for each term on a log axis, the total below them."""
    across, down = _places(len(panels))
    width = max(4.0, 1.2 + 1.6 * across)
    names = [name for name in COLOUR if any(name in panel.terms for panel in panels)]
    with drawn(width, 0.8 + 1.2 * down) as figure:
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            _bars(axis, panel, names)
        axes[0].invert_yaxis()
        _bar_limits(axes[0], panels)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis in axes[-across:]:
            axis.set_xlabel(words.y_label.replace("\n", " "))
        if any(panel.start is not None for panel in panels):
            figure.legend(handles=[Line2D([], [], **VACUOUS, label="vacuous from here on")], loc="outside lower center")
        figure.suptitle(words.caption(width), fontsize=8)
        return figure


def _bars(axis: Axes, panel: Panel, names: Sequence[str]) -> None:
    values = [float(panel.terms[name][0]) if name in panel.terms else math.nan for name in names]
    values.append(float(panel.total[0]))
    colours = [*(COLOUR[name] for name in names), BLACK]
    shown = [value if value > 0 else math.nan for value in values]  # a logarithm has no room for zeros
    drawn_bars = axis.barh([*names, "total"], shown, color=colours, alpha=0.7, height=0.6)
    axis.bar_label(drawn_bars, ["" if math.isnan(value) else f" {value:.3g}" for value in values], fontsize=7)
    axis.set_title(panel.label)
    if panel.start is not None:
        axis.axvline(float(panel.start[0]), **VACUOUS)
    if not panel.applicable.all():
        axis.text(0.5, 0.5, f"does not apply:\n{panel.why_not}", transform=axis.transAxes, ha="center", va="center")


def _bar_limits(axis: Axes, panels: Sequence[Panel]) -> None:
    values = np.concatenate([[*(v[0] for v in panel.terms.values()), panel.total[0]] for panel in panels])
    starts = [float(panel.start[0]) for panel in panels if panel.start is not None]
    positive = values[values > 0]
    if positive.size:
        axis.set_xscale("log")
        axis.set_xlim(positive.min() / 3, max(positive.max() * 6, *(2 * start for start in starts), 0))


def _places(panels: int) -> tuple[int, int]:
    """Columns and rows for so many panels."""
    across = 2 if panels == 4 else min(3, panels)
    return across, math.ceil(panels / across)
