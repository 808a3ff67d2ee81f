"""Draw lines in panels, with one style per algorithm, a legend above the panels and notes below them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from splitrelay.reports.labels import ALGORITHMS, find_place
from splitrelay.reports.style import BLACK, GREEN, LOOK, ORANGE, PURPLE, SKY, open_figure

Floats = NDArray[np.float64]
OTHERS = (GREEN, PURPLE, ORANGE, SKY, BLACK)
RAMPS, SPARE_RAMPS = {"ssl": "Blues", "fedavg": "Oranges"}, ("Greens", "Purples", "Greys", "YlOrBr")
STYLES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
WIDTH, HEIGHT = 2.6, 1.9  # inches of a panel
LETTERS_AN_INCH = 20  # of the notes' small print, also where a reader's SVG has to do without our font


@dataclass(frozen=True)
class LineStyle:
    """The colour and the pattern of a line."""

    colour: str
    style: Any


@dataclass(frozen=True)
class Line:
    """A curve with a band of one standard deviation (NaN: no band)."""

    label: str
    style: LineStyle
    x: Floats
    mean: Floats
    deviation: Floats


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    lines: Sequence[Line]
    log: bool = False  # across


@dataclass(frozen=True)
class Drawing:
    """A figure with its texts: first the caption, then the notes."""

    figure: Figure
    said: Sequence[str] = field(default_factory=list)


def colours(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return a colour for each algorithm and variant. SSL and FedAvg have fixed colours.

    If there are too many variants, each algorithm gets shades of one colour.
    """
    ordered = sorted(set(names), key=lambda name: (find_place(ALGORITHMS, name[0]), name[1]))
    if len(ordered) > len(LOOK) + len(OTHERS):
        return _choose_shades(ordered)
    first = {name[0]: name for name in reversed(ordered)}
    own = {first[algorithm]: LOOK[algorithm][0] for algorithm in LOOK if algorithm in first}
    return {**own, **dict(zip((name for name in ordered if name not in own), OTHERS, strict=False))}


def _choose_shades(ordered: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return shades from light to dark, with one colour per algorithm."""
    found: dict[tuple[str, str], str] = {}
    for j, algorithm in enumerate(dict.fromkeys(name[0] for name in ordered)):
        variants = [name for name in ordered if name[0] == algorithm]
        ramp = matplotlib.colormaps[RAMPS.get(algorithm, SPARE_RAMPS[j % len(SPARE_RAMPS)])]
        found |= {name: to_hex(ramp(0.35 + 0.65 * i / len(variants))) for i, name in enumerate(variants)}
    return found


def styles(values: Iterable[Any]) -> dict[Any, Any]:
    """Return a line pattern for each value, in order. After six values the patterns repeat."""
    return {value: STYLES[j % len(STYLES)] for j, value in enumerate(dict.fromkeys(values))}


def grid(
    panels: Sequence[Sequence[Panel | None]],
    labels: tuple[str, str],
    notes: Sequence[str],
    key: Mapping[str, LineStyle],
) -> Figure:
    """Draw rows of panels on one scale of accuracy, with the legend above and the notes below."""
    across, down = max(map(len, panels)), len(panels)
    width = max(3.4, WIDTH * across + 0.3)
    lines = textwrap.wrap(" ".join(notes), round(LETTERS_AN_INCH * width))
    columns = count_key_columns(key, width)
    height = HEIGHT * down + 0.25 + 0.15 * -(-len(key) // columns) + 0.1 * len(lines)
    with open_figure(width, height) as figure:
        axes = figure.subplots(down, across, squeeze=False, sharey=True)
        for row, places in zip(panels, axes, strict=True):
            for j, axis in enumerate(places):
                found = row[j] if j < len(row) else None
                _draw_panel(axis, found)
                axis.set_xlabel(labels[0] if found else "")
                axis.set_ylabel(labels[1] if j == 0 else "")
        legend(figure, key, columns)
        footnotes(figure, lines)
    return figure


def count_key_columns(labels: Iterable[str], width: float) -> int:
    """Return the number of columns of the legend: as many as fit, with about equal lengths."""
    lengths = [len(label.replace("$", "").replace("\\eta", "n")) for label in labels]
    most = max(1, int(width // (0.55 + 0.055 * max(lengths, default=1))))
    return -(-len(lengths) // -(-len(lengths) // most)) if lengths else 1


def legend(figure: Figure, key: Mapping[str, LineStyle], columns: int) -> None:
    """Draw the legend above all panels, so that it covers no curve."""
    handles = [Line2D([], [], color=look.colour, linestyle=look.style, label=label) for label, look in key.items()]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def footnotes(figure: Figure, lines: Sequence[str]) -> None:
    """Draw the notes below the panels: fewer seeds, unfinished runs, smoothing."""
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=6, color="0.3", x=0.01, ha="left")


def set_percent_axis(axis: Axes) -> None:
    """Show the whole range from 0 to 100 %, so that gaps have their real size."""
    axis.set_ylim(0, 100)


def _draw_panel(axis: Axes, panel: Panel | None) -> None:
    if panel is None:
        axis.set_axis_off()
        return
    for line in panel.lines:
        axis.plot(line.x, line.mean, linestyle=line.style.style, color=line.style.colour, label=line.label)
        low, high = line.mean - line.deviation, line.mean + line.deviation
        if np.isfinite(line.deviation).any():
            axis.fill_between(line.x, low, high, color=line.style.colour, alpha=0.2, linewidth=0)
    ends = [line.x[-1] for line in panel.lines if len(line.x)]
    if panel.log:
        axis.set_xscale("log")
        axis.set_xlim(min(line.x[line.x > 0][0] for line in panel.lines), max(ends))
    elif ends and max(ends) > 0:
        axis.set_xlim(0, max(ends))
    axis.set_title(panel.title)
    set_percent_axis(axis)
