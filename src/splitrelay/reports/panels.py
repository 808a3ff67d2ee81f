"""Many small panels on one sheet, drawn straight on the figure in inches: ten times faster than an Axes for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Bbox, TransformedBbox

Array = npt.NDArray[np.float64]
Points = list[tuple[float, float]]

TICK = 0.04  # inches, outside the frame
PER_CHARACTER = 0.05  # inches of small print, more than a letter takes on average


@dataclass(frozen=True)
class Panel:
    """A frame on the sheet, its sides in inches; 0 to `last` across, a logarithm from `low` to `high` upwards."""

    left: float
    bottom: float
    width: float
    height: float
    last: float
    low: float
    high: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def top(self) -> float:
        return self.bottom + self.height

    def x(self, value: npt.ArrayLike) -> Array:
        """Where a number stands across the sheet."""
        return np.asarray(self.left + self.width * np.asarray(value, float) / self.last)

    def y(self, value: npt.ArrayLike) -> Array:
        """Where a positive number stands up the sheet."""
        low, high = np.log10(self.low), np.log10(self.high)
        return np.asarray(self.bottom + self.height * (np.log10(np.asarray(value, float)) - low) / (high - low))

    def ticks_across(self) -> Iterator[tuple[float, str]]:
        """Where, and what to write there."""
        for value in MaxNLocator(2, integer=True).tick_values(0, self.last):
            if 0 <= value <= self.last:
                yield float(self.x(value)), f"{value:g}"

    def ticks_up(self) -> Iterator[tuple[float, str]]:
        """Powers of ten, at most every second one where there are many."""
        for value in LogLocator(numticks=4).tick_values(self.low, self.high):
            if self.low * (1 - 1e-9) <= value <= self.high:
                yield float(self.y(value)), rf"$10^{{{round(np.log10(value))}}}$"

    @property
    def corners(self) -> Points:
        """The frame, closed."""
        left, right, bottom, top = self.left, self.right, self.bottom, self.top
        return [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]


class Sheet:
    """A figure measured in inches. Frames, grids and bands are gathered, and drawn together by `finish`."""

    def __init__(self, figure: Figure) -> None:
        self.figure, self.inches = figure, figure.dpi_scale_trans
        self.frames: list[Points] = []
        self.grid: list[Points] = []
        self.bands: list[tuple[Array, str]] = []

    def frame(self, panel: Panel, *, with_labels: bool = True) -> None:
        """The frame with its ticks and grid; unlabelled, the numbers across are left to the panel below."""
        small: Any = {"fontsize": matplotlib.rcParams["xtick.labelsize"]}
        self.frames.append(panel.corners)
        for x, words in panel.ticks_across():
            self.grid.append([(x, panel.bottom), (x, panel.top)])
            self.frames.append([(x, panel.bottom), (x, panel.bottom - TICK)])
            if with_labels:
                self.write(x, panel.bottom - 0.09, words, ha="center", va="top", **small)
        for y, words in panel.ticks_up():
            self.grid.append([(panel.left, y), (panel.right, y)])
            self.frames.append([(panel.left, y), (panel.left - TICK, y)])
            self.write(panel.left - 0.09, y, words, ha="right", va="center_baseline", **small)

    def curve(self, panel: Panel, x: npt.ArrayLike, y: npt.ArrayLike, colour: str, line: Any) -> None:
        """A line, cut off at the frame."""
        artist = Line2D(panel.x(x), panel.y(y), color=colour, linestyle=line, transform=self.inches)
        artist.set_clip_box(TransformedBbox(Bbox([panel.corners[0], panel.corners[2]]), self.inches))
        self.figure.add_artist(artist, clip=False)

    def band(self, panel: Panel, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, colour: str) -> None:
        """What lies between two curves, cut off at the frame."""
        across = panel.x(x)
        up = np.clip(np.concatenate([panel.y(low), panel.y(high)[::-1]]), panel.bottom, panel.top)
        self.bands.append((np.column_stack([np.concatenate([across, across[::-1]]), up]), colour))

    def key(self, panel: Panel, entries: Sequence[tuple[str, str, Any]], *, lower: bool = False) -> None:
        """What is what, in the upper right or the lower left corner: (words, colour, line style) each."""
        size = matplotlib.rcParams["legend.fontsize"]
        longest = PER_CHARACTER * max(len(words) for words, _, _ in entries)
        left, top = (panel.left + 0.26, panel.bottom + 0.5) if lower else (panel.right - 0.02 - longest, panel.top)
        for j, (words, colour, line) in enumerate(entries):
            y = top - 0.1 - 0.125 * j
            sample = Line2D([left - 0.2, left - 0.04], [y, y], color=colour, linestyle=line, transform=self.inches)
            self.figure.add_artist(sample)
            self.write(left, y, words, va="center_baseline", fontsize=size)

    def write(self, x: float, y: float, words: str, **look: Any) -> None:
        """Words at a place in inches."""
        self.figure.text(x, y, words, transform=self.inches, **look)

    def finish(self) -> None:
        """Everything that was gathered."""
        rc = matplotlib.rcParams
        frames = LineCollection(self.frames, colors="black", linewidths=rc["axes.linewidth"], zorder=2.5)
        thin: Any = {"linewidths": rc["grid.linewidth"], "alpha": rc["grid.alpha"]}
        grid = LineCollection(self.grid, colors=rc["grid.color"], zorder=0.5, **thin)
        colours = [colour for _, colour in self.bands]
        bands = PolyCollection([points for points, _ in self.bands], facecolors=colours, linewidths=0, alpha=0.2)
        for gathered in (grid, bands, frames):
            gathered.set_transform(self.inches)
            self.figure.add_artist(gathered)
