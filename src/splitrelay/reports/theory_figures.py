"""Draw figures of bounds, rates and step sizes.

A figure consists of panels (`Panel`, one stack over x each) and of labels (`FigureLabels`). It never extrapolates.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from splitrelay.notation import SYMBOLS, get_axis_label
from splitrelay.reports.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, open_figure, save_figure
from splitrelay.theory import Bound, Rate, StepSize

Array = npt.NDArray[Any]

MEASURE = {
    "E F(xbar) - F*": r"$\mathbb{E}\,F(\bar{x})-F^*$",
    "min_r E||grad F(x^r)||^2": r"$\min_r\,\mathbb{E}\,\|\nabla F(x^r)\|^2$",
    "E||x^R - x*||^2": r"$\mathbb{E}\,\|x^R-x^*\|^2$",
}
SQUARES = {
    "sigma2": r"$\sigma^2$",
    "sigma2_star": r"$\sigma_*^2$",
    "zeta2_star": r"$\zeta_*^2$",
    "B2": "$B^2$",
}
LETTERS_PER_INCH = 18  # of 8 point STIX
COLOUR = {
    "optimization": SKY,
    "noise": ORANGE,
    "sampling": PURPLE,
    "noise drift": GREEN,
    "heterogeneity drift": VERMILION,
    "lower bound": BLUE,
}
RULE_STYLE: dict[str, tuple[str, Any]] = {"printed": (VERMILION, "--"), "mended": (GREEN, "-."), "best": (BLUE, "-")}
RULE_LABEL = {"printed": "printed rule", "mended": "mended rule (E14)", "best": "minimiser of the bound"}
HATCH_STYLE: Any = {"facecolor": "0.96", "edgecolor": "0.7", "hatch": "/////", "linewidth": 0}
VACUOUS_STYLE: Any = {"color": BLACK, "linestyle": ":", "linewidth": 0.8}
MARKED_POINTS, TICKED_POINTS = 30, 6  # most points of x for which each has a marker, and for which each has a tick
DEPTH = 100  # the y axis starts at the smallest total divided by this


@dataclass(frozen=True)
class FigureLabels:
    """The texts of a figure: its headline, the fixed quantities, the quantity on x, and the bounded quantity."""

    headline: str
    fixed: Mapping[str, Any]
    x: str
    measure: str
    case: str
    kind: str = "bound on"

    @property
    def x_label(self) -> str:
        """The paper's symbol of x, with its unit if there is one."""
        unit = next((entry.unit for entry in SYMBOLS if entry.name == self.x), "")
        return self.format_symbol(self.x) + (f" ({unit})" if unit else "")

    @property
    def y_label(self) -> str:
        """The quantity that the total bounds, or of which it is the order."""
        return f"{self.kind}\n{MEASURE.get(self.measure, self.measure)}"

    def format_symbol(self, name: str) -> str:
        """Return the symbol of a quantity. zeta2 is zeta_*^2 in the convex cases."""
        if name == "zeta2":
            return r"$\zeta^2$" if self.case == "non-convex" else r"$\zeta_*^2$"
        return SQUARES.get(name) or get_axis_label(name)

    def format_setting(self, name: str, value: Any) -> str:
        """Return a quantity with its value."""
        return f"{self.format_symbol(name).rstrip('$')}={format_number(value)}$"

    def format_caption(self, width: float) -> str:
        """Return the headline and the fixed quantities in lines that fit into a width in inches."""
        limit = int(width * LETTERS_PER_INCH)
        lines = textwrap.wrap(self.headline, limit)
        settings = [self.format_setting(name, value) for name, value in self.fixed.items()]
        while settings:
            count = max(1, sum(_estimate_length(settings[: n + 1]) <= limit for n in range(len(settings))))
            lines.append(", ".join(settings[:count]))
            settings = settings[count:]
        return "\n".join(lines)


def format_number(value: Any) -> str:
    """Format a number in TeX with four digits, and as a power of ten if it is long."""
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa}\times {power}"


