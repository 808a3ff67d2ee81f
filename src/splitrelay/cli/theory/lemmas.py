"""`splitrelay theory lemmas`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emphasised, say
from splitrelay.cli.key_values import Key, number, settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.format import wrapped
from splitrelay.cli.theory.grid import read_grid
from splitrelay.cli.theory.options import QUANTITIES, STARRED, STEPS
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import Lemma

STATE = (
    Key("r2", number, "||x^r - x*||^2 (with DF: the convex recursions)"),
    Key("DF", number, "F(x^r) - F*"),
    Key("G2", number, "||grad F(x^r)||^2 (the non-convex recursions)"),
    Key("E", number, "SSL's drift in the round, summed over clients and steps"),
    Key("E_mean", number, "FedAvg's drift in the round, summed over steps, the mean over clients"),
)
KEYS = tuple(replace(key, many=False) for key in (*QUANTITIES, STARRED[0], STEPS[1], *STATE))
ROUND = tuple(key.name for key in STATE)


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory lemmas M=10 S=2 K=5 zeta2=4 L=2 mu=1 sigma2=1 eta_tilde=1/12 r2=1 DF=0.5",
)
@settings_argument(KEYS)
@format_option
def lemmas(settings: tuple[str, ...], shape: str) -> None:
    """The lemmas behind the theorems, as numbers: sampling, the technical lemma, counts, drift and recursions.

    Every lemma is given that the quantities allow: M and zeta2 for sampling (S too), K for the technical lemma and the
    counts, r2 and DF for the convex recursions, G2 for the non-convex ones.
    """
    grid = read_grid(settings, KEYS)
    if set(ROUND) & set(grid.values) and "eta_tilde" not in grid.values:
        raise InputError("the drift and the recursions need eta_tilde", hint="Give eta_tilde=...")
    found = _lemmas(grid.problem, grid.others)
    if shape == "table":
        say(emphasised(wrapped(f"Lemmas: {grid.caption}")) + "\n\n" + _listed(found))
        return
    rows = [(lemma.group, lemma.name, lemma.value, lemma.formula) for lemma in found]
    emit(Table(("group", "lemma", "value", "formula"), rows), [asdict(lemma) for lemma in found], shape)


def _lemmas(problem: object, others: dict[str, float]) -> Sequence[Lemma]:
    from splitrelay.theory import Problem, lemmas

    assert isinstance(problem, Problem)
    given = {"eta_tilde": 1.0} | others  # a step that nothing asks for, where only counts are wanted
    found = lemmas(problem, **given)
    if not found:
        raise InputError("no lemma can be evaluated from these", hint="Give M and zeta2, or M and K.")
    groups = list(dict.fromkeys(lemma.group for lemma in found))
    return sorted(found, key=lambda lemma: groups.index(lemma.group))


def _listed(found: Sequence[Lemma]) -> str:
    """Name and value on a line, the formula below, group by group."""
    width = max(len(lemma.name) for lemma in found)
    lines: list[str] = []
    group = ""
    for lemma in found:
        if lemma.group != group:
            group = lemma.group
            lines += [""] * bool(lines) + [emphasised(group)]
        lines.append(f"  {lemma.name:<{width}}  {cell(lemma.value)}")
        lines.append(textwrap.fill(lemma.formula, 80, initial_indent="      = ", subsequent_indent="        "))
    return "\n".join(lines)
