"""`splitrelay theory bound` and `splitrelay theory last-iterate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import mood, say
from splitrelay.cli.key_values import Key, settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.format import (
    NAMES,
    bound_columns,
    bound_records,
    conditions_table,
    figure_words,
    levels,
    panel_label,
    start,
    table_of,
    wrapped,
)
from splitrelay.cli.theory.grid import FINE, Grid, read_grid
from splitrelay.cli.theory.options import (
    CHOSEN_CONSTANTS,
    HORIZON,
    QUANTITIES,
    STARRED,
    STEPS,
    algorithm_argument,
    announce,
    case_argument,
    figure_alone,
    figure_option,
)
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import Bound

KEYS = (*QUANTITIES, STARRED[0], *STEPS, CHOSEN_CONSTANTS, HORIZON)
LAST_KEYS = tuple(key for key in KEYS if key not in (CHOSEN_CONSTANTS, HORIZON))
Answer = Callable[[Grid, Any], "Bound"]


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory bound ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=100 D2=1 eta_tilde=1/12",
)
@algorithm_argument
@case_argument
@settings_argument(KEYS)
@format_option
@figure_option
def bound(alg: Any, case: Any, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """The bound that a theorem gives, term by term.

    ALG is ssl, fedavg, fedavg-swor or fedavg-swr; CASE is strongly-convex, general-convex or non-convex. Outside the
    theorem's range there is no bound: one setting is refused, and of many those outside are left blank. -v shows the
    formula of every term.
    """

    def answer(grid: Grid, outside: Any) -> Bound:
        from splitrelay.theory import bound

        return bound(alg, case, grid.problem, **grid.others, **grid.words, outside=outside)

    _show(answer, settings, KEYS, shape, figure)


@click.command(
    cls=Command,
    keys=LAST_KEYS,
    example="splitrelay theory last-iterate ssl L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=10 D2=1 eta_tilde=1/20",
)
@algorithm_argument
@settings_argument(LAST_KEYS)
@format_option
@figure_option
def last_iterate(alg: Any, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """A bound on E||x^R - x*||^2: the last iterate instead of an average.

    Derived here from the paper's recursions, strongly convex. It needs no R >= 6 L/mu and no lower end of the step.
    """

    def answer(grid: Grid, outside: Any) -> Bound:
        from splitrelay.theory import last_iterate

        return last_iterate(alg, grid.problem, **grid.others, outside=outside)

    _show(answer, settings, LAST_KEYS, shape, figure)


def _show(answer: Answer, settings: Sequence[str], keys: Sequence[Key], shape: str, figure: Path | None) -> None:
    grid = read_grid(settings, keys)
    _need_step(answer, grid)
    found = answer(grid, "refuse" if grid.single else "mask")
    if figure is not None:
        announce(_draw(answer, read_grid(settings, keys, FINE), _title(found), figure))
    if figure_alone(figure):
        return
    if shape == "json":
        records = bound_records(found, grid)
        emit(Table((), ()), records[0] if grid.single else records, shape)
    elif grid.single and shape != "csv":
        _emit_one(found, grid, shape)
    else:
        emit(_many(found, grid, whole=shape == "csv"), None, shape)


def _need_step(answer: Answer, grid: Grid) -> None:
    """Without a step there is no bound, but there are conditions to choose one by."""
    if "eta" in grid.values or "eta_tilde" in grid.values:
        return
    first = Grid({name: values[:1] for name, values in grid.values.items()} | {"eta_tilde": [1.0]})
    found = answer(first, "mask")
    sides = [f" = {cell(float(c.right))}" if grid.single else "" for c in found.conditions]
    limits = [f"{c.name}{side}" for c, side in zip(found.conditions, sides, strict=True)]
    scale = f"; eta is eta_tilde/{cell(1 / float(found.eta))}" if grid.single else ""
    raise InputError(
        f"{found.algorithm} {found.case}: neither eta nor eta_tilde is given",
        limit=f"{', '.join(limits)}{scale}",
        hint="'splitrelay theory stepsize' finds a good one.",
    )


def _emit_one(found: Bound, grid: Grid, shape: str) -> None:
    """The total, the terms with their shares, the conditions, and whether it says anything."""
    record = bound_records(found, grid)[0]
    total, eta, eta_tilde = record["total"], cell(record["eta"]), cell(record["eta_tilde"])
    say(f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\n")
    say(f"{found.measure} <= {cell(total)} at eta = {eta}, eta_tilde = {eta_tilde}.\n")
    lines = [(name, value, f"{value / total:6.1%}" if total else "-") for name, value in record["terms"].items()]
    emit(Table(("term", "value", " share"), [*lines, ("total", total, "")]), None, shape)
    if mood.verbose:
        say("")
        emit(Table(("term", "formula"), list(found.formulas.items())), None, shape)
    say("")
    emit(conditions_table(record["conditions"]), None, shape)
    say("\n" + wrapped(_verdict(found, grid.fixed)))


def _verdict(found: Bound, settings: dict[str, Any]) -> str:
    name, level = start(found, settings)
    known = f"{name} = {cell(float(level))}, what x0 itself is known to reach"
    if found.vacuous:
        return f"Vacuous: the bound is not below {known}. It promises no progress."
    return f"Not vacuous: the bound is below {known}."


def _title(found: Bound) -> str:
    return f"{NAMES[found.algorithm]}: {found.statement}, {found.constants} constants"


def _many(found: Bound, grid: Grid, whole: bool) -> Table:
    columns = bound_columns(found, grid.size)
    del columns["eta_tilde" if "eta_tilde" in grid.values else "eta"]  # the one that was given
    columns = grid.columns | columns
    outside = sum(why is not None for why in columns["why not"])
    notes = [f"{outside} of {grid.size} settings are outside the statement's range: no bound there."] * (outside > 0)
    title = f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\n{found.measure} <= total"
    return table_of(columns, title, notes, len(grid.varying), whole)


def _draw(answer: Answer, grid: Grid, headline: str, path: Path) -> Path:
    from splitrelay.reports.theory_figures import draw_stacks
    from splitrelay.reports.theory_panels import bound_panel

    found = [(panel, answer(panel, "mask")) for panel in grid.panels()]
    words = figure_words(grid, headline, found[0][1].measure, found[0][1].case)
    panels = [
        bound_panel(panel_label(grid, panel, words), panel.abscissa, bound, levels(bound, panel))
        for panel, bound in found
    ]
    return draw_stacks(panels, words, path)
