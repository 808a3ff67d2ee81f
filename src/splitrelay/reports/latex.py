"""LaTeX: letters that must be escaped, and a tabular with booktabs' rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# What LaTeX would take for a command, and what its fonts may not have.
LETTERS = {
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
BREAK = r"\\"
JOINT = re.compile(r"(/|-|\\_)(?=\w)")
MINUS = re.compile(r"(?<![\w$-])-(?=\d)")  # before a number; elsewhere a hyphen


def escaped(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return MINUS.sub("$-$", "".join(LETTERS.get(letter, letter) for letter in text))


def breakable(text: str) -> str:
    """Escaped text in a cell that is broken over lines: also within words, after what joins their parts."""
    return "\\raggedright " + JOINT.sub(r"\1\\allowbreak{}", text)


def stacked(lines: Iterable[str], side: str = "") -> str:
    """Lines below each other in one cell, in the middle or at a side."""
    found = list(lines)
    return found[0] if len(found) == 1 else f"\\shortstack{side}{{\\strut {BREAK.join(found)}\\strut}}"


def tabular(
    columns: str,
    spans: Sequence[tuple[str, int]],
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    labels: Sequence[str] | None = None,
) -> Iterator[str]:
    """The groups over their columns, the names, the rows; a rule between blocks of rows that share a first column.

    With `labels`, blocks are rows of one label, which stands on a line of its own above them.
    """
    blocks = any(not row[0] for row in rows)
    end = r" \tabularnewline" if "p{" in columns else r" \\"
    yield f"\\begin{{tabular}}{{{columns}}}"
    yield "\\toprule"
    if any(group for group, _ in spans):
        yield " & ".join(_over(group, width) for group, width in spans) + r" \\"
        yield "".join(_rules(spans))
    yield " & ".join(names) + end
    yield "\\midrule"
    for number, row in enumerate(rows):
        new = row[0] != "" if labels is None else number == 0 or labels[number] != labels[number - 1]
        if new and number and (blocks or labels is not None):
            yield "\\midrule"
        if new and labels is not None:
            yield f"\\multicolumn{{{len(names)}}}{{l}}{{\\emph{{{labels[number]}}}}}{end}"
        yield " & ".join(row) + end
    yield "\\bottomrule"
    yield "\\end{tabular}"


def _over(group: str, width: int) -> str:
    return f"\\multicolumn{{{width}}}{{c}}{{{group}}}" if group else " & ".join([""] * width)


def _rules(spans: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A short rule under each group, with a gap between two."""
    first = 1
    for group, width in spans:
        if group:
            yield f"\\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width
