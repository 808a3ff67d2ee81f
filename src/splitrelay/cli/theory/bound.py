"""`splitrelay theory bound` and `splitrelay theory last-iterate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import emit, mood, say
from splitrelay.cli.key_values import Key
from splitrelay.cli.theory import adapter, options
from splitrelay.cli.theory.adapter import Grid
from splitrelay.errors import InputError
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.theory import Bound

LAST_KEYS = (*options.QUANTITIES, options.ZETA2_STAR, options.ETA, options.ETA_TILDE)
KEYS = (*LAST_KEYS, options.CONSTANTS_KEY, options.HORIZON_KEY)


@options.grid_command(
    KEYS,
    "bound ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=100 D2=1 eta_tilde=1/12",
    options.algorithm_argument,
    options.case_argument,
)
def bound(alg: str, case: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Compute the bound of a theorem, term by term.

    ALG is ssl, ssl-swor, fedavg, fedavg-swor or fedavg-swr. CASE is strongly-convex, general-convex or non-convex; with
    S of M clients (-swor, -swr) only the convex cases are proved. Outside the range of the theorem there is no bound: a
    single setting is an error, and of many settings those outside are left blank. -v shows the formula of every term.
    """
    adapter.show(BoundCalculation(KEYS, alg, case), settings, shape, figure)


@options.grid_command(
    LAST_KEYS,
    "last-iterate ssl L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=10 D2=1 eta_tilde=1/20",
    options.algorithm_argument,
)
def last_iterate(alg: str, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Bound E||x^R - x*||^2, the error of the last iterate instead of an average.

    Splitrelay derives this bound from the paper's recursions, for the strongly convex case. It needs no R >= 6 L/mu
    and no lower limit of the step. It is not proved for ssl-swor.
    """
    adapter.show(BoundCalculation(LAST_KEYS, alg, None), settings, shape, figure)


class BoundCalculation(adapter.Calculation["Bound"]):
    """The bound of a theorem, or of the last iterate if the case is None."""

    def __init__(self, keys: Sequence[Key], algorithm: Any, case: Any) -> None:
        self.keys, self.algorithm, self.case = keys, algorithm, case

    def compute(self, grid: Grid) -> Bound:
        if "eta" not in grid.values and "eta_tilde" not in grid.values:
            self._raise_missing_step(grid)
        return self._evaluate(grid, "refuse" if grid.is_single else "mask")

    def _evaluate(self, grid: Grid, outside: Any) -> Bound:
        from splitrelay import theory

        if self.case is None:
            return theory.last_iterate(self.algorithm, grid.problem, **grid.others, outside=outside)
        return theory.bound(self.algorithm, self.case, grid.problem, **grid.others, **grid.choices, outside=outside)

    def _raise_missing_step(self, grid: Grid) -> None:
        """Raise InputError with the range of the step."""
        first = Grid({name: values[:1] for name, values in grid.values.items()} | {"eta_tilde": [1.0]})
        result = self._evaluate(first, "mask")
        limits, scale = [c.name for c in result.conditions], ""
        if grid.is_single:
            limits = [f"{c.name} = {format_cell(float(c.right))}" for c in result.conditions]
            scale = f"; eta is eta_tilde/{format_cell(1 / float(result.eta))}"
        raise InputError(
            f"{result.algorithm} {result.case}: neither eta nor eta_tilde is given",
            limit=f"{', '.join(limits)}{scale}",
            hint="'splitrelay theory stepsize' finds a good one.",
        )

    def format_title(self, result: Bound) -> str:
        return f"{adapter.NAMES[result.algorithm]}: {result.statement}, {result.constants} constants"

    def build_records(self, result: Bound, size: int) -> list[dict[str, Any]]:
        return adapter.build_bound_records(result, size)

    def print_one(self, result: Bound, record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        total, eta, eta_tilde = record["total"], format_cell(record["eta"]), format_cell(record["eta_tilde"])
        say(f"{result.measure} <= {format_cell(total)} at eta = {eta}, eta_tilde = {eta_tilde}.\n")
        rows = [*adapter.build_term_rows(record), ("total", total, "")]
        emit(Table(("term", "value", "share"), rows), None, shape)
        if mood.verbose:
            say("")
            emit(Table(("term", "formula"), list(result.formulas.items())), None, shape)
        say("")
        emit(adapter.build_condition_table(record["conditions"]), None, shape)
        name, level = adapter.get_start_level(result, grid.fixed)
        verdict, suffix = (
            ("Not vacuous: the bound is", "")
            if not result.vacuous
            else ("Vacuous: the bound is not", " It promises no progress.")
        )
        known = f"{name} = {format_cell(float(level))}, the value that is known at x0."
        say("\n" + adapter.wrap(f"{verdict} below {known}{suffix}"))

    def build_columns(self, result: Bound, grid: Grid, is_csv: bool) -> dict[str, list[Any]]:
        other_step = "eta" if "eta_tilde" in grid.values else "eta_tilde"  # the one that was not given
        values = {"total": result.total, **result.terms, other_step: getattr(result, other_step)}
        columns = {name: adapter.get_column(value, grid.size) for name, value in values.items()}
        applicable, vacuous = (adapter.get_column(flags, grid.size) for flags in (result.applicable, result.vacuous))
        columns["vacuous"] = [flag if applies else None for flag, applies in zip(vacuous, applicable, strict=True)]
        return columns | {"why not": adapter.list_reasons(result.conditions, result.applicable, grid.size)}

    def get_notes(self, result: Bound, grid: Grid) -> tuple[str, Sequence[str]]:
        outside = adapter.get_column(result.applicable, grid.size).count(False)
        note = f"{outside} of {grid.size} settings are outside the statement's range: no bound there."
        return f"{result.measure} <= total", [note] * (outside > 0)

    def get_panels(self, result: Bound) -> Mapping[str, Bound]:
        return {"": result}
