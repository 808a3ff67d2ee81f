"""The paper's simulation figures: nine panels for its appendix, three for its body, any number for a user's groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from splitrelay.experiments.figures.style import LABEL, LOOK, drawn, save
from splitrelay.experiments.quadratics import Curves, Row

DEPTH = 1e-5  # the axis ends this far below zeta_*: a curve that falls through the floor has converged


def draw(rows: Sequence[Row], path: Path) -> Path:
    """One panel a group, at each algorithm's best rate; three by three with delta, zeta_* at the margins."""
    across = _columns(rows)
    down = math.ceil(len(rows) / across)
    with drawn(1.85 * across + 0.5, 1.55 * down + 0.45, by_hand=True) as figure:
        axes = _panels(figure, len(rows), across, down, 0.42 if _is_square(rows) else 0.22)
        for axis, row in zip(axes, rows, strict=True):
            _panel(axis, row)
        _margins(axes, rows, across)
        return save(figure, path)


def _panels(figure: Figure, number: int, across: int, down: int, top: float) -> list[Axes]:
    """Their margins are in inches: the labels keep their size however many panels there are."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=0.75 / width, right=1 - 0.1 / width, bottom=0.4 / height, top=1 - top / height, wspace=0.28, hspace=0.32
    )
    return [figure.add_subplot(down, across, j + 1) for j in range(number)]


def _columns(rows: Sequence[Row]) -> int:
    return 3 if len(rows) in (3, 9) else max(1, math.ceil(math.sqrt(len(rows))))


def _panel(axis: Axes, row: Row) -> None:
    rounds = np.arange(row.ssl.errors.shape[-1])
    floor = DEPTH * math.sqrt(row.group.problem.zeta2_star) or DEPTH
    tops = []
    for name, curves in (("fedavg", row.fedavg), ("ssl", row.ssl)):
        best = np.nan_to_num(curves.errors[:, curves.best], nan=np.inf)
        colour, line = LOOK[name]
        shown = np.maximum(best, floor / 10)  # zeros have no logarithm: they are drawn below the floor
        axis.plot(rounds, shown.mean(axis=0), line, color=colour, label=_label(name, curves))
        axis.fill_between(rounds, shown.min(axis=0), shown.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        tops.append(best[np.isfinite(best)].max(initial=floor * 10))
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(numticks=5))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(floor, 3 * max(tops))
    axis.set_xlim(0, max(1, rounds[-1]))
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.legend(loc="upper right", handlelength=1.6, borderaxespad=0.3, labelspacing=0.2)
    _below_floor(axis, row, floor)


def _below_floor(axis: Axes, row: Row, floor: float) -> None:
    """A curve that leaves through the floor would be missed: say when it leaves, and that it does not come back."""
    for name, curves in (("fedavg", row.fedavg), ("ssl", row.ssl)):
        above = np.flatnonzero(curves.errors[:, curves.best].max(axis=0) >= floor)
        last = int(above[-1]) if above.size else 0
        if last < curves.errors.shape[-1] - 1:
            words = f"{LABEL[name]} is below from round {last + 1} on"
            axis.annotate(words, (0.03, 0.04), xycoords="axes fraction", color=LOOK[name][0], fontsize=6)


def _label(name: str, curves: Curves) -> str:
    return f"{LABEL[name]}, η = {curves.eta:g}"


def _margins(axes: Sequence[Axes], rows: Sequence[Row], across: int) -> None:
    square = _is_square(rows)
    for j, (axis, row) in enumerate(zip(axes, rows, strict=True)):
        if j + across >= len(rows):
            axis.set_xlabel("training rounds")
        if j % across == 0:
            axis.set_ylabel(r"$|x^r - x^*|$")
        axis.set_title(f"Group {row.group.name}" if square else _title(row), pad=3)
        if square and j < across:
            axis.annotate(_zeta(row), (0.5, 1.16), xycoords="axes fraction", ha="center", va="bottom", fontsize=9)
        if square and j % across == 0:
            axis.annotate(
                _delta(row), (-0.36, 0.5), xycoords="axes fraction", ha="right", va="center", rotation=90, fontsize=9
            )


def _is_square(rows: Sequence[Row]) -> bool:
    """Three by three with one delta/zeta_* to each row and one zeta_* to each column, like the paper's nine."""
    if len(rows) != 9:
        return False
    zetas = [f"{row.group.problem.zeta2_star:.9g}" for row in rows]
    return zetas[:3] == zetas[3:6] == zetas[6:] and all(
        len({_delta(row) for row in rows[j : j + 3]}) == 1 for j in (0, 3, 6)
    )


def _title(row: Row) -> str:
    delta = row.group.problem.delta
    shown = r"\infty" if math.isinf(delta) else f"{delta:.3g}"
    return rf"Group {row.group.name}: $\delta={shown}$, {_zeta(row)}"


def _delta(row: Row) -> str:
    """In a row of the nine, delta grows with a like zeta_*: the ratio is what the row shares."""
    ratio = row.group.problem.delta / math.sqrt(row.group.problem.zeta2_star)
    if math.isinf(ratio):
        return r"$\delta=\infty$"
    return r"$\delta=0$" if ratio == 0 else rf"$\delta={ratio:.3g}\,\zeta_*$"


def _zeta(row: Row) -> str:
    return rf"$\zeta_*={math.sqrt(row.group.problem.zeta2_star):.3g}$"
