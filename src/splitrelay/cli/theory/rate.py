"""`splitrelay theory rate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.adapter import (
    NAMES,
    Calculation,
    build_column_table,
    build_term_rows,
    get_column,
    show,
    split_settings,
    wrap,
)
from splitrelay.cli.theory.grid import MAX_PANELS, Grid
from splitrelay.cli.theory.options import (
    CASES,
    CONSTANTS_KEY,
    QUANTITIES,
    SIGMA2_STAR,
    ZETA2_STAR,
    NameListParam,
    NameParam,
    figure_option,
)
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.theory import Rate

TABLE_ONE = ("table-sgd", "table-karimireddy", "table-koloskova", "table-fedavg", "table-ssl")
RATES = (
    *("ssl", "fedavg", "fedavg-swor", "fedavg-swr", "ssl-equal-compute"),
    *TABLE_ONE,
    *("reshuffling", "reshuffling-quoted", "lower-bound-quoted"),
)
KEYS = (*QUANTITIES, ZETA2_STAR, SIGMA2_STAR, CONSTANTS_KEY)
TERMS = ("noise", "sampling", "noise drift", "heterogeneity drift", "optimization", "lower bound")
NO_CONSTANTS = "Orders have unit constants and no logarithms: they show scaling, not values."


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory rate ssl,fedavg strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
)
@click.argument(
    "names", type=NameListParam("rate", RATES, {"table-one": TABLE_ONE, "all": RATES}), metavar="NAME[,NAME]..."
)
@settings_argument(KEYS, "[CASE] [KEY=VALUE]...")
@format_option
@figure_option
def rate(names: tuple[str, ...], settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Compute orders of convergence at tuned steps, term by term.

    CASE is strongly-convex by default. ssl and fedavg also have general-convex and non-convex. NAME is one of these
    names, or several with commas between them:

    \b
      ssl, fedavg                         Corollary 1
      fedavg-swor, fedavg-swr             S of M clients, without and with replacement
      ssl-equal-compute                   SSL over S R/M rounds
      table-sgd, table-karimireddy, table-koloskova, table-fedavg, table-ssl
      table-one                           these five rows of Table 1
      reshuffling, reshuffling-quoted     as SSL with K=1, sigma=0; as quoted
      lower-bound-quoted                  min{1, zeta_*^2/(mu^2 M R^2)}
      all
    """
    case = CASES[0]
    if settings and "=" not in settings[0]:
        case, settings = NameParam("case", CASES).convert(settings[0], None, None), settings[1:]
    show(RateCalculation(names, case), settings, shape, figure)


class RateCalculation(Calculation[Sequence["Rate"]]):
    """One or more rates of the same case."""

    keys = KEYS
    figure_kind = "order of"

    def __init__(self, names: Sequence[str], case: str) -> None:
        self.names, self.case = names, case

    def compute(self, grid: Grid) -> Sequence[Rate]:
        """Compute all rates."""
        from splitrelay.theory import rate

        return [rate(name, self.case, grid.problem, **grid.choices) for name in self.names]

    def format_title(self, result: Sequence[Rate]) -> str:
        """Return the name of the only rate, or the case of several rates."""
        if len(result) > 1:
            return f"Orders of convergence, {self.case}"
        (rate,) = result
        return f"{NAMES.get(rate.name, rate.name)}: {rate.statement}, {rate.case}"

    def build_records(self, result: Sequence[Rate], grid: Grid) -> list[dict[str, Any]]:
        """Return one record for each rate and each setting."""
        fields = ("total", "terms", "dominant", "largest", "name", "case", "statement", "measure", "decay")
        return [
            record | {"settings": settings}
            for rate in result
            for record, settings in zip(
                split_settings({name: getattr(rate, name) for name in fields}, grid.size), grid.settings, strict=True
            )
        ]

    def print_one(self, result: Sequence[Rate], record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        """Print the total and the terms with their shares and decays."""
        (rate,) = result
        say(f"{rate.measure} is of order {cell(rate.total)}.\n")
        rows = [(*row, rate.decay[row[0]]) for row in build_term_rows(record)]
        emit(Table(("term", "value", " share", "falls as"), [*rows, ("total", rate.total, "", "")]), None, shape)
        say(f"\nLargest here: {rate.largest}. For large R: {rate.dominant}.\n{NO_CONSTANTS}")

    def build_table(self, result: Sequence[Rate], grid: Grid, is_csv: bool) -> Table:
        """Build a table: of several rates for one setting, of several totals, or of one rate with its terms."""
        first, size = result[0], grid.size
        title = f"Orders of {first.measure}, {first.case}\n{wrap(grid.caption)}"
        if grid.is_single:
            columns: dict[str, list[Any]] = {key: [getattr(rate, key) for rate in result] for key in ("name", "total")}
            for term in sorted({name for rate in result for name in rate.terms}, key=TERMS.index):
                columns[term] = [rate.terms.get(term) for rate in result]
            columns["for large R"] = [rate.dominant for rate in result]
            notes = [f"{r.name} is an order of {r.measure}." for r in result if r.measure != first.measure]
            return build_column_table(columns, title, [*notes, NO_CONSTANTS])
        if len(result) > 1:
            columns = {rate.name: get_column(rate.total, size) for rate in result}
        else:
            title = f"{self.format_title(result)}\n{title}"
            values = {"total": first.total, **first.terms, "largest": first.largest}
            columns = {name: get_column(value, size) for name, value in values.items()}
        return build_column_table(grid.columns | columns, title, [NO_CONSTANTS], len(grid.varying))

    def count_panels(self, grid: Grid) -> int:
        """Return one panel for each rate."""
        if len(self.names) > MAX_PANELS:
            raise InputError(
                f"a figure shows at most {MAX_PANELS} panels", value=len(self.names), hint="Name fewer rates."
            )
        return len(self.names)

    def get_panels(self, result: Sequence[Rate]) -> Mapping[str, Rate]:
        """Return one panel for each rate. A single rate needs no label, because the title names it."""
        return {rate.name: rate for rate in result} if len(result) > 1 else {"": result[0]}
