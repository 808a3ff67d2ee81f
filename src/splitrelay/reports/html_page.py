"""Build HTML pages for reports: one file without scripts and external resources, with SVG charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from splitrelay import __version__
from splitrelay.table import Table, get_pieces

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
    return [finite[j] for j in select_points(np.array([y for _, y in finite]), most)]


def select_points(y: NDArray[np.float64], most: int = MOST) -> NDArray[np.int64]:
    """Return the positions of the values that are drawn: all, or the lowest and highest of each interval."""
    n = len(y)
    if n <= most:
        return np.arange(n)
    width = -(-n // max(most // 2 - 1, 1))
    starts = np.arange(0, n, width)
    blocks = np.pad(y, (0, len(starts) * width - n), constant_values=np.nan).reshape(-1, width)
    lowest, highest = (np.where(np.isnan(blocks), worst, blocks) for worst in (np.inf, -np.inf))
    return np.unique([0, *(starts + lowest.argmin(1)), *(starts + highest.argmax(1)), n - 1])


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


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5c6570; --line: #d9dee4; --tint: #f4f6f8;
  --blue: #0072b2; --red: #d55e00; --green: #009e73; --purple: #b0558a; --orange: #c98a00; --sky: #3a9bd6; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e6e9ec; --soft: #9aa4af; --line: #343b44;
  --tint: #1d232a; --blue: #56b4e9; --red: #ff8a4c; --green: #3fc79a; --purple: #e39ac4; --orange: #f0b83c;
  --sky: #8fd0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .note { color: var(--soft); font-size: .9rem; } a { color: var(--blue); }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.tile { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: .5rem 1rem; }
.tile b { display: block; font-size: 1.25rem; } .tile span { color: var(--soft); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 1.2rem; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .2rem; }
svg { width: 100%; max-width: 640px; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .small { font-size: 9px; } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .over { fill: var(--paper); } .grid { stroke: var(--line); fill: none; }
.frame { fill: none; stroke: var(--line); } .heat { fill: var(--blue); shape-rendering: crispEdges; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; } path.line[transform] { stroke-width: 15; }
.many path.line[transform] { stroke-width: 10; stroke-opacity: .7; }
.blue { stroke: var(--blue); } .red { stroke: var(--red); stroke-dasharray: none; } .green { stroke: var(--green); }
.purple { stroke: var(--purple); } .orange { stroke: var(--orange); } .sky { stroke: var(--sky); }
.blue-fill { fill: var(--blue); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } tr.own td { font-weight: 600; }
tr td.meaning { color: var(--soft); font-weight: 400; }
pre, code { font: 13px/1.5 ui-monospace, monospace; } pre { background: var(--tint); border: 1px solid var(--line);
  border-radius: 6px; padding: .6rem .9rem; overflow-x: auto; margin: .4rem 0; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; }
"""
COLOURS = ("green", "purple", "orange", "sky")
OWN = {"ssl": "blue", "fedavg": "red"}


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole file."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head>",
            "<body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            f"<footer>Splitrelay {__version__}, made from the records in this folder.</footer>",
            "</body></html>",
            "",
        ]
    )


def section(title: str, *parts: str) -> str:
    """Return a heading with its content."""
    return "\n".join([f"<section><h2>{escape(title)}</h2>", *parts, "</section>"])


def note(text: str) -> str:
    """Return a note."""
    return f'<p class="note">{escape(text)}</p>'


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Return the most important numbers as tiles."""
    inner = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in values
    )
    return f'<div class="tiles">{inner}</div>'


def chart(title: str, svg: str) -> str:
    """Return a chart with its title."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text cells. A row that begins with `<tr` is HTML and is copied as it is."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join("".join(row) if row and row[0].startswith("<tr") else _format_row(row) for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def format_table(sheet: Table) -> str:
    """Return a table of the records, with its caption."""
    rows = [["<tr>", *("<td>" + _format_cell(cell) + "</td>" for cell in row), "</tr>"] for row in sheet.rows]
    return note(sheet.description) + table([head.full_name for head in sheet.headings], rows)


def format_setting_row(name: str, value: str, meaning: str, own: bool) -> list[str]:
    """Return the row of a key of the spec. `own` marks values that differ from the default."""
    mark = "●" if own else ""
    opening = '<tr class="own">' if own else "<tr>"
    cells = f"<td>{mark}</td><td><code>{escape(name)}</code></td><td>{escape(value)}</td>"
    return [opening, cells, f'<td class="meaning">{escape(meaning)}</td></tr>']


def format_linked_row(target: str, name: str, cells: Iterable[str]) -> list[str]:
    """Return a row that begins with a link."""
    inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return ["<tr>", f'<td><a href="{escape(target, quote=True)}">{escape(name)}</a></td>', inner, "</tr>"]


def command(text: str, why: str) -> str:
    """Return a command to copy, with an explanation."""
    return f"<p>{escape(why)}</p><pre>{escape(text)}</pre>"


def get_colour(algorithm: str, others: Sequence[str]) -> str:
    """Return the colour of an algorithm: the same as in figures for SSL and FedAvg, one of four for others."""
    rest = [name for name in others if name not in OWN]
    return OWN.get(algorithm) or COLOURS[rest.index(algorithm) % len(COLOURS)]


def _format_row(row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"


def _format_cell(value: object) -> str:
    pieces = [(escape(piece.text), piece.bold) for piece in get_pieces(value)]
    return "".join(f"<b>{text}</b>" if bold else text for text, bold in pieces)
