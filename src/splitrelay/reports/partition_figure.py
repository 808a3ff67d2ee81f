"""Figures of partitions: heat map, bubbles, and the paper's twelve panels of ExDir. The x axis shows clients."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from splitrelay.data.partition import Partition
from splitrelay.reports.style import BLUE, open_figure

Counts = NDArray[np.int64]

INK = LinearSegmentedColormap.from_list("ink", ["#e4eff7", "#bcd9ec", "#7fb8dc", BLUE, "#003a5c"])
COUNTS_UP_TO = 20  # clients; up to this number the cells contain the counts
NATURAL_UP_TO = 60  # clients; above this number they are sorted by their main label


def heat_map(partition: Partition) -> Figure:
    """Draw the samples per client and label as shades. Up to 20 clients, the cells contain the counts."""
    counts, axis = _sort_clients(partition)
    scale = Normalize(0, counts.max())
    with open_figure(*_compute_size(*counts.shape)) as figure:
        axes = figure.add_subplot()
        _draw_cells(axes, counts, scale, 6)
        _set_axes(axes, partition)
        axes.set(xlabel=axis, ylabel="label", title=partition.title)
        _add_colorbar(figure, [axes], scale, 30)
    return figure


def bubbles(partition: Partition) -> Figure:
    """Draw the samples per client and label as discs whose area is the count."""
    counts, axis = _sort_clients(partition)
    client, label = np.nonzero(counts)
    width, height = _compute_size(*counts.shape)
    pitch = min(62 * (width - 1) / partition.M, 62 * (height - 0.7) / counts.shape[1])  # points from cell to cell
    per_sample = max(0.95 * pitch, 4.0) ** 2 / counts.max()
    with open_figure(width, height) as figure:
        axes = figure.add_subplot()
        axes.scatter(client, label, s=per_sample * counts[client, label], color=BLUE, alpha=0.75, linewidths=0)
        axes.set_axisbelow(True)
        _set_axes(axes, partition)
        axes.set(xlabel=axis, ylabel="label", title=partition.title)
        _add_area_legend(axes, int(counts.max()), per_sample)
    return figure


def panels(partitions: Mapping[tuple[int, float], Partition]) -> Figure:
    """Draw the figure of the paper: rows are C, columns are alpha, and all panels have the same scale."""
    rows = sorted({C for C, _ in partitions})
    columns = sorted({alpha for _, alpha in partitions}, reverse=True)
    # Cells of C = 10 have a tenth of the samples of C = 1. Shades by the square root show both.
    scale = PowerNorm(0.5, 0, max(int(partition.counts.max()) for partition in partitions.values()))
    with open_figure(7.0, 0.35 + 2.1 * len(rows)) as figure:
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
        for (i, C), (j, alpha) in product(enumerate(rows), enumerate(columns)):
            _draw_cells(grid[i, j], partitions[C, alpha].counts, scale, 4.6)
            _set_axes(grid[i, j], partitions[C, alpha])
            grid[i, j].set_title(f"ExDir({C}, {alpha:g})", pad=3)
            grid[i, j].set(xlabel="client" if i == len(rows) - 1 else "", ylabel="label" if j == 0 else "")
        _add_colorbar(figure, list(grid.flat), scale, 70)
    return figure


def _sort_clients(partition: Partition) -> tuple[Counts, str]:
    """Return the counts in the order of the axis, and its label. Many clients are sorted by their main label."""
    if partition.M <= NATURAL_UP_TO:
        return partition.counts, "client"
    return partition.counts[
        _order_by_main_class(partition.counts)
    ], "clients, ordered by their main label and its share"


def _draw_cells(axes: Axes, counts: Counts, scale: Normalize, size: float) -> None:
    """Draw the cells (white if empty), and write the counts into them if there are few clients."""
    lines = {"edgecolors": "#e6e6e6", "linewidth": 0.3} if len(counts) <= NATURAL_UP_TO else {"rasterized": True}
    edges = [np.arange(length + 1) - 0.5 for length in counts.shape]
    axes.pcolormesh(*edges, np.ma.masked_equal(counts.T, 0), cmap=INK, norm=scale, **lines)
    axes.grid(False)
    if len(counts) <= COUNTS_UP_TO:
        for m, c in np.argwhere(counts):
            colour = "white" if scale(counts[m, c]) > 0.6 else "black"
            axes.text(m, c, str(counts[m, c]), ha="center", va="center", fontsize=size, color=colour)


def _set_axes(axes: Axes, partition: Partition) -> None:
    names = [str(label) for label in partition.classes.tolist()]
    axes.set_xlim(-0.5, partition.M - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first label on top
    step = -(-len(names) // 20)
    axes.set_yticks(range(0, len(names), step), names[::step])
    if partition.M <= COUNTS_UP_TO:
        axes.set_xticks(range(partition.M))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(length=0 if partition.M <= COUNTS_UP_TO else 2)


def _add_colorbar(figure: Figure, axes: list[Axes], scale: Normalize, aspect: float) -> None:
    shades = ScalarMappable(scale, INK)
    bar: Any = figure.colorbar(shades, ax=axes, pad=0.015, aspect=aspect, fraction=0.03)
    bar.set_label("samples of a label at a client")
    bar.outline.set_linewidth(0.5)
    bar.ax.tick_params(length=2)


def _add_area_legend(axes: Axes, top: int, per_sample: float) -> None:
    """Add a legend with a few round counts and their discs."""
    for count in MaxNLocator(4, integer=True).tick_values(0, top):
        if 0 < count <= top:
            axes.scatter([], [], s=per_sample * count, color=BLUE, alpha=0.75, linewidths=0, label=f"{count:g}")
    axes.legend(title="samples", loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=1.4, title_fontsize=7)


def _order_by_main_class(counts: Counts) -> NDArray[np.int64]:
    """Return the clients by their largest label, then by its share in descending order. Empty clients come last."""
    sizes = counts.sum(axis=1)
    share = counts.max(axis=1) / np.maximum(sizes, 1)
    return np.lexsort((-share, counts.argmax(axis=1), sizes == 0))


def _compute_size(M: int, n: int) -> tuple[float, float]:
    """Return width and height in inches: as wide as the clients need, at most a page."""
    return min(7.0, 1.4 + 0.3 * M), min(8.0, 0.8 + 0.2 * n)
