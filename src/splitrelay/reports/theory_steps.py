"""Steps by three rules: where each lies in the allowed range, and the bound that it gives."""

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

from splitrelay.reports.style import drawn, save
from splitrelay.reports.theory_figures import FEW, HATCH, RULE_LABEL, RULE_LOOK, VACUOUS, hatch, nowhere, scale_x
from splitrelay.reports.theory_panels import Array, Panel, bound_panel, why_not
from splitrelay.reports.theory_words import Words
from splitrelay.theory import Bound, StepSize

POINTS = 241
DEPTH = 30  # below its upper end the axis shows so much of a range that has no lower end


@dataclass(frozen=True)
class StepPanel:
    """The steps over x, and from where on their bounds say nothing."""

    label: str
    x: Array
    steps: Mapping[str, StepSize]
    start: Array

    @property
    def applicable(self) -> Array:
        """Where there is a step at all."""
        return np.broadcast_to(self.steps["best"].applicable, self.x.shape)


def step_panel(label: str, x: Sequence[float], steps: Mapping[str, StepSize], start: Sequence[float]) -> StepPanel:
    """The steps over x."""
    return StepPanel(label, np.asarray(x, dtype=np.float64), steps, np.asarray(start, dtype=np.float64))


def draw_steps(panels: Sequence[StepPanel], words: Words, path: Path) -> Path:
    """The figure, written."""
    return save(steps_and_bounds(panels, words), path)


def steps_and_bounds(panels: Sequence[StepPanel], words: Words) -> Figure:
    """Left the step by each rule in its allowed range, right the bound it gives; one row a panel."""
    with drawn(5.5, 1.1 + 1.7 * len(panels)) as figure:
        axes = figure.subplots(len(panels), 2, sharex=True, squeeze=False)
        for (left, right), panel in zip(axes, panels, strict=True):
            _steps(left, panel, words)
            _bounds(right, panel, words)
        for axis in axes[-1]:
            axis.set_xlabel(words.x_label)
        _legend(figure, panels)
        figure.suptitle(words.caption(5.5), fontsize=8)
        return figure


def abscissa(step: StepSize) -> list[float]:
    """Values of eta_tilde over the allowed range of one setting and a little beyond."""
    low, high = float(step.low), float(step.high)
    return [float(x) for x in np.geomspace((low or high / DEPTH) / 3, high * 3, POINTS)]


def landscape(bound: Bound, steps: Mapping[str, StepSize], start: float) -> Panel:
    """One setting: the bound over the values of eta_tilde, with the step of each rule pointed out."""
    x = [float(value) for value in np.asarray(bound.eta_tilde)]
    panel = bound_panel("", x, bound, [start] * len(x))
    marks = {rule: float(step.eta_tilde) for rule, step in steps.items()}
    return replace(panel, marks=marks)


def _steps(axis: Axes, panel: StepPanel, words: Words) -> None:
    for rule, step in panel.steps.items():
        _line(axis, panel.x, step.eta_tilde, rule)
    low, high = (
        np.broadcast_to(values, panel.x.shape) for values in (panel.steps["best"].low, panel.steps["best"].high)
    )
    bottom, top = _limits(panel, low, high)
    axis.fill_between(panel.x, high, top, **HATCH)
    axis.fill_between(panel.x, bottom, np.maximum(low, bottom), **HATCH)
    _frame(axis, panel, words.symbol("eta_tilde"))
    axis.set_ylim(bottom, top)


def _limits(panel: StepPanel, low: Array, high: Array) -> tuple[float, float]:
    """The range with something of its outside; what has no lower end ends below the smallest step."""
    chosen = np.concatenate([np.broadcast_to(step.eta_tilde, panel.x.shape) for step in panel.steps.values()])
    chosen = chosen[chosen > 0]
    bottom = low[panel.applicable & (low > 0)]
    smallest = min([*bottom, *chosen, float(high.min()) / DEPTH])
    return smallest / 2, float(high.max()) * 2


def _bounds(axis: Axes, panel: StepPanel, words: Words) -> None:
    for rule, step in panel.steps.items():
        _line(axis, panel.x, step.bound.total, rule)
    axis.plot(panel.x, panel.start, **VACUOUS)
    _frame(axis, panel, words.y_label.replace("\n", " "))


def _line(axis: Axes, x: Array, values: npt.ArrayLike, rule: str) -> None:
    colour, line = RULE_LOOK[rule]
    shown = np.broadcast_to(np.asarray(values, dtype=np.float64), x.shape)
    axis.plot(x, shown, line, color=colour, marker="o" if len(x) <= FEW else "", markersize=2.5, clip_on=False)


def _frame(axis: Axes, panel: StepPanel, label: str) -> None:
    scale_x(axis, panel.x)
    axis.set_yscale("log")
    axis.set_ylabel(label)
    axis.set_title(panel.label)
    hatch(axis, panel.x, panel.applicable)
    if not panel.applicable.any():
        nowhere(axis, why_not(panel.steps["best"].bound))


def _legend(figure: Figure, panels: Sequence[StepPanel]) -> None:
    handles: list[Any] = [
        Line2D([], [], color=colour, linestyle=line, label=RULE_LABEL[rule])
        for rule, (colour, line) in RULE_LOOK.items()
    ]
    handles.append(Line2D([], [], **VACUOUS, label="vacuous from here up"))
    handles.append(Patch(**HATCH, label="outside the range"))
    figure.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / 2))
