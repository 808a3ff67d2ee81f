"""`splitrelay theory rate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.format import NAMES, figure_words, panel_label, rows, table_of, wrapped
from splitrelay.cli.theory.grid import FINE, PANELS, Grid, column, read_grid
from splitrelay.cli.theory.options import (
    CASES,
    CHOSEN_CONSTANTS,
    QUANTITIES,
    STARRED,
    Names,
    Word,
    announce,
    figure_alone,
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
KEYS = (*QUANTITIES, *STARRED, CHOSEN_CONSTANTS)
PRINTED = ("noise", "sampling", "noise drift", "heterogeneity drift", "optimization", "lower bound")
NO_CONSTANTS = "Orders have unit constants and no logarithms: see how they scale, not what they are."


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory rate ssl,fedavg strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
)
@click.argument("names", type=Names("rate", RATES, {"table-one": TABLE_ONE, "all": RATES}), metavar="NAME[,NAME]...")
@settings_argument(KEYS, "[CASE] [KEY=VALUE]...")
@format_option
@figure_option
def rate(names: tuple[str, ...], settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """Orders of convergence at tuned steps, term by term.

    CASE is strongly-convex unless given; ssl and fedavg have general-convex and non-convex too. NAME is one of these,
    or several with commas between:

    \b
      ssl, fedavg                         Corollary 1
      fedavg-swor, fedavg-swr             S of M clients, without and with replacement
      ssl-equal-compute                   SSL over S R/M rounds
      table-sgd, table-karimireddy, table-koloskova, table-fedavg, table-ssl
      table-one                           those five rows of Table 1
      reshuffling, reshuffling-quoted     as SSL with K=1, sigma=0; as quoted
      lower-bound-quoted                  min{1, zeta_*^2/(mu^2 M R^2)}
      all
    """
    case, words = _case(settings)
    grid = read_grid(words, KEYS)
    found = _rates(names, case, grid)
    if figure is not None:
        announce(_draw(names, case, read_grid(words, KEYS, FINE), figure))
    if figure_alone(figure):
        return
    if shape == "json":
        records = [record for one in found for record in _records(one, grid)]
        emit(Table((), ()), records[0] if len(records) == 1 else records, shape)
    elif grid.single and len(found) == 1 and shape != "csv":
        _emit_one(found[0], grid, shape)
    else:
        emit(_side_by_side(found, grid) if grid.single else _over_range(found, grid), None, shape)


def _case(settings: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The word before the key=value words, if there is one."""
    if settings and "=" not in settings[0]:
        return Word("case", CASES).convert(settings[0], None, None), settings[1:]
    return CASES[0], settings


def _rates(names: Sequence[str], case: str, grid: Grid) -> list[Rate]:
    from splitrelay.theory import rate

    return [rate(name, case, grid.problem, **grid.words) for name in names]


def _records(found: Rate, grid: Grid) -> list[dict[str, Any]]:
    size = grid.size
    columns = {name: column(getattr(found, name), size) for name in ("total", "dominant", "largest")}
    terms = rows({name: column(values, size) for name, values in found.terms.items()})
    facts = {name: getattr(found, name) for name in ("name", "case", "statement", "measure", "decay")}
    return [
        {"total": row["total"], "terms": term, "dominant": row["dominant"], "largest": row["largest"]}
        | facts
        | {"settings": settings}
        for row, term, settings in zip(rows(columns), terms, grid.settings, strict=True)
    ]


def _emit_one(found: Rate, grid: Grid, shape: str) -> None:
    record = _records(found, grid)[0]
    total = record["total"]
    say(f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\n")
    say(f"{found.measure} is of order {cell(total)}.\n")
    lines = [
        (name, value, f"{value / total:6.1%}" if total else "-", found.decay[name])
        for name, value in record["terms"].items()
    ]
    emit(Table(("term", "value", " share", "falls as"), [*lines, ("total", total, "", "")]), None, shape)
    say(f"\nLargest here: {record['largest']}. For large R: {record['dominant']}.\n{NO_CONSTANTS}")


def _title(found: Rate) -> str:
    return f"{NAMES.get(found.name, found.name)}: {found.statement}, {found.case}"


def _side_by_side(found: Sequence[Rate], grid: Grid) -> Table:
    """One setting: a row for every rate."""
    records = [_records(one, grid)[0] for one in found]
    columns: dict[str, list[Any]] = {key: [r[key] for r in records] for key in ("name", "total")}
    for term in sorted({name for one in found for name in one.terms}, key=PRINTED.index):
        columns[term] = [record["terms"].get(term) for record in records]
    columns["for large R"] = [record["dominant"] for record in records]
    notes = [f"{r['name']} is an order of {r['measure']}." for r in records if r["measure"] != records[0]["measure"]]
    title = f"Orders of {found[0].measure}, {found[0].case}\n{wrapped(grid.caption)}"
    return table_of(columns, title, [*notes, NO_CONSTANTS])


def _over_range(found: Sequence[Rate], grid: Grid) -> Table:
    """Many settings: one rate with its terms, or the totals of several."""
    one, size = found[0], grid.size
    title = f"Orders of {one.measure}, {one.case}\n{wrapped(grid.caption)}"
    if len(found) > 1:
        totals = {each.name: column(each.total, size) for each in found}
        return table_of(grid.columns | totals, title, [NO_CONSTANTS], len(grid.varying))
    terms = {name: column(values, size) for name, values in one.terms.items()}
    columns = grid.columns | {"total": column(one.total, size)} | terms | {"largest": column(one.largest, size)}
    return table_of(columns, f"{_title(one)}\n{title}", [NO_CONSTANTS], len(grid.varying))


def _draw(names: Sequence[str], case: str, grid: Grid, path: Path) -> Path:
    from splitrelay.reports.theory_figures import draw_stacks
    from splitrelay.reports.theory_panels import rate_panel

    grids = grid.panels(max(1, PANELS // len(names)))
    if len(grids) * len(names) > PANELS:
        raise InputError(f"a figure shows at most {PANELS} panels", value=len(names), hint="Name fewer rates.")
    found = [(panel, one) for panel in grids for one in _rates(names, case, panel)]
    headline = _title(found[0][1]) if len(names) == 1 else f"Orders of convergence, {case}"
    words = figure_words(grid, headline, found[0][1].measure, case, "order of")
    panels = [
        rate_panel(panel_label(grid, panel, words, one.name * (len(names) > 1)), panel.abscissa, one)
        for panel, one in found
    ]
    return draw_stacks(panels, words, path)
