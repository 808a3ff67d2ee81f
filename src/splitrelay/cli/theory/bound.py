"""`splitrelay theory bound` and `splitrelay theory last-iterate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import mood, say
from splitrelay.cli.key_values import Key, settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.adapter import (
    NAMES,
    Calculation,
    build_bound_records,
    build_column_table,
    build_condition_table,
    build_term_rows,
    get_column,
    get_start_level,
    list_reasons,
    show,
    wrap,
)
from splitrelay.cli.theory.grid import Grid
from splitrelay.cli.theory.options import (
    CONSTANTS_KEY,
    ETA,
    ETA_TILDE,
    HORIZON_KEY,
    QUANTITIES,
    ZETA2_STAR,
    algorithm_argument,
    case_argument,
    figure_option,
)
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import Bound

LAST_KEYS = (*QUANTITIES, ZETA2_STAR, ETA, ETA_TILDE)
KEYS = (*LAST_KEYS, CONSTANTS_KEY, HORIZON_KEY)


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
def bound(alg: str, case: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Compute the bound of a theorem, term by term.

    ALG is ssl, fedavg, fedavg-swor or fedavg-swr. CASE is strongly-convex, general-convex or non-convex. Outside the
    range of the theorem there is no bound: a single setting is an error, and of many settings those outside are left
    blank. -v shows the formula of every term.
    """
    show(BoundCalculation(KEYS, alg, case), settings, shape, figure)


@click.command(
    cls=Command,
    keys=LAST_KEYS,
    example="splitrelay theory last-iterate ssl L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=10 D2=1 eta_tilde=1/20",
)
@algorithm_argument
@settings_argument(LAST_KEYS)
@format_option
@figure_option
def last_iterate(alg: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Bound E||x^R - x*||^2, the error of the last iterate instead of an average.

    Splitrelay derives this bound from the paper's recursions, for the strongly convex case. It needs no R >= 6 L/mu
    and no lower limit of the step.
    """
    show(BoundCalculation(LAST_KEYS, alg, None), settings, shape, figure)


class BoundCalculation(Calculation["Bound"]):
    """The bound of a theorem, or of the last iterate if the case is None."""

    def __init__(self, keys: Sequence[Key], algorithm: Any, case: Any) -> None:
        self.keys, self.algorithm, self.case = keys, algorithm, case

    def compute(self, grid: Grid) -> Bound:
        """Compute the bound. Without a step, raise InputError with the range of the step."""
        if "eta" not in grid.values and "eta_tilde" not in grid.values:
            self._raise_missing_step(grid)
        return self._evaluate(grid, "refuse" if grid.is_single else "mask")

    def _evaluate(self, grid: Grid, outside: Any) -> Bound:
        from splitrelay import theory

        if self.case is None:
            return theory.last_iterate(self.algorithm, grid.problem, **grid.others, outside=outside)
        return theory.bound(self.algorithm, self.case, grid.problem, **grid.others, **grid.choices, outside=outside)

    def _raise_missing_step(self, grid: Grid) -> None:
        first = Grid({name: values[:1] for name, values in grid.values.items()} | {"eta_tilde": [1.0]})
        found = self._evaluate(first, "mask")
        sides = [f" = {cell(float(c.right))}" if grid.is_single else "" for c in found.conditions]
        limits = [f"{c.name}{side}" for c, side in zip(found.conditions, sides, strict=True)]
        scale = f"; eta is eta_tilde/{cell(1 / float(found.eta))}" if grid.is_single else ""
        raise InputError(
            f"{found.algorithm} {found.case}: neither eta nor eta_tilde is given",
            limit=f"{', '.join(limits)}{scale}",
            hint="'splitrelay theory stepsize' finds a good one.",
        )

    def format_title(self, result: Bound) -> str:
        """Return the algorithm, the statement and the constants."""
        return f"{NAMES[result.algorithm]}: {result.statement}, {result.constants} constants"

    def build_records(self, result: Bound, grid: Grid) -> list[dict[str, Any]]:
        """Return one record per setting."""
        records = build_bound_records(result, grid.size)
        return [record | {"settings": settings} for record, settings in zip(records, grid.settings, strict=True)]

    def print_one(self, result: Bound, record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        """Print the total, the terms with their shares, the conditions, and whether the bound is vacuous."""
        total, eta, eta_tilde = record["total"], cell(record["eta"]), cell(record["eta_tilde"])
        say(f"{result.measure} <= {cell(total)} at eta = {eta}, eta_tilde = {eta_tilde}.\n")
        emit(Table(("term", "value", " share"), [*build_term_rows(record), ("total", total, "")]), None, shape)
        if mood.verbose:
            say("")
            emit(Table(("term", "formula"), list(result.formulas.items())), None, shape)
        say("")
        emit(build_condition_table(record["conditions"]), None, shape)
        name, level = get_start_level(result, grid.fixed)
        known = f"{name} = {cell(float(level))}, the value that is known at x0"
        if result.vacuous:
            say("\n" + wrap(f"Vacuous: the bound is not below {known}. It promises no progress."))
        else:
            say("\n" + wrap(f"Not vacuous: the bound is below {known}."))

    def build_table(self, result: Bound, grid: Grid, is_csv: bool) -> Table:
        """Build a table with one row per setting."""
        size = grid.size
        columns = {"total": result.total, **result.terms}
        columns["eta" if "eta_tilde" in grid.values else "eta_tilde"] = (
            result.eta if "eta_tilde" in grid.values else result.eta_tilde
        )
        applicable = get_column(result.applicable, size)
        vacuous = zip(get_column(result.vacuous, size), applicable, strict=True)
        reasons = list_reasons(result.conditions, result.applicable, size)
        outside = applicable.count(False)
        note = f"{outside} of {size} settings are outside the statement's range: no bound there."
        return build_column_table(
            grid.columns
            | {name: get_column(values, size) for name, values in columns.items()}
            | {"vacuous": [is_vacuous if applies else None for is_vacuous, applies in vacuous], "why not": reasons},
            f"{wrap(self.format_title(result))}\n{wrap(grid.caption)}\n{result.measure} <= total",
            [note] * (outside > 0),
            len(grid.varying),
            is_csv,
        )

    def get_panels(self, result: Bound) -> Mapping[str, Bound]:
        """Return the bound for the only panel."""
        return {"": result}
