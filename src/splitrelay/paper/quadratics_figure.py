"""The paper's simulation figures: nine panels for its appendix, three for its body, any number for a user's groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from splitrelay.paper.quadratics import Curves, Row
from splitrelay.reports.panels import Panel, Sheet
from splitrelay.reports.style import LABEL, LOOK, drawn, save

Array = npt.NDArray[np.float64]

DEPTH = 1e-5  # the axis ends this far below zeta_*: a curve that falls through the floor has converged
WIDTH, HEIGHT, ACROSS, DOWN = 1.46, 1.18, 1.87, 1.45  # of a panel, and from one to the next, in inches
LEFT, BOTTOM, KEY = 0.75, 0.4, 0.3


def draw(rows: Sequence[Row], path: Path) -> Path:
    """One panel a group, at each algorithm's best rate; three by three with delta, zeta_* at the margins."""
    across, square = _columns(rows), _is_square(rows)
    down = math.ceil(len(rows) / across)
    width, height = LEFT + ACROSS * across - 0.31, BOTTOM + DOWN * down + (0.13 if square else -0.06)
    with drawn(width, height, by_hand=True) as figure:
        sheet = Sheet(figure)
        for j, row in enumerate(rows):
            left, bottom = LEFT + ACROSS * (j % across), BOTTOM + DOWN * (down - 1 - j // across)
            panel = _panel(row, left, bottom)
            lowest = j + across >= len(rows)
            sheet.frame(panel, with_labels=lowest)
            _curves(sheet, panel, row)
            _below_floor(sheet, panel, row)
            _margins(sheet, panel, row, square=square, first=j % across == 0, highest=j < across, lowest=lowest)
        sheet.finish()
        return save(figure, path)


def _columns(rows: Sequence[Row]) -> int:
    return 3 if len(rows) in (3, 9) else max(1, math.ceil(math.sqrt(len(rows))))


def _both(row: Row) -> Sequence[tuple[str, Curves]]:
    return ("fedavg", row.fedavg), ("ssl", row.ssl)


def _best(curves: Curves) -> Array:
    return np.nan_to_num(curves.errors[:, curves.best], nan=np.inf)


def _panel(row: Row, left: float, bottom: float) -> Panel:
    floor = DEPTH * math.sqrt(row.group.problem.zeta2_star) or DEPTH
    errors = np.stack([_best(curves) for _, curves in _both(row)])
    highest = 3 * float(errors[np.isfinite(errors)].max(initial=floor * 10))
    return Panel(left, bottom, WIDTH, HEIGHT, max(1, row.study.R), floor, highest)


def _curves(sheet: Sheet, panel: Panel, row: Row) -> None:
    """The mean over seeds of each algorithm, in a band from the least to the largest."""
    rounds, late = np.arange(row.study.R + 1), slice(2 * row.study.R // 5, None)
    crowded = False
    for name, curves in _both(row):
        shown = np.maximum(_best(curves), panel.low / 10)  # zeros have no logarithm: they are drawn below the floor
        mean = shown.mean(axis=0)
        crowded |= bool((panel.y(mean[late]) > panel.top - KEY).any())
        sheet.curve(panel, rounds, mean, *LOOK[name])
        sheet.band(panel, rounds, shown.min(axis=0), shown.max(axis=0), LOOK[name][0])
    sheet.key(panel, [(_label(name, curves), *LOOK[name]) for name, curves in _both(row)], lower=crowded)


def _below_floor(sheet: Sheet, panel: Panel, row: Row) -> None:
    """A curve that leaves through the floor would be missed: say when it leaves, and that it does not come back."""
    for j, (name, curves) in enumerate(_both(row)):
        above = np.flatnonzero(curves.errors[:, curves.best].max(axis=0) >= panel.low)
        last = int(above[-1]) if above.size else 0
        if last < row.study.R:
            words = f"{LABEL[name]} is below from round {last + 1} on"
            left = float(panel.x(min(last + 1, row.study.R / 8))) + 0.04  # beside the curve where there is room
            sheet.write(left, panel.bottom + 0.05 + 0.1 * j, words, color=LOOK[name][0], fontsize=6)


def _label(name: str, curves: Curves) -> str:
    return f"{LABEL[name]}, η = {curves.eta:g}"


def _margins(sheet: Sheet, panel: Panel, row: Row, *, square: bool, first: bool, highest: bool, lowest: bool) -> None:
    middle, halfway = panel.left + WIDTH / 2, panel.bottom + HEIGHT / 2
    sheet.write(middle, panel.top + 0.05, f"Group {row.group.name}" if square else _title(row), ha="center")
    if lowest:
        sheet.write(middle, panel.bottom - 0.24, "training rounds", ha="center", va="top")
    if first:
        sheet.write(panel.left - 0.36, halfway, r"$|x^r - x^*|$", ha="right", va="center", rotation=90)
    if square and highest:
        sheet.write(middle, panel.top + 0.21, _zeta(row), ha="center", fontsize=9)
    if square and first:
        sheet.write(panel.left - 0.55, halfway, _delta(row), ha="right", va="center", rotation=90, fontsize=9)


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
