"""How a table gets into the width of a page: in which size, what is broken over lines, which columns stand together.

Side by side, of these the first that is narrow enough: the table as it is; long headings broken over lines, and the
first label on a line of its own above its rows; long texts broken over lines as well; the same in smaller sizes. Where
none of it helps: parts below each other, each of which begins with the columns that name a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

PAGE = 345.0  # points: the text of LaTeX's article, the narrowest that is common
LONG, LONGER = 80.0, 150.0  # points to which a text may be broken over lines: where it names a row, and elsewhere
HEADINGS = (12.0, 8.0, 5.5)  # em to which headings may be broken, or to the width of what stands below them


@dataclass(frozen=True)
class Size:
    """Of letters: the command, points in an em of its upright font, of a line, and on each side of a column."""

    name: str
    em: float
    line: float
    gap: float


SMALL, FOOTNOTE = Size("small", 9.3, 11.0, 4.0), Size("footnotesize", 8.6, 9.5, 3.0)
SIZES, SMALLEST = (SMALL, FOOTNOTE), Size("scriptsize", 8.0, 8.0, 2.5)


@dataclass(frozen=True)
class Column:
    """What must be known of a column to find room for it; `width` is that of its widest cell, in em."""

    name: str
    group: str = ""
    width: float = 0.0
    text: bool = False  # may be broken over lines
    names: bool = False  # says which row it is

    def head(self, limit: float) -> list[str]:
        """The heading in lines."""
        return broken(self.name, max(self.width, limit))


@dataclass(frozen=True)
class Fit:
    """The columns of each part by number; `wrapped` has the points of those whose texts are broken over lines."""

    parts: tuple[tuple[int, ...], ...]
    size: Size = SMALL
    heading: float = math.inf  # em to which headings are broken
    raised: bool = False  # the first column is no column but a line above its rows
    wrapped: Mapping[int, float] = field(default_factory=dict)


def side_by_side(
    columns: Sequence[Column], blocks: bool, page: float = PAGE, sizes: Sequence[Size] = SIZES
) -> Fit | None:
    """All columns in one part; None where there is no way. `blocks`: the first column is a label of several rows."""
    everything = tuple(range(len(columns)))
    rest = everything[1:] if blocks else everything
    found = [Fit((everything,), sizes[0])]
    for size in sizes:
        tight = [Fit((rest,), size, heading, blocks) for heading in HEADINGS]
        found += [*tight, *(replace(fit, wrapped=_shares(columns, fit, page)) for fit in tight)]
    return next((fit for fit in found if width(columns, fit, fit.parts[0]) <= page), None)


def in_parts(columns: Sequence[Column], blocks: bool, size: Size, page: float = PAGE) -> Fit:
    """The columns that name a row, again and again, and as many others as have room beside them."""
    rest = range(int(blocks), len(columns))
    lead, others = ([j for j in rest if columns[j].names is names] for names in (True, False))
    wrapped = {j: LONG for j in lead if columns[j].text and size.em * columns[j].width > LONG}
    fit = Fit((), size, HEADINGS[-1], blocks, wrapped)
    room = page - width(columns, fit, lead)
    most = min(LONGER, room - 2 * size.gap)
    fit = replace(fit, wrapped=wrapped | {j: most for j in others if _is_longer(columns[j], most / size.em)})
    parts = _packed(columns, others, fit, room)
    for part in parts:
        fit = replace(fit, wrapped={**fit.wrapped, **_widened(columns, part, fit, room)})
    return replace(fit, parts=tuple((*lead, *part) for part in parts))


def width(columns: Sequence[Column], fit: Fit, part: Sequence[int]) -> float:
    """Points of some columns side by side; a group's heading may be wider than what stands below it."""
    total = 0.0
    for group, found in groupby(part, key=lambda j: columns[j].group):
        inside = sum(_alone(columns[j], j, fit) for j in found)
        total += max(inside, _over(group, inside, fit) + 2 * fit.size.gap)
    return total