def _estimate_length(settings: Sequence[str]) -> int:
    """Estimate the number of letters of TeX fragments on one line."""
    return len(", ".join(re.sub(r"[$^_{}]|\\tilde|(?<=\\)[a-z]+", "", piece) for piece in settings))


@dataclass(frozen=True)
class Panel:
    """One stack of terms over x. Every array has the length of x.

    A total above `start` is vacuous. `start` is None if there is no such level.
    """

    label: str
    x: Array
    total: Array
    terms: Mapping[str, Array]
    applicable: Array
    start: Array | None = None
    why_not: str = ""  # the condition that fails where the statement does not apply
    marks: Mapping[str, float] = field(default_factory=dict)  # values of x to mark, by rule

    @property
    def shares(self) -> dict[str, Array]:
        """Each term divided by the total."""
        total = np.where(self.total > 0, self.total, np.nan)
        return {name: values / total for name, values in self.terms.items()}


def build_bound_panel(label: str, x: Sequence[float], bound: Bound, start: Sequence[float]) -> Panel:
    """Build the panel of a bound over x."""
    return Panel(
        label,
        _broadcast(x, x),
        _broadcast(x, bound.total),
        {name: _broadcast(x, values) for name, values in bound.terms.items()},
        np.broadcast_to(bound.applicable, len(x)),
        _broadcast(x, start),
        find_reason(bound),
    )


def find_reason(bound: Bound) -> str:
    """Return the first condition that fails somewhere, or an empty string."""
    return next((f"needs {c.name}" for c in bound.conditions if not np.all(c.holds)), "")


def build_rate_panel(label: str, x: Sequence[float], rate: Rate) -> Panel:
    """Build the panel of a rate over x. A rate has unit constants, so it has no range and is never vacuous."""
    terms = {name: _broadcast(x, values) for name, values in rate.terms.items()}
    return Panel(label, _broadcast(x, x), _broadcast(x, rate.total), terms, np.ones(len(x), dtype=bool))


def _broadcast(x: Sequence[float], values: npt.ArrayLike) -> Array:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), len(x))


def save_stacks(panels: Sequence[Panel], labels: FigureLabels, path: Path) -> Path:
    """Draw stacks over a range of x, or bars for one setting, and write the figure."""
    return save_figure((draw_bars if all(len(panel.x) == 1 for panel in panels) else draw_stacks)(panels, labels), path)


def draw_stacks(panels: Sequence[Panel], labels: FigureLabels) -> Figure:
    """Draw the terms stacked up to the total on log axes, and below them the share of each term."""
    across, down = _choose_layout(len(panels))
    width = max(4.0, 0.6 + 2.1 * across)
    with open_figure(width, 0.9 + 2.2 * down) as figure:
        uppers = _draw_panels(figure, panels, labels, down, across)
        _scale_y(uppers[0], panels)
        _add_legend(figure, panels, 3 if across == 1 else 4)
        figure.suptitle(labels.format_caption(width), fontsize=8)
        return figure


def _draw_panels(figure: Figure, panels: Sequence[Panel], labels: FigureLabels, down: int, across: int) -> list[Axes]:
    grid = figure.add_gridspec(2 * down, across, height_ratios=[3, 1] * down)
    uppers: list[Axes] = []
    for j, panel in enumerate(panels):
        row, place = divmod(j, across)
        upper = figure.add_subplot(grid[2 * row, place], sharey=uppers[0] if uppers else None)
        lower = figure.add_subplot(grid[2 * row + 1, place], sharex=upper)
        _draw_totals(upper, panel)
        _draw_shares(lower, panel)
        _set_labels(upper, lower, panel, labels, place == 0)
        uppers.append(upper)
    return uppers


