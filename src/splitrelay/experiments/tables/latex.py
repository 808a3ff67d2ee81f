"""LaTeX: letters that must be escaped, and a tabular with booktabs' rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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


MINUS = re.compile(r"(?<![\w$-])-(?=\d)")  # before a number; elsewhere a hyphen


def escaped(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return MINUS.sub("$-$", "".join(LETTERS.get(letter, letter) for letter in text))


def tabular(
    columns: str, spans: Sequence[tuple[str, int]], names: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """The groups over their columns, the names, the rows; a rule between blocks of rows that share a first column."""
    blocks = any(not row[0] for row in rows)
    yield f"\\begin{{tabular}}{{{columns}}}"
    yield "\\toprule"
    if any(group for group, _ in spans):
        yield " & ".join(_over(group, width) for group, width in spans) + r" \\"
        yield "".join(_rules(spans))
    yield " & ".join(names) + r" \\"
    yield "\\midrule"
    for number, row in enumerate(rows):
        if blocks and number and row[0]:
            yield "\\midrule"
        yield " & ".join(row) + r" \\"
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
