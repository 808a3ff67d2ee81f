"""`splitrelay theory rate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.console import emit, say
from splitrelay.cli.theory import adapter, options
from splitrelay.cli.theory.adapter import MAX_PANELS, Grid
from splitrelay.errors import InputError
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.theory import Rate

TABLE_ONE = ("table-sgd", "table-karimireddy", "table-koloskova", "table-fedavg", "table-ssl")
RATES = (
    *("ssl", "fedavg", "fedavg-swor", "fedavg-swr", "ssl-swor", "ssl-equal-compute"),
    *TABLE_ONE,
    *("reshuffling", "reshuffling-quoted", "lower-bound-quoted"),
)
SAMPLED = ("fedavg-swor", "fedavg-swr", "ssl-swor", "ssl-equal-compute")  # the rates that depend on S
GROUPS = {"table-one": TABLE_ONE, "all": RATES}
KEYS = (*options.QUANTITIES, options.ZETA2_STAR, options.SIGMA2_STAR, options.CONSTANTS_KEY)
TERMS = ("noise", "sampling", "noise drift", "heterogeneity drift", "optimization", "lower bound")
NO_CONSTANTS = "Orders have unit constants and no logarithms: they show scaling, not values."


@options.grid_command(
    KEYS,
    "rate ssl,fedavg strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
    click.argument("names", type=options.NameListParam("rate", RATES, GROUPS), metavar="NAME[,NAME]..."),
    metavar="[CASE] [KEY=VALUE]...",
)
def rate(names: tuple[str, ...], settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Compute orders of convergence at tuned steps, term by term.

    CASE is strongly-convex by default. ssl and fedavg also have general-convex and non-convex. NAME is one of these
    names, or several with commas between them:

    \b
      ssl, fedavg                         Corollary 1
      fedavg-swor, fedavg-swr             S of M clients, without and with replacement
      ssl-swor                            SSL with S of M clients, without replacement
      ssl-equal-compute                   SSL over S R/M rounds
      table-sgd, table-karimireddy, table-koloskova, table-fedavg, table-ssl
      table-one                           these five rows of Table 1
      reshuffling, reshuffling-quoted     as SSL with K=1, sigma=0; as quoted
      lower-bound-quoted                  min{1, zeta_*^2/(mu^2 M R^2)}
      all
    """
    case = options.CASES[0]
    if settings and "=" not in settings[0]:
        case, settings = options.NameParam("case", options.CASES).convert(settings[0], None, None), settings[1:]
    adapter.show(RateCalculation(names, case), settings, shape, figure)


class RateCalculation(adapter.Calculation[Sequence["Rate"]]):
    """One or more rates of the same case."""

    keys = KEYS
    figure_kind = "order of"

    def __init__(self, names: Sequence[str], case: str) -> None:
        self.names, self.case = names, case

    def compute(self, grid: Grid) -> Sequence[Rate]:
        from splitrelay.theory import rate
        from splitrelay.theory.rates import WITH_SAMPLING

        problem = grid.problem
        if len(self.names) == 1:
            return [rate(self.names[0], self.case, problem, **grid.choices)]
        everyone = problem.with_all_clients()  # of several rates, those without sampling have all clients
        return [
            rate(name, self.case, problem if name in WITH_SAMPLING else everyone, **grid.choices) for name in self.names
        ]

    def format_title(self, result: Sequence[Rate]) -> str:
        if len(result) > 1:
            return f"Orders of convergence, {self.case}"
        (rate,) = result
        return f"{adapter.NAMES.get(rate.name, rate.name)}: {rate.statement}, {rate.case}"

    def build_records(self, result: Sequence[Rate], size: int) -> list[dict[str, Any]]:
        names = ("total", "terms", "dominant", "largest", "name", "case", "statement", "measure", "decay")
        trees = [{name: getattr(rate, name) for name in names} for rate in result]
        return [record for tree in trees for record in adapter.split_settings(tree, size)]

    def print_one(self, result: Sequence[Rate], record: Mapping[str, Any], grid: Grid, shape: str) -> None:
        (rate,) = result
        say(f"{rate.measure} is of order {format_cell(rate.total)}.\n")
        rows = [(*row, rate.decay[row[0]]) for row in adapter.build_term_rows(record)]
        emit(Table(("term", "value", "share", "falls as"), [*rows, ("total", rate.total, "", "")]), None, shape)
        say(f"\nLargest here: {rate.largest}. For large R: {rate.dominant}.\n{NO_CONSTANTS}")

    def build_table(self, result: Sequence[Rate], grid: Grid, is_csv: bool) -> Table:
        first = result[0]
        title = f"Orders of {first.measure}, {first.case}\n{adapter.wrap(grid.caption)}"
        columns = self.build_columns(result, grid, is_csv)
        if grid.is_single:  # one row per rate
            return adapter.build_column_table(columns, title, self.get_notes(result, grid)[1])
        if len(result) == 1:
            title = f"{self.format_title(result)}\n{title}"
        return adapter.build_column_table(grid.columns | columns, title, [NO_CONSTANTS], len(grid.varying))

    def build_columns(self, result: Sequence[Rate], grid: Grid, is_csv: bool) -> dict[str, list[Any]]:
        if grid.is_single:
            columns: dict[str, list[Any]] = {key: [getattr(rate, key) for rate in result] for key in ("name", "total")}
            for term in sorted({name for rate in result for name in rate.terms}, key=TERMS.index):
                columns[term] = [rate.terms.get(term) for rate in result]
            return columns | {"for large R": [rate.dominant for rate in result]}
        values: dict[str, Any] = {rate.name: rate.total for rate in result}
        if len(result) == 1:
            values = {"total": result[0].total, **result[0].terms, "largest": result[0].largest}
        return {name: adapter.get_column(value, grid.size) for name, value in values.items()}

    def get_notes(self, result: Sequence[Rate], grid: Grid) -> tuple[str, Sequence[str]]:
        measure = result[0].measure
        others = [f"{rate.name} is an order of {rate.measure}." for rate in result if rate.measure != measure]
        sampled = [rate.name for rate in result if rate.name in SAMPLED]
        if "S" in grid.values and len(result) > len(sampled) > 0:
            others.append(f"S matters to {', '.join(sampled)} only: all clients take part in the others.")
        return "", [*map(adapter.wrap, others), NO_CONSTANTS]

    def count_panels(self, grid: Grid) -> int:
        if len(self.names) > MAX_PANELS:
            raise InputError(
                f"a figure shows at most {MAX_PANELS} panels", value=len(self.names), hint="Name fewer rates."
            )
        return len(self.names)

    def get_panels(self, result: Sequence[Rate]) -> Mapping[str, Rate]:
        return {rate.name: rate for rate in result} if len(result) > 1 else {"": result[0]}
