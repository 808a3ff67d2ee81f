"""Results of the calculator as columns for tables and as records for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from splitrelay.cli.table_output import Table, cell, tick
from splitrelay.cli.theory.grid import WORDS, Grid, column

if TYPE_CHECKING:
    from splitrelay.reports.theory_words import Words
    from splitrelay.theory import Bound, Condition

NAMES = {
    "ssl": "SSL",
    "fedavg": "FedAvg",
    "fedavg-swor": "FedAvg with S of M clients",
    "fedavg-swr": "FedAvg with S clients, drawn with replacement",
    "minibatch-sgd": "minibatch SGD",
}

LAST = "E||x^R - x*||^2"  # what the last iterate's bound measures


def bound_columns(bound: Bound, size: int) -> dict[str, list[Any]]:
    """The total and its terms, the step, whether it is vacuous, and why it does not apply where it does not."""
    columns = {"total": column(bound.total, size)}
    columns |= {name: column(values, size) for name, values in bound.terms.items()}
    applicable = column(bound.applicable, size)
    vacuous = [v if a else None for v, a in zip(column(bound.vacuous, size), applicable, strict=True)]
    columns |= {"eta": column(bound.eta, size), "eta_tilde": column(bound.eta_tilde, size), "vacuous": vacuous}
    return columns | {"why not": reasons(bound.conditions, applicable)}


def bound_records(bound: Bound, grid: Grid) -> list[dict[str, Any]]:
    """One record for every setting, in the order of the columns, with every condition and its two sides."""
    columns = bound_columns(bound, grid.size)
    conditions = condition_records(bound.conditions, grid.size)
    facts = {
        name: getattr(bound, name) for name in ("algorithm", "case", "constants", "statement", "measure", "formulas")
    }
    records = []
    for row, met, settings in zip(rows(columns), conditions, grid.settings, strict=True):
        record = {"total": row["total"], "terms": {name: row[name] for name in bound.terms}}
        record |= {"eta": row["eta"], "eta_tilde": row["eta_tilde"], "conditions": met, "vacuous": row["vacuous"]}
        record |= {"applicable": row["why not"] is None, "why_not": row["why not"]}
        records.append(record | facts | {"settings": settings})
    return records


def condition_records(conditions: Sequence[Condition], size: int) -> list[list[dict[str, Any]]]:
    """For every setting, each condition with its two sides."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    for c in conditions:
        sides = zip(column(c.left, size), column(c.right, size), column(c.holds, size), strict=True)
        for records, (left, right, holds) in zip(found, sides, strict=True):
            records.append({"name": c.name, "left": left, "relation": c.relation, "right": right, "holds": holds})
    return found


def reasons(conditions: Sequence[Condition], applicable: Sequence[bool]) -> list[str | None]:
    """Why a statement does not apply where it does not: the first condition that fails, with its two sides."""
    size = len(applicable)
    found: list[str | None] = [None if a else "the bound leaves the range of double precision" for a in applicable]
    for c in reversed(conditions):
        left, right, holds = (column(values, size) for values in (c.left, c.right, c.holds))
        for j, met in enumerate(holds):
            if not met:
                found[j] = f"needs {c.name} = {cell(float(right[j]))}; got {cell(float(left[j]))}"
    return found


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Columns turned into records."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table_of(
    columns: Mapping[str, Sequence[Any]],
    title: str = "",
    notes: Sequence[str] = (),
    lead: int = 1,
    whole: bool = False,
) -> Table:
    """Columns as a table; one that says nothing is left out, unless a program counts on it."""
    said = {name: values for name, values in columns.items() if whole or any(value is not None for value in values)}
    return Table(list(said), list(zip(*said.values(), strict=True)), title, notes, lead)


def conditions_table(conditions: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Conditions with both sides and a tick."""
    lines = [(tick(c["holds"]), c["name"], c["left"], c["relation"], c["right"]) for c in conditions]
    return Table(("", "condition", "left", "", "right"), lines, title)


def start(bound: Bound, settings: Mapping[str, Any]) -> tuple[str, float]:
    """What is known of the start without training: a bound that is not below it is vacuous."""
    if bound.measure == LAST:
        return "D2", settings["D2"]
    if bound.case == "non-convex":
        return "2 L A", 2 * settings["L"] * settings["A"]
    if "A" in settings:
        return "A", settings["A"]
    return "L D2 / 2", settings["L"] * settings["D2"] / 2


def levels(bound: Bound, grid: Grid) -> list[float]:
    """That, for every setting."""
    return [start(bound, settings)[1] for settings in grid.settings]


def wrapped(text: str) -> str:
    """Lines that fit into 80 columns."""
    return textwrap.fill(text, 80)


def figure_words(grid: Grid, headline: str, measure: str, case: str, kind: str = "bound on") -> Words:
    """The words of a figure of this grid."""
    from splitrelay.reports.theory_words import Words

    fixed = {name: value for name, value in grid.fixed.items() if name not in WORDS}
    return Words(headline, fixed, "" if grid.single else grid.longest, measure, case, kind)


def panel_label(grid: Grid, panel: Grid, words: Words, name: str = "") -> str:
    """What sets a panel apart from its neighbours: the algorithm's name, if they differ, and its own settings."""
    own = [words.setting(key, panel.fixed[key]) for key in grid.varying if key in panel.fixed]
    return ", ".join(filter(None, [NAMES.get(name, name), *own]))
