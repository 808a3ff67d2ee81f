"""Draw charts for reports as plain SVG. Colours come from the page, for a light or a dark theme."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]
WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 30, 38  # margins: labels on the left and below, the key on top
MOST = 400  # points of one line
LEVELS = 8  # shades of a heat map
COLUMNS = 400  # of a heat map; beyond it neighbours share one
NUMBERED = 20  # clients; up to this number the cells contain the counts


@dataclass(frozen=True)
class Series:
    """A line: its name in the legend (empty: none), its colour (a CSS class of the page), its points."""

    name: str
    colour: str
    points: Sequence[Point]
    hint: str = ""  # tooltip


def thin_points(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """Return fewer points with the same picture: the lowest and highest of each interval, the first and the last."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= most:
        return finite
    stretch = -(-len(finite) // max(most // 2 - 1, 1))
    kept = {0, len(finite) - 1}
    for start in range(0, len(finite), stretch):
        inside = range(start, min(start + stretch, len(finite)))
        kept |= {min(inside, key=lambda j: finite[j][1]), max(inside, key=lambda j: finite[j][1])}
    return [finite[j] for j in sorted(kept)]


def draw_line_chart(series: Sequence[Series], across: str, upright: str, top: float | None = None) -> str:
    """Draw lines on axes that begin at 0. `top` is the end of the y axis."""
    drawn = [Series(line.name, line.colour, thin_points(line.points), line.hint) for line in series]
    points = [point for line in drawn for point in line.points]
    if not points:
        return '<p class="note">Nothing to draw: no evaluation has a number.</p>'
    high_x, high_y = max(x for x, _ in points) or 1.0, top or max(y for _, y in points) * 1.05 or 1.0
    parts = [*_draw_axes(high_x, high_y, across, upright), *_draw_key([line for line in drawn if line.name])]
    parts += [_draw_path(line, high_x, high_y) for line in drawn]
    return _wrap_svg(WIDTH, HEIGHT, f"{upright} against {across}", parts)


def draw_bar_chart(names: Sequence[str], shares: Sequence[float], across: str) -> str:
    """Draw a bar from 0 to 100 % for each name, with its value."""
    height = 18 * len(names) + 34
    parts = []
    for j, (name, share) in enumerate(zip(names, shares, strict=True)):
        y = 18 * j + 6
        shown = "no images" if math.isnan(share) else f"{100 * share:.1f} %"
        width = 0 if math.isnan(share) else share * 360
        parts.append(f'<text class="end" x="{LEFT + 40}" y="{y + 11}">{escape(name)}</text>')
        parts.append(f'<rect class="blue-fill" x="{LEFT + 48}" y="{y}" width="{width:.1f}" height="13"/>')
        parts.append(f'<text x="{LEFT + 54 + width:.1f}" y="{y + 11}">{shown}</text>')
    parts.append(f'<text class="middle" x="{LEFT + 228}" y="{height - 6}">{escape(across)}</text>')
    return _wrap_svg(WIDTH, height, across, parts)


def draw_heat_map(counts: NDArray[np.int64], labels: Sequence[str]) -> str:
    """Draw clients on the x axis and labels on the y axis. Darker means more samples.

    Many clients are sorted by their main label.
    """
    M, n = counts.shape
    cells = _gather_columns(counts if M <= NUMBERED else counts[_sort_by_main_label(counts)])
    across, row = WIDTH - LEFT - RIGHT, max(8, min(18, 240 // n))
    wide, top = across / len(cells), 8
    grid = (
        f'<g transform="translate({LEFT} {top}) scale({wide:.4f} {row})" class="heat">{"".join(_draw_cells(cells))}</g>'
    )
    frame = f'<rect class="frame" x="{LEFT}" y="{top}" width="{across}" height="{row * n}"/>'
    step = -(-n // 20)
    down = [
        f'<text class="end" x="{LEFT - 6}" y="{top + row * (c + 0.5) + 4:.0f}">{escape(labels[c])}</text>'
        for c in range(0, n, step)
    ]
    name = f"{M} clients" if M <= NUMBERED else f"{M} clients, ordered by their main label"
    below = f'<text class="middle" x="{LEFT + across / 2:.0f}" y="{top + row * n + 28}">{name}</text>'
    numbers = _draw_numbers(counts, wide, row, top) if M <= NUMBERED else []
    return _wrap_svg(
        WIDTH, top + row * n + 36, "samples of each label at each client", [grid, frame, *down, *numbers, below]
    )


def choose_ticks(high: float, most: int = 5) -> list[float]:
    """Return 0 and round numbers up to the end of an axis."""
    raw = high / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    return [step * j for j in range(int(high / step + 1e-9) + 1)]


def _wrap_svg(width: int, height: int, name: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name, quote=True)}">'
    return f"{head}<title>{escape(name)}</title>{''.join(parts)}</svg>"


def _get_position(x: float, y: float, high_x: float, high_y: float) -> Point:
    inner_x, inner_y = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return LEFT + inner_x * x / high_x, TOP + inner_y * (1 - min(y / high_y, 1.0))


def _draw_axes(high_x: float, high_y: float, across: str, upright: str) -> Iterator[str]:
    for y in choose_ticks(high_y):
        at = _get_position(0, y, high_x, high_y)[1]
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{y:g}</text>'
    for x in choose_ticks(high_x, 6):
        at = _get_position(x, 0, high_x, high_y)[0]
        yield f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text class="middle" x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}">{x:g}</text>'
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    yield f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}">{escape(across)}</text>'
    yield f'<text class="middle" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(upright)}</text>'


def _draw_key(lines: Sequence[Series]) -> Iterator[str]:
    x = float(LEFT)
    for line in lines:
        yield f'<path class="line {line.colour}" d="M{x:.0f} 14h18"/>'
        yield f'<text x="{x + 23:.0f}" y="18">{escape(line.name)}</text>'
        x += 40 + 6.3 * len(line.name)


def _draw_path(line: Series, high_x: float, high_y: float) -> str:
    """Draw a line with relative steps in tenths of a pixel, which need half the characters of absolute ones."""
    spots = [tuple(round(10 * value) for value in _get_position(x, y, high_x, high_y)) for x, y in line.points]
    if not spots:
        return ""
    steps = "".join(f"{bx - ax} {by - ay} " for (ax, ay), (bx, by) in pairwise(spots))
    start = f"M{spots[0][0]} {spots[0][1]}l{steps or '0 0'}".strip()
    hint = f"<title>{escape(line.hint)}</title>" if line.hint else ""
    return f'<path class="line {line.colour}" transform="scale(.1)" d="{start}">{hint}</path>'


def _gather_columns(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return at most COLUMNS columns. Neighbours share one column, which has their mean."""
    share = -(-len(counts) // COLUMNS)
    starts = np.arange(0, len(counts), share)
    sizes = np.diff([*starts, len(counts)])
    return np.asarray(np.add.reduceat(counts, starts, axis=0) / sizes[:, None])


def _sort_by_main_label(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.lexsort((-counts.max(1), counts.argmax(1), counts.sum(1) == 0))


def _draw_cells(counts: NDArray[np.float64]) -> Iterator[str]:
    """Yield one path per shade. Shades follow the square root, so that small counts are visible."""
    level = np.ceil(LEVELS * np.sqrt(counts / max(counts.max(), 1e-9))).astype(int)
    for shade in range(1, LEVELS + 1):
        squares = "".join(f"M{m} {c}h1v1h-1z" for m, c in np.argwhere(level == shade).tolist())
        if squares:
            yield f'<path fill-opacity="{shade / LEVELS:.2f}" d="{squares}"/>'


def _draw_numbers(counts: NDArray[np.int64], wide: float, row: int, top: int) -> Iterator[str]:
    for m, c in np.argwhere(counts).tolist():
        x, y = LEFT + wide * (m + 0.5), top + row * (c + 0.5) + 3.5
        dark = " over" if counts[m, c] > 0.4 * counts.max() else ""
        yield f'<text class="middle small{dark}" x="{x:.1f}" y="{y:.1f}">{counts[m, c]}</text>'
    for m in range(len(counts)):
        y = top + row * counts.shape[1] + 13
        yield f'<text class="middle small" x="{LEFT + wide * (m + 0.5):.1f}" y="{y}">{m}</text>'