def _draw_totals(axis: Axes, panel: Panel) -> None:
    stack_terms(axis, panel.x, panel.terms)
    axis.plot(
        panel.x,
        panel.total,
        color=BLACK,
        marker="o" if len(panel.x) <= MARKED_POINTS else "",
        markersize=2.5,
        clip_on=False,
    )
    if panel.start is not None:
        axis.plot(panel.x, panel.start, **VACUOUS_STYLE)
    for rule, x in panel.marks.items():
        axis.axvline(x, color=RULE_STYLE[rule][0], linestyle=RULE_STYLE[rule][1])
    draw_hatching(axis, panel.x, panel.applicable)
    if not panel.applicable.any():
        add_reason(axis, panel.why_not)


def add_reason(axis: Axes, reason: str) -> None:
    """Write the reason into a panel whose statement applies to no x."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    text = f"applies nowhere here:\n{reason}"
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", bbox=box)


def _draw_shares(axis: Axes, panel: Panel) -> None:
    stack_terms(axis, panel.x, panel.shares)
    draw_hatching(axis, panel.x, panel.applicable)
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1], ["0", "½", "1"])


def stack_terms(axis: Axes, x: Array, terms: Mapping[str, Array]) -> None:
    """Draw the terms on top of each other, the first one at the bottom."""
    below = np.zeros(x.shape)
    for name, values in terms.items():
        axis.fill_between(x, below, below + values, color=COLOUR[name], alpha=0.55, linewidth=0)
        below = below + values


def draw_hatching(axis: Axes, x: Array, applicable: Array) -> None:
    """Hatch every interval of x where the statement does not apply."""
    for low, high in find_gaps(x, applicable):
        axis.axvspan(low, high, **HATCH_STYLE)


def find_gaps(x: Array, applicable: Array) -> list[tuple[float, float]]:
    """Find the intervals of x where a statement does not apply. Each one extends to the next point of the curve."""
    outside = np.flatnonzero(~applicable)
    runs = np.split(outside, np.flatnonzero(np.diff(outside) > 1) + 1) if outside.size else []
    return [(float(x[max(run[0] - 1, 0)]), float(x[min(run[-1] + 1, len(x) - 1)])) for run in runs]


def _set_labels(upper: Axes, lower: Axes, panel: Panel, labels: FigureLabels, leftmost: bool) -> None:
    scale_x(upper, panel.x)
    upper.set_title(panel.label)
    upper.tick_params(labelbottom=False, labelleft=leftmost)
    lower.tick_params(labelleft=leftmost)
    lower.set_xlabel(labels.x_label)
    if leftmost:
        upper.set_ylabel(labels.y_label)
        lower.set_ylabel("share")


def scale_x(axis: Axes, x: Array) -> None:
    """Set the range of x: a log scale if x spans a decade, and a tick at each value of a short list."""
    low, high = float(x.min()), float(x.max())
    if low > 0 and high >= 10 * low:
        axis.set_xscale("log")
    if len(x) <= TICKED_POINTS:
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.set_xticks([], minor=True)
    if low < high:
        axis.set_xlim(low, high)


def _scale_y(axis: Axes, panels: Sequence[Panel]) -> None:
    """Set a log scale from well below the smallest total to above the largest one."""
    totals = np.concatenate([panel.total for panel in panels])
    positive = totals[np.isfinite(totals) & (totals > 0)]
    if positive.size:
        starts = [float(panel.start.max()) for panel in panels if panel.start is not None]
        axis.set_yscale("log")
        axis.set_ylim(positive.min() / DEPTH, max(positive.max(), *starts, 0) * 2)
    else:
        axis.set_yticks([])


def _add_legend(figure: Figure, panels: Sequence[Panel], columns: int) -> None:
    names = dict.fromkeys(name for panel in panels for name in panel.terms)
    handles: list[Any] = [Line2D([], [], color=BLACK, label="total")]
    handles += [Patch(facecolor=COLOUR[name], alpha=0.55, label=name) for name in names]
    if any(panel.start is not None for panel in panels):
        handles.append(Line2D([], [], **VACUOUS_STYLE, label="vacuous from here up"))
    handles += [
        Line2D([], [], color=RULE_STYLE[rule][0], linestyle=RULE_STYLE[rule][1], label=RULE_LABEL[rule])
        for rule in dict.fromkeys(rule for panel in panels for rule in panel.marks)
    ]
    if not all(panel.applicable.all() for panel in panels):
        handles.append(Patch(**HATCH_STYLE, label="does not apply"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def draw_bars(panels: Sequence[Panel], labels: FigureLabels) -> Figure:
    """Draw one setting: a bar for each term on a log axis, and the total below them."""
    across, down = _choose_layout(len(panels))
    width = max(4.0, 1.2 + 1.6 * across)
    names = [name for name in COLOUR if any(name in panel.terms for panel in panels)]
    with open_figure(width, 0.8 + 1.2 * down) as figure:
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            _draw_panel_bars(axis, panel, names)
        axes[0].invert_yaxis()
        _scale_bars(axes[0], panels)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis in axes[-across:]:
            axis.set_xlabel(labels.y_label.replace("\n", " "))
        if any(panel.start is not None for panel in panels):
            figure.legend(
                handles=[Line2D([], [], **VACUOUS_STYLE, label="vacuous from here on")], loc="outside lower center"
            )
        figure.suptitle(labels.format_caption(width), fontsize=8)
        return figure


def _draw_panel_bars(axis: Axes, panel: Panel, names: Sequence[str]) -> None:
    values = [float(panel.terms[name][0]) if name in panel.terms else math.nan for name in names]
    values.append(float(panel.total[0]))
    colours = [*(COLOUR[name] for name in names), BLACK]
    shown = [value if value > 0 else math.nan for value in values]  # a log axis cannot show zeros
    rectangles = axis.barh([*names, "total"], shown, color=colours, alpha=0.7, height=0.6)
    axis.bar_label(rectangles, ["" if math.isnan(value) else f" {value:.3g}" for value in values], fontsize=7)
    axis.set_title(panel.label)
    if panel.start is not None:
        axis.axvline(float(panel.start[0]), **VACUOUS_STYLE)
    if not panel.applicable.all():
        axis.text(0.5, 0.5, f"does not apply:\n{panel.why_not}", transform=axis.transAxes, ha="center", va="center")


def _scale_bars(axis: Axes, panels: Sequence[Panel]) -> None:
    values = np.concatenate([[*(v[0] for v in panel.terms.values()), panel.total[0]] for panel in panels])
    starts = [float(panel.start[0]) for panel in panels if panel.start is not None]
    positive = values[values > 0]
    if positive.size:
        axis.set_xscale("log")
        axis.set_xlim(positive.min() / 3, max(positive.max() * 6, *(2 * start for start in starts), 0))


def _choose_layout(panels: int) -> tuple[int, int]:
    """Return the numbers of columns and rows for so many panels."""
    across = 2 if panels == 4 else min(3, panels)
    return across, math.ceil(panels / across)


POINTS = 241
STEP_DEPTH = 30  # a range without a lower limit is drawn from its upper limit divided by this


@dataclass(frozen=True)
class StepPanel:
    """The steps of all rules over x. A bound above `start` is vacuous."""

    label: str
    x: Array
    steps: Mapping[str, StepSize]
    start: Array

    @property
    def applicable(self) -> Array:
        """Whether the range contains a step, for each x."""
        return np.broadcast_to(self.steps["best"].applicable, self.x.shape)


def build_step_panel(
    label: str, x: Sequence[float], steps: Mapping[str, StepSize], start: Sequence[float]
) -> StepPanel:
    """Build the panel of the steps over x."""
    return StepPanel(label, np.asarray(x, dtype=np.float64), steps, np.asarray(start, dtype=np.float64))


def save_steps(panels: Sequence[StepPanel], labels: FigureLabels, path: Path) -> Path:
    """Draw the steps and write the figure."""
    return save_figure(draw_steps(panels, labels), path)


def draw_steps(panels: Sequence[StepPanel], labels: FigureLabels) -> Figure:
    """Draw one row per panel: on the left the step of each rule in its range, on the right the bound at this step."""
    with open_figure(5.5, 1.1 + 1.7 * len(panels)) as figure:
        axes = figure.subplots(len(panels), 2, sharex=True, squeeze=False)
        for (left, right), panel in zip(axes, panels, strict=True):
            _draw_step_axis(left, panel, labels)
            _draw_bound_axis(right, panel, labels)
        for axis in axes[-1]:
            axis.set_xlabel(labels.x_label)
        _add_step_legend(figure, panels)
        figure.suptitle(labels.format_caption(5.5), fontsize=8)
        return figure


def choose_steps(step: StepSize) -> list[float]:
    """Return values of eta_tilde for one setting that cover its range and a little more."""
    low, high = float(step.low), float(step.high)
    return [float(x) for x in np.geomspace((low or high / STEP_DEPTH) / 3, high * 3, POINTS)]


def build_landscape_panel(bound: Bound, steps: Mapping[str, StepSize], start: float) -> Panel:
    """Build the panel of one setting: the bound over eta_tilde, with a mark at the step of each rule."""
    x = [float(value) for value in np.asarray(bound.eta_tilde)]
    panel = build_bound_panel("", x, bound, [start] * len(x))
    marks = {rule: float(step.eta_tilde) for rule, step in steps.items()}
    return replace(panel, marks=marks)


def _draw_step_axis(axis: Axes, panel: StepPanel, labels: FigureLabels) -> None:
    for rule, step in panel.steps.items():
        _draw_line(axis, panel.x, step.eta_tilde, rule)
    low, high = (
        np.broadcast_to(values, panel.x.shape) for values in (panel.steps["best"].low, panel.steps["best"].high)
    )
    bottom, top = _compute_limits(panel, low, high)
    axis.fill_between(panel.x, high, top, **HATCH_STYLE)
    axis.fill_between(panel.x, bottom, np.maximum(low, bottom), **HATCH_STYLE)
    _set_axis(axis, panel, labels.format_symbol("eta_tilde"))
    axis.set_ylim(bottom, top)


def _compute_limits(panel: StepPanel, low: Array, high: Array) -> tuple[float, float]:
    """Return the y limits: the range and a margin. Without a lower limit they start below the smallest step."""
    steps = np.concatenate([np.broadcast_to(step.eta_tilde, panel.x.shape) for step in panel.steps.values()])
    steps = steps[steps > 0]
    bottom = low[panel.applicable & (low > 0)]
    smallest = min([*bottom, *steps, float(high.min()) / STEP_DEPTH])
    return smallest / 2, float(high.max()) * 2


def _draw_bound_axis(axis: Axes, panel: StepPanel, labels: FigureLabels) -> None:
    for rule, step in panel.steps.items():
        _draw_line(axis, panel.x, step.bound.total, rule)
    axis.plot(panel.x, panel.start, **VACUOUS_STYLE)
    _set_axis(axis, panel, labels.y_label.replace("\n", " "))


def _draw_line(axis: Axes, x: Array, values: npt.ArrayLike, rule: str) -> None:
    colour, line = RULE_STYLE[rule]
    shown = np.broadcast_to(np.asarray(values, dtype=np.float64), x.shape)
    axis.plot(
        x, shown, line, color=colour, marker="o" if len(x) <= MARKED_POINTS else "", markersize=2.5, clip_on=False
    )


def _set_axis(axis: Axes, panel: StepPanel, label: str) -> None:
    scale_x(axis, panel.x)
    axis.set_yscale("log")
    axis.set_ylabel(label)
    axis.set_title(panel.label)
    draw_hatching(axis, panel.x, panel.applicable)
    if not panel.applicable.any():
        add_reason(axis, find_reason(panel.steps["best"].bound))


def _add_step_legend(figure: Figure, panels: Sequence[StepPanel]) -> None:
    handles: list[Any] = [
        Line2D([], [], color=colour, linestyle=line, label=RULE_LABEL[rule])
        for rule, (colour, line) in RULE_STYLE.items()
    ]
    handles.append(Line2D([], [], **VACUOUS_STYLE, label="vacuous from here up"))
    handles.append(Patch(**HATCH_STYLE, label="outside the range"))
    figure.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / 2))
