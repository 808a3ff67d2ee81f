"""`splitrelay theory stepsize`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.format import (
    NAMES,
    bound_records,
    figure_words,
    levels,
    panel_label,
    reasons,
    start,
    table_of,
    wrapped,
)
from splitrelay.cli.theory.grid import FINE, Grid, column, read_grid
from splitrelay.cli.theory.options import (
    CHOSEN_CONSTANTS,
    HORIZON,
    QUANTITIES,
    STARRED,
    algorithm_argument,
    announce,
    case_argument,
    figure_alone,
    figure_option,
)

if TYPE_CHECKING:
    from splitrelay.theory import StepSize

KEYS = (*QUANTITIES, STARRED[0], CHOSEN_CONSTANTS, HORIZON)
FOUND_HERE = "This command finds the step; 'splitrelay theory bound' takes one."
ROWS = 4  # panels of a figure, one below the other
RULES = {
    "printed": "printed: the paper's rule. mended: the same with both error terms in it (E14).",
    "best": "best: the step at which the bound itself is smallest.",
}
BRANCHES = {
    "cap": "upper end",
    "low": "lower end",
    "log": "tuning lemma",
    "interior": "interior",
    "c1": "noise",
    "c2": "drift",
}
SAFE = "A step that is good for the bound is a safe one, not the best one: on most problems larger steps do better."


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory stepsize ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
)
@algorithm_argument
@case_argument
@settings_argument(KEYS)
@format_option
@figure_option
def stepsize(alg: Any, case: Any, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """The step by three rules, each with the bound that it gives.

    The printed rule of the paper; the mended rule, which minds the term that the printed one forgets (E14); and the
    exact minimiser of the bound. ALG and CASE as in 'theory bound'.
    """
    grid = read_grid(settings, KEYS, elsewhere=dict.fromkeys(("eta", "eta_tilde"), FOUND_HERE))
    found = _steps(alg, case, grid)
    if figure is not None:
        announce(_draw(alg, case, read_grid(settings, KEYS, FINE), figure))
    if figure_alone(figure):
        return
    if shape == "json":
        records = _records(found, grid)
        emit(Table((), ()), records[0] if grid.single else records, shape)
    elif grid.single and shape != "csv":
        _emit_one(found, grid, shape)
    else:
        emit(_many(found, grid, whole=shape == "csv"), None, shape)


def _steps(alg: Any, case: Any, grid: Grid) -> dict[str, StepSize]:
    from splitrelay.theory import stepsizes

    return stepsizes(alg, case, grid.problem, **grid.words, outside="refuse" if grid.single else "mask")


def _records(found: Mapping[str, StepSize], grid: Grid) -> list[dict[str, Any]]:
    """One record for every setting: the range, and under each rule the step with its bound."""
    any_rule = found["best"]
    low, high = column(any_rule.low, grid.size), column(any_rule.high, grid.size)
    rules = {rule: _rule_records(step, grid) for rule, step in found.items()}
    why_not = reasons(any_rule.bound.conditions, column(any_rule.applicable, grid.size))
    return [
        {"low": low[j], "high": high[j], "rules": {rule: records[j] for rule, records in rules.items()}}
        | {"applicable": why_not[j] is None, "why_not": why_not[j], "settings": settings}
        for j, settings in enumerate(grid.settings)
    ]


def _rule_records(step: StepSize, grid: Grid) -> list[dict[str, Any]]:
    names = ("eta", "eta_tilde", "branch", "tau", "explicit")
    columns = {name: column(getattr(step, name), grid.size) for name in names}
    return [
        {name: values[j] for name, values in columns.items()}
        | {name: bound[name] for name in ("total", "terms", "conditions", "vacuous")}
        for j, bound in enumerate(bound_records(step.bound, grid))
    ]


def _title(found: Mapping[str, StepSize]) -> str:
    bound = found["best"].bound
    return f"{NAMES[bound.algorithm]}: steps for {bound.statement}, {bound.constants} constants"


def _emit_one(found: Mapping[str, StepSize], grid: Grid, shape: str) -> None:
    record = _records(found, grid)[0]
    rules, measure = record["rules"], found["best"].bound.measure
    per_eta = rules["best"]["eta_tilde"] / rules["best"]["eta"]
    ends = [
        f"{cell(record['low'] / scale)} <= {name} <= {cell(record['high'] / scale)}".removeprefix("0 <= ")
        for name, scale in (("eta_tilde", 1.0), ("eta", per_eta))
    ]
    say(f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\n")
    say(f"Allowed: {ends[0]}, that is {ends[1]}.\n")
    columns = {"rule": list(rules)} | {key: [r[key] for r in rules.values()] for key in ("eta_tilde", "eta")}
    columns |= {"bound": [r["total"] for r in rules.values()]}
    columns |= {"vacuous": [r["vacuous"] for r in rules.values()]}
    columns |= {"decided by": [BRANCHES[r["branch"]] for r in rules.values()]}
    emit(table_of(columns), None, shape)
    say(f"\nThe bound is on {measure}.")
    say("\n".join([*RULES.values(), wrapped(SAFE)]))


def _many(found: Mapping[str, StepSize], grid: Grid, whole: bool) -> Table:
    columns = grid.columns
    for rule, step in found.items():
        columns[f"{rule} eta_tilde"] = column(step.eta_tilde, grid.size)
        columns[f"{rule} bound"] = column(step.bound.total, grid.size)
    best = found["best"]
    columns["why not"] = reasons(best.bound.conditions, column(best.applicable, grid.size))
    title = f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\nbounds on {best.bound.measure}"
    return table_of(columns, title, [*RULES.values(), wrapped(SAFE)], len(grid.varying), whole)


def _draw(alg: Any, case: Any, grid: Grid, path: Path) -> Path:
    from splitrelay.reports.theory_steps import draw_steps, step_panel

    if grid.single:
        return _draw_landscape(alg, case, grid, path)
    found = [(panel, _steps(alg, case, panel)) for panel in grid.panels(ROWS)]
    bound = found[0][1]["best"].bound
    words = figure_words(grid, _title(found[0][1]), bound.measure, bound.case)
    panels = [
        step_panel(panel_label(grid, panel, words), panel.abscissa, steps, levels(bound, panel))
        for panel, steps in found
    ]
    return draw_steps(panels, words, path)


def _draw_landscape(alg: Any, case: Any, grid: Grid, path: Path) -> Path:
    from splitrelay.reports.theory_figures import draw_stacks
    from splitrelay.reports.theory_steps import abscissa, landscape
    from splitrelay.theory import bound

    steps = _steps(alg, case, grid)
    over = Grid({**grid.values, "eta_tilde": abscissa(steps["best"])})
    found = bound(alg, case, over.problem, **over.others, **over.words, outside="mask")
    words = figure_words(over, _title(steps), found.measure, case)
    return draw_stacks([landscape(found, steps, start(found, grid.fixed)[1])], words, path)
