"""Figures of step sizes: the step of each rule in its allowed range, and the bound at this step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from splitrelay.reports.style import open_figure, save_figure
from splitrelay.reports.theory_figures import (
    HATCH_STYLE,
    MARKED_POINTS,
    RULE_LABEL,
    RULE_STYLE,
    VACUOUS_STYLE,
    Array,
    FigureLabels,
    Panel,
    add_reason,
    build_bound_panel,
    draw_hatching,
    find_reason,
    scale_x,
)
from splitrelay.theory import Bound, StepSize

POINTS = 241
DEPTH = 30  # a range without a lower limit is drawn from its upper limit divided by this


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
        _add_legend(figure, panels)
        figure.suptitle(labels.format_caption(5.5), fontsize=8)
        return figure


def choose_steps(step: StepSize) -> list[float]:
    """Return values of eta_tilde for one setting that cover its range and a little more."""
    low, high = float(step.low), float(step.high)
    return [float(x) for x in np.geomspace((low or high / DEPTH) / 3, high * 3, POINTS)]


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
    smallest = min([*bottom, *steps, float(high.min()) / DEPTH])
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


def _add_legend(figure: Figure, panels: Sequence[StepPanel]) -> None:
    handles: list[Any] = [
        Line2D([], [], color=colour, linestyle=line, label=RULE_LABEL[rule])
        for rule, (colour, line) in RULE_STYLE.items()
    ]
    handles.append(Line2D([], [], **VACUOUS_STYLE, label="vacuous from here up"))
    handles.append(Patch(**HATCH_STYLE, label="outside the range"))
    figure.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / 2))
