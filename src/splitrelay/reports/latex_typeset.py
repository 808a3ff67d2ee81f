"""A table in LaTeX, as wide as a page at most: in parts where it must be, over several pages where it is long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from splitrelay.reports.latex import breakable, escaped, stacked, tabular
from splitrelay.reports.latex_fitting import (
    PAGE,
    SIZES,
    SMALLEST,
    Column,
    Fit,
    broken,
    em,
    group_lines,
    in_parts,
    side_by_side,
    width,
)

if TYPE_CHECKING:
    from splitrelay.reports.table import Entry, Sheet

SURE = 0.98  # of a page's width may be used: what letters need is known that well
HIGH = 505.0  # points of a page for a caption and what it stands above: a little less than article has
CAPTION = (10.0, 12.0, 20.0)  # points of an em and of a line of it, and of the space around it
RULES = 26.0  # points of the rules of a part and the space before it
NONE = Fit(())
AGAIN = "\\addtocounter{table}{-1}\\caption[]{(continued)}"


def latex(sheet: Sheet, page: float = PAGE) -> str:
    """Table environments with booktabs' rules; that package is all they need. `page` is the text's width in points."""
    table = typeset(sheet, page)
    size = table.fit.size
    form = f"\\centering\\{size.name}\\setlength{{\\tabcolsep}}{{{size.gap:g}pt}}"
    caption = f"\\caption{{{escaped(sheet.said)}}}\n\\label{{tab:{sheet.name}}}"
    lines = ["% \\usepackage{booktabs}"]
    for found in table.pages():
        lines += ["\\begin{table}", form, caption]
        for number, (part, rows) in enumerate(found):
            lines += ["\\par\\medskip" if number else "\\par\\smallskip", *table.part(part, rows)]
        lines.append("\\end{table}")
        caption = AGAIN
    return "\n".join([*lines, ""])


def typeset(sheet: Sheet, page: float = PAGE) -> Typeset:
    """All columns side by side if there is a way; else in parts, or turned, whichever takes less paper."""
    page *= SURE
    ways = [Typeset(sheet, page)] + [Typeset(sheet.turned(), page)] * any(head.group for head in sheet.heads)
    for sizes in (SIZES, [SMALLEST]):
        for way in ways:
            fit = side_by_side(way.columns, way.blocks, page, sizes)
            if fit is not None:
                return replace(way, fit=fit)
    parts = [replace(way, fit=in_parts(way.columns, way.blocks, size, page)) for way in ways for size in SIZES]
    return min(parts, key=lambda way: way.paper)


@dataclass(frozen=True)
class Typeset:
    """A sheet on pages of one width."""

    sheet: Sheet
    page: float = PAGE
    fit: Fit = NONE

    @cached_property
    def columns(self) -> list[Column]:
        """With the widest cell of each."""
        heads, rows = self.sheet.heads, self.sheet.rows
        flagged = any(head.names for head in heads)
        grouped = any(head.group for head in heads)
        return [
            Column(
                head.name,
                head.group,
                max((_em(row[j]) for row in rows), default=0.0),
                text=not head.numeric and not head.group,
                names=head.names if flagged else not head.group if grouped else j == 0,
            )
            for j, head in enumerate(heads)
        ]

    @cached_property
    def labels(self) -> list[str]:
        """The first column, blanks filled in."""
        found: list[str] = []
        for row in self.sheet.rows:
            text = _letters(row[0])
            found.append(text or (found[-1] if found else ""))
        return found

    @property
    def paper(self) -> float:
        """Points of all parts below each other."""
        return sum(self.height(part, range(len(self.sheet.rows))) for part in self.fit.parts)

    @property
    def blocks(self) -> bool:
        """Whether the first column is a label of several rows, which other columns name."""
        naming = sum(column.names for column in self.columns)
        few = len(set(self.labels)) == 1 or 2 * len(set(self.labels)) <= len(self.labels)
        return self.columns[0].names and naming > 1 and few

    def pages(self) -> Iterator[list[tuple[Sequence[int], range]]]:
        """The parts that stand on each: (columns, rows)."""
        found: list[tuple[Sequence[int], range]] = []
        used = self._caption
        for rows in self._stretches():
            for part in self.fit.parts:
                high = self.height(part, rows)
                if found and used + high > HIGH:
                    yield found
                    found, used = [], CAPTION[2] + CAPTION[1]
                found.append((part, rows))
                used += high
        yield found

    def height(self, part: Sequence[int], rows: range) -> float:
        """Points of a part, about."""
        names = max(len(self.columns[j].head(self.fit.heading)) for j in part)
        spans = max(len(lines) for lines, _ in self._spans(part))
        shown = self._shown(part, rows)
        labels = len({self.labels[i] for i in shown}) if self.fit.raised else 0
        return RULES + self.fit.size.line * (names + spans + 1.4 * labels + sum(self._lines[i] for i in shown))

    def part(self, part: Sequence[int], rows: range) -> Iterator[str]:
        """Some columns of some rows."""
        heads = [self.columns[j] for j in part]
        spans = [(stacked(map(escaped, lines)), wide) for lines, wide in self._spans(part)]
        names = [stacked(map(escaped, head.head(self.fit.heading))) for head in heads]
        shown = self._shown(part, rows)
        cells = [[self._cell(i, j, again=i - 1 not in shown) for j in part] for i in shown]
        labels = [self._label(i) for i in shown] if self.fit.raised else None
        yield from tabular("".join(map(self._letter, part)), spans, names, cells, labels)

    @property
    def _caption(self) -> float:
        letters, line, around = CAPTION
        return around + line * math.ceil(1.05 * letters * em(self.sheet.said) / self.page)

    def _stretches(self) -> Iterator[range]:
        """Rows that have room on a page, broken only before one that is named."""
        starts = [i for i in range(1, len(self.sheet.rows)) if self._named(i)]
        begin, room = 0, HIGH - self._caption
        for start, end in pairwise([*starts, len(self.sheet.rows)]):
            if max(self.height(part, range(begin, end)) for part in self.fit.parts) > room:
                yield range(begin, start)
                begin = start
        yield range(begin, len(self.sheet.rows))

    def _named(self, i: int) -> bool:
        """Whether a page may begin with this row; one that tells something more of the row above has no name."""
        last = max((j for j, column in enumerate(self.columns) if column.names and column.name), default=None)
        return last is None or bool(_letters(self.sheet.rows[i][last]))

    @cached_property
    def _lines(self) -> list[int]:
        """Of each row; texts that are broken fill about nine tenths of their lines."""
        room = {j: 0.9 * points / self.fit.size.em for j, points in self.fit.wrapped.items()}
        return [max((math.ceil(_em(row[j]) / room[j]) for j in room), default=1) or 1 for row in self.sheet.rows]

    def _spans(self, part: Sequence[int]) -> Iterator[tuple[list[str], int]]:
        """The groups of some columns: (the heading in lines, how many columns it spans)."""
        alone = [replace(column, group="") for column in self.columns]
        for group, found in groupby(part, key=lambda j: self.columns[j].group):
            below = list(found)
            inside = width(alone, self.fit, below) - 2 * self.fit.size.gap
            yield group_lines(group, inside, self.fit), len(below)

    def _shown(self, part: Sequence[int], rows: range) -> list[int]:
        """The rows that have something to say in a part."""
        telling = [j for j in part if not self.columns[j].names] if len(self.fit.parts) > 1 else part
        return [i for i in rows if any(_letters(self.sheet.rows[i][j]) for j in telling)]

    def _cell(self, i: int, j: int, again: bool) -> str:
        """What names a row is said again where the row above is not there."""
        cell = self.sheet.rows[i][j]
        if again and self.columns[j].names:
            cell = next((row[j] for row in self.sheet.rows[i::-1] if _em(row[j])), cell)
        text = "".join(_bold(escaped(piece.text), piece.bold) for piece in cell)
        return breakable(text) if j in self.fit.wrapped else text

    def _label(self, i: int) -> str:
        """Above its rows, as wide as the page at most."""
        return stacked(map(escaped, broken(self.labels[i], self.page / self.fit.size.em)), "[l]")

    def _letter(self, j: int) -> str:
        if j in self.fit.wrapped:
            return f"p{{{self.fit.wrapped[j]:.0f}pt}}"
        head = self.sheet.heads[j]
        return "r" if head.numeric else "c" if head.group else "l"


def _letters(cell: Entry) -> str:
    return "".join(piece.text for piece in cell)


def _em(cell: Entry) -> float:
    return sum(em(piece.text, piece.bold) for piece in cell)


def _bold(text: str, bold: bool) -> str:
    return f"\\textbf{{{text}}}" if bold else text
