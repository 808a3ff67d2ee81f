"""The convex study's figure: gap against rounds, tuned above, at theory's step with its bound below, one column a C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from splitrelay.paper.convex_records import Cell, Record, Rows, Side, last, mean
from splitrelay.reports.style import GREEN, LABEL, LOOK, PURPLE, open_figure, save_figure

Array = npt.NDArray[np.float64]

LOOKS: dict[str, tuple[str, Any]] = {
    **LOOK,
    "minibatch-sgd": (GREEN, "-."),
    "scaffold": (PURPLE, (0, (3, 1, 1, 1, 1, 1))),
}
LABELS = {**LABEL, "minibatch-sgd": "minibatch SGD", "scaffold": "SCAFFOLD"}  # tables/names would bring torch
WIDTH, HEIGHT, LEAST_WIDTH = 1.75, 4.3, 3.6  # inches: of a column, of the whole, of a figure with one column
BOUND: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (1, 1))}
GREY = "0.75"
# White under words, so that curves and hatching do not cross them.
SMALL: dict[str, Any] = {
    "fontsize": 6,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
}
ROOMY = 2  # columns: with more of them title and key stand side by side


def draw(record: Record, path: Path) -> Path:
    """The figure of a record, in the file's own format."""
    across = len(record.cells)
    with open_figure(max(LEAST_WIDTH, 0.5 + WIDTH * across), HEIGHT) as figure:
        axes = figure.subplots(2, across, sharex=True, sharey=True, squeeze=False)
        for column, cell in zip(axes.T, record.cells, strict=True):
            _draw_tuned(column[0], record, cell)
            _draw_theory(column[1], record, cell)
            column[1].set_xlabel("rounds")
        axes[0, 0].set_ylabel(r"tuned:  $F(x^r) - F^*$")
        axes[1, 0].set_ylabel(r"theory's step:  $F(\bar x) - F^*$")
        axes[0, 0].set_yscale("log")
        axes[0, 0].set_xlim(0, record.study.R)
        figure.suptitle(_build_title(record), fontsize=8)
        _draw_key(figure, record)
        return save_figure(figure, path)


def _build_title(record: Record) -> str:
    study = record.study
    batch = "full gradients" if study.batch is None else f"batches of {study.batch}"
    dealt = f"Softmax regression on {Path(study.data).stem}, $M$ = {study.M} clients by ExDir($C$, {study.alpha:g})"
    return rf"{dealt}{', ' if len(study.Cs) > ROOMY else chr(10)}$K$ = {study.K}, $\mu$ = {study.mu:g}, {batch}"


def _draw_tuned(ax: Axes, record: Record, cell: Cell) -> None:
    """Every algorithm at its best rate, which stands beside the curve's end in the corner."""
    ax.set_title(
        rf"$C$ = {cell.C}:  $\zeta_*^2$ = {cell.constants.zeta2_star:.2g},  $\kappa$ = {cell.constants.kappa:.0f}"
    )
    for side in cell.sides:
        _draw_curve(ax, record, side, side.tuned.gap)
    for j, side in enumerate(sorted(cell.sides, key=lambda side: last(side.tuned.gap))):
        edge = "*" if side.tuned.on_edge else ""
        words = f"{LABELS[side.algorithm]} {last(side.tuned.gap):.1e}, η = {side.tuned.eta:g}{edge}"
        place: Any = {"transform": ax.transAxes, "ha": "right", "va": "top"}
        ax.text(0.97, 0.97 - 0.075 * j, words, color=LOOKS[side.algorithm][0], **place, **SMALL)


def _draw_theory(ax: Axes, record: Record, cell: Cell) -> None:
    """Every algorithm's averaged output, the bounds from where they apply, and hatching where none does."""
    for side in cell.sides:
        _draw_curve(ax, record, side, side.theory.gap_bar)
        _draw_bound(ax, record, side)
    needed = cell.constants.rounds_needed
    ax.axvspan(0, min(needed, record.study.R), facecolor="none", edgecolor=GREY, hatch="////", linewidth=0, zorder=0.4)
    words = rf"$R < 6\kappa$ = {needed:.0f}" if needed < record.study.R else rf"no bound: $R < 6\kappa$ = {needed:.0f}"
    ax.text(0.03, 0.03, words, color="0.3", transform=ax.transAxes, **SMALL)
    bounded = [side for side in reversed(cell.sides) if side.theory.applies]
    lines = [(f"{LABELS[side.algorithm]} {_format_ratio(side)}", LOOKS[side.algorithm][0]) for side in bounded]
    for j, (words, colour) in enumerate([*lines, ("bound / gap:", "0.3")] if lines else []):
        ax.text(0.03, 0.105 + 0.075 * j, words, color=colour, transform=ax.transAxes, **SMALL)


def _draw_curve(ax: Axes, record: Record, side: Side, gap: Rows) -> None:
    """The mean over seeds, in a band from the least to the largest where there are several."""
    colour, line = LOOKS[side.algorithm]
    ax.plot(record.rounds, _positive(mean(gap)), color=colour, linestyle=line)
    if len(gap) > 1:
        rows = _positive(np.asarray(gap))
        ax.fill_between(record.rounds, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)


def _draw_bound(ax: Axes, record: Record, side: Side) -> None:
    """Proved constants as a dotted line; between it and the tight ones, where they differ, a band."""
    colour = LOOKS[side.algorithm][0]
    proved, tight = (np.array(values, dtype=float) for values in (side.theory.proved, side.theory.tight))
    ax.plot(record.rounds, proved, color=colour, **BOUND)
    if not np.array_equal(proved, tight, equal_nan=True):
        ax.fill_between(record.rounds, tight, proved, color=colour, alpha=0.15, linewidth=0)


def _draw_key(figure: Figure, record: Record) -> None:
    sides = record.cells[0].sides
    entries: list[Any] = [
        Line2D([], [], color=LOOKS[side.algorithm][0], linestyle=LOOKS[side.algorithm][1]) for side in sides
    ]
    words = [LABELS[side.algorithm] for side in sides]
    entries += [Line2D([], [], color="black", **BOUND), Patch(color=LOOKS["ssl"][0], alpha=0.15, linewidth=0)]
    words += ["bound, proved constants", "SSL's bound, tight to proved"]
    entries.append(Patch(facecolor="none", edgecolor=GREY, hatch="////", linewidth=0))
    words.append("theorem does not apply")
    figure.legend(entries, words, loc="outside lower center", ncols=4 if len(record.cells) > ROOMY else 2)


def _positive(gap: Array) -> Array:
    """A gap of zero or, by rounding, less has no logarithm: it is not drawn."""
    return np.where(gap > 0, gap, np.nan)


def _format_ratio(side: Side) -> str:
    """How many times the gap the proved bound is, in the end."""
    ratio = (side.theory.proved[-1] or np.nan) / last(side.theory.gap_bar)
    return f"{ratio:.2g}×" if ratio < 100 else f"{ratio:.0f}×"
