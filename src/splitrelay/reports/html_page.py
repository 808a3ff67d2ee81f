"""Build the HTML page of a report: one file without scripts and external resources, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from splitrelay import __version__
from splitrelay.table import Table, get_pieces

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
