r"""Tables in LaTeX with booktabs' rules.

`\resizebox` shrinks a table that is wider than the text. To keep letters legible, a table with very many columns is
first divided into parts that repeat the labels of the rows, and a long one is divided between rows. Long texts are
broken over lines.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from splitrelay.table import Heading, Table, format_cell, get_pieces

# Characters that LaTeX takes for commands, and characters that its fonts may not have.
ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "η": r"$\eta$",
    "α": r"$\alpha$",
    "×": r"$\times$",
}
MINUS = re.compile(r"(?<![\w$-])-(?=\d)")  # before a number; elsewhere it is a hyphen
JOINT = re.compile(r"(/|-|\\_)(?=\w)")  # a long name may be broken after these
MAX_CHARACTERS = 130  # side by side; a wider table would be shrunk to letters that are too small to read
MAX_LINES = 36  # of one page, below the caption
WRAP = 36  # characters in a line of a long text
CONTINUED = "\\addtocounter{table}{-1}\\caption[]{(continued)}"


def escape(text: str) -> str:
    """Return text that LaTeX prints as it stands."""
    return MINUS.sub("$-$", "".join(ESCAPES.get(letter, letter) for letter in text))


def format_latex(table: Table, width: float | None = None) -> str:
    """Return table environments that need the packages booktabs and graphicx.

    Args:
        table: The table.
        width: The largest width in points; None: the width of the text.
    """
    room = "\\linewidth" if width is None else f"{width:g}pt"
    fit = f"\\resizebox{{\\ifdim\\width>{room} {room}\\else\\width\\fi}}{{!}}{{%"
    caption = f"\\caption{{{escape(table.description)}}}\n\\label{{tab:{table.name}}}"
    lines = ["% \\usepackage{booktabs,graphicx}"]
    texts = [[format_cell(value, "") for value in row] for row in table.rows]
    for columns in _split_columns(table.headings, texts):
        for rows in _split_rows(texts, columns):
            lines += ["\\begin{table}", "\\centering\\small", caption, "\\par\\smallskip", fit]
            lines += [*_format_tabular(table, texts, columns, rows), "}", "\\end{table}"]
            caption = CONTINUED
    return "\n".join([*lines, ""])


def _split_columns(headings: Sequence[Heading], texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the columns of each part: all labels, and as many others as have room beside them.

    Groups stay whole if they have room, and the parts are about equally wide.
    """
    labels = _find_labels(headings)
    others = [j for j in range(len(headings)) if j not in labels]
    sizes = [2 + max(len(h.name), _get_width(h, [row[j] for row in texts])) for j, h in enumerate(headings)]
    spans = Counter(heading.group for heading in headings)
    sizes = [max(size, math.ceil((2 + len(h.group)) / spans[h.group])) for size, h in zip(sizes, headings, strict=True)]
    room = MAX_CHARACTERS - sum(sizes[j] for j in labels)

    def divide(limit: int) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for _, found in groupby(others, key=lambda j: headings[j].group or j):
            unit = list(found)
            is_whole = sum(sizes[j] for j in unit) <= limit
            for columns in [unit] if is_whole else [[j] for j in unit]:
                if parts[-1] and sum(sizes[j] for j in (*parts[-1], *columns)) > limit:
                    parts.append([])
                parts[-1] += columns
        return parts

    fewest = len(divide(room))
    narrowest = next(limit for limit in range(1, max(room, 1) + 1) if len(divide(limit)) <= fewest)
    return [sorted([*labels, *part]) for part in divide(narrowest)]


def _find_labels(headings: Sequence[Heading]) -> list[int]:
    """Return the columns that say which row it is."""
    flagged = [j for j, heading in enumerate(headings) if heading.is_label]
    ungrouped = [j for j, heading in enumerate(headings) if not heading.group]
    return flagged or (ungrouped if len(ungrouped) < len(headings) else [0])


def _get_width(heading: Heading, texts: Sequence[str]) -> int:
    longest = max(map(len, texts), default=0)
    return longest if heading.group or heading.is_numeric else min(longest, WRAP)


def _split_rows(texts: Sequence[Sequence[str]], columns: Sequence[int]) -> Iterator[range]:
    """Yield the rows of each page. A page begins with a row whose first cell is not blank, if that is possible."""
    start = lines = 0
    for i, row in enumerate(texts):
        lines += max(math.ceil(len(row[j]) / WRAP) or 1 for j in columns)
        if lines > MAX_LINES and i > start:
            end = next((k for k in range(i, start, -1) if texts[k][columns[0]]), i)
            yield range(start, end)
            start, lines = end, sum(max(math.ceil(len(r[j]) / WRAP) or 1 for j in columns) for r in texts[end : i + 1])
    yield range(start, len(texts))


def _format_tabular(table: Table, texts: Sequence[Sequence[str]], columns: Sequence[int], rows: range) -> Iterator[str]:
    """Yield the lines of some columns and rows; a rule divides blocks of rows that share their first cell."""
    headings = [table.headings[j] for j in columns]
    long = [
        not h.group and not h.is_numeric and any(len(row[j]) > WRAP for row in texts)
        for j, h in zip(columns, headings, strict=True)
    ]
    letters = ["r" if h.is_numeric else "c" if h.group else "l" for h in headings]
    letters = [f"p{{{WRAP / 2:g}em}}" if wrapped else letter for wrapped, letter in zip(long, letters, strict=True)]
    yield f"\\begin{{tabular}}{{{''.join(letters)}}}"
    yield "\\toprule"
    yield from _format_groups(headings)
    yield " & ".join(escape(heading.name) for heading in headings) + r" \tabularnewline"
    yield "\\midrule"
    labels = _find_labels(table.headings)
    has_blocks = any(not texts[i][columns[0]] for i in rows)
    for i in rows:
        if has_blocks and i > rows.start and texts[i][columns[0]]:
            yield "\\midrule"
        sources = dict.fromkeys(columns, i)
        if i == rows.start:  # labels that stand in rows above, on another page
            sources |= {j: next((k for k in range(i, -1, -1) if texts[k][j]), i) for j in columns if j in labels}
        cells = [_format_value(table.rows[sources[j]][j]) for j in columns]
        yield (
            " & ".join(_wrap(cell) if wrapped else cell for cell, wrapped in zip(cells, long, strict=True))
            + r" \tabularnewline"
        )
    yield "\\bottomrule"
    yield "\\end{tabular}"


def _format_groups(headings: Sequence[Heading]) -> Iterator[str]:
    """Yield the headings of groups of columns, and a rule below each."""
    if not any(heading.group for heading in headings):
        return
    cells, rules, first = [], [], 1
    for group, found in groupby(headings, key=lambda heading: heading.group):
        width = len(list(found))
        cells.append(f"\\multicolumn{{{width}}}{{c}}{{{escape(group)}}}" if group else " & " * (width - 1))
        rules += [f"\\cmidrule(lr){{{first}-{first + width - 1}}}"] * bool(group)
        first += width
    yield " & ".join(cells) + r" \tabularnewline"
    yield "".join(rules)


def _format_value(value: object) -> str:
    pieces = [(escape(piece.text), piece.bold) for piece in get_pieces(value)]
    return "".join(f"\\textbf{{{text}}}" if bold else text for text, bold in pieces)


def _wrap(cell: str) -> str:
    """Return an escaped text that may be broken over lines, also within names."""
    return "\\raggedright " + JOINT.sub(r"\1\\allowbreak{}", cell)