def group_lines(group: str, inside: float, fit: Fit) -> list[str]:
    """The heading of a group in lines that are no wider than its columns, where words allow."""
    return broken(group, math.inf if fit.heading == math.inf else inside / fit.size.em)


def broken(text: str, limit: float) -> list[str]:
    """Words in as few lines as the limit allows, in em."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and em(longer) > limit:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _over(group: str, inside: float, fit: Fit) -> float:
    return fit.size.em * max(map(em, group_lines(group, inside - 2 * fit.size.gap, fit))) if group else 0.0


def _alone(column: Column, j: int, fit: Fit) -> float:
    heading = fit.size.em * max(map(em, column.head(fit.heading)))
    return max(fit.wrapped.get(j, fit.size.em * column.width), heading) + 2 * fit.size.gap


def _shares(columns: Sequence[Column], fit: Fit, page: float) -> dict[int, float]:
    """The room that is left, dealt to the long texts: an equal share to each that needs it. None where it is scant."""
    (part,) = fit.parts
    long = [j for j in part if columns[j].text and fit.size.em * columns[j].width > LONG]
    left = page - width(columns, fit, [j for j in part if j not in long]) - 2 * fit.size.gap * len(long)
    shares: dict[int, float] = {}
    for number, j in enumerate(sorted(long, key=lambda j: columns[j].width)):
        shares[j] = min(fit.size.em * columns[j].width, left / (len(long) - number))
        left -= shares[j]
    scant = any(share < min(LONG, fit.size.em * columns[j].width) for j, share in shares.items())
    return {} if scant else shares


def _is_longer(column: Column, limit: float) -> bool:
    return column.text and column.width > limit


def _widened(columns: Sequence[Column], part: Sequence[int], fit: Fit, room: float) -> dict[int, float]:
    """What a part leaves free goes to its long texts."""
    long = [j for j in part if j in fit.wrapped]
    spare = room - width(columns, fit, part)
    return {j: min(fit.wrapped[j] + spare / len(long), fit.size.em * columns[j].width) for j in long}


def _packed(columns: Sequence[Column], others: Sequence[int], fit: Fit, room: float) -> list[list[int]]:
    """Groups stay whole where they have room; one that has not shares no part."""
    parts: list[list[int]] = []
    shared = False
    for _, found in groupby(others, key=lambda j: columns[j].group):
        group = list(found)
        dealt = _dealt(columns, group, fit, room)
        if shared and len(dealt) == 1 and width(columns, fit, [*parts[-1], *group]) <= room:
            parts[-1] += group
        else:
            parts += dealt
        shared = len(dealt) == 1
    return parts


def _dealt(columns: Sequence[Column], group: list[int], fit: Fit, room: float) -> list[list[int]]:
    """In as few stretches as have room; of one length, if that is possible."""
    greedy: list[list[int]] = [[]]
    for j in group:
        if greedy[-1] and width(columns, fit, [*greedy[-1], j]) > room:
            greedy.append([])
        greedy[-1].append(j)
    ends = [len(group) * i // len(greedy) for i in range(len(greedy) + 1)]
    even = [group[start:end] for start, end in pairwise(ends)]
    return even if all(width(columns, fit, part) <= room for part in even) else greedy


# Letters of Computer Modern by how wide they are, in em; all others are half an em.
WIDTHS = {
    **dict.fromkeys("ijl.,:;!'|[]", 0.28),
    **dict.fromkeys(" -", 0.335),
    **dict.fromkeys("frstI()*†", 0.395),
    **dict.fromkeys("ace", 0.47),
    **dict.fromkeys("bdhkpquvxyn_", 0.55),
    **dict.fromkeys("ABCDEFGHJKLNPRSTUVXYZw", 0.72),
    **dict.fromkeys("mMOQW%±+=<>×@&", 0.82),
}
BOLD = 1.16  # times as wide


def em(text: str, bold: bool = False) -> float:
    """About how wide a text is, in em."""
    return (BOLD if bold else 1.0) * sum(WIDTHS.get(letter, 0.5) for letter in text)
