"""`splitrelay theory lemmas`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, emphasize, format_option, say
from splitrelay.cli.key_values import Key, number, settings_argument
from splitrelay.cli.theory.adapter import Grid, read_grid, wrap
from splitrelay.cli.theory.options import ETA_TILDE, QUANTITIES, ZETA2_STAR
from splitrelay.errors import InputError
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.theory import Lemma

ROUND_KEYS = (
    Key("r2", number, "||x^r - x*||^2 (with DF: the convex recursions)"),
    Key("DF", number, "F(x^r) - F*"),
    Key("G2", number, "||grad F(x^r)||^2 (the non-convex recursions)"),
    Key("E", number, "drift of SSL in the round, summed over clients and steps"),
    Key("E_mean", number, "drift of FedAvg in the round, summed over steps, averaged over clients"),
)
KEYS = tuple(replace(key, many=False) for key in (*QUANTITIES, ZETA2_STAR, ETA_TILDE, *ROUND_KEYS))


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory lemmas M=10 S=2 K=5 zeta2=4 L=2 mu=1 sigma2=1 eta_tilde=1/12 r2=1 DF=0.5",
)
@settings_argument(KEYS)
@format_option
def lemmas(settings: tuple[str, ...], shape: str) -> None:
    """Evaluate the lemmas behind the theorems: sampling, the technical lemma, counts, drift and recursions.

    The command evaluates every lemma for which you give the quantities: M and zeta2 (and S) for sampling, K for the
    technical lemma and the counts, r2 and DF for the convex recursions, G2 for the non-convex recursions. SSL with S of
    M clients (ssl-swor) has no lemmas of its own here: its bound is proved directly in docs/theory.md.
    """
    grid = read_grid(settings, KEYS)
    values = _evaluate(grid)
    if shape == "table":
        say(emphasize(wrap(f"Lemmas: {grid.caption}")) + "\n\n" + _format_list(values))
        return
    rows = [(lemma.group, lemma.name, lemma.value, lemma.formula) for lemma in values]
    emit(Table(("group", "lemma", "value", "formula"), rows), [asdict(lemma) for lemma in values], shape)


def _evaluate(grid: Grid) -> Sequence[Lemma]:
    from splitrelay.theory import lemmas

    if any(key.name in grid.values for key in ROUND_KEYS) and "eta_tilde" not in grid.values:
        raise InputError("the drift and the recursions need eta_tilde", hint="Give eta_tilde=...")
    values = lemmas(grid.problem, **{"eta_tilde": 1.0, **grid.others})  # only the keys of a round use the step
    if not values:
        raise InputError("no lemma can be evaluated from these", hint="Give M and zeta2, or M and K.")
    groups = list(dict.fromkeys(lemma.group for lemma in values))
    return sorted(values, key=lambda lemma: groups.index(lemma.group))


def _format_list(values: Sequence[Lemma]) -> str:
    """Format the lemmas by group: the name and the value on one line, the formula below."""
    width = max(len(lemma.name) for lemma in values)
    lines: list[str] = []
    group = ""
    for lemma in values:
        if lemma.group != group:
            group = lemma.group
            lines += [""] * bool(lines) + [emphasize(group)]
        lines.append(f"  {lemma.name:<{width}}  {format_cell(lemma.value)}")
        lines.append(textwrap.fill(lemma.formula, 80, initial_indent="      = ", subsequent_indent="        "))
    return "\n".join(lines)
