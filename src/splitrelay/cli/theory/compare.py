"""`splitrelay theory compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.cli.theory.format import (
    bound_records,
    condition_records,
    conditions_table,
    figure_words,
    levels,
    panel_label,
    table_of,
    wrapped,
)
from splitrelay.cli.theory.grid import FINE, PANELS, Grid, column, read_grid
from splitrelay.cli.theory.options import (
    CHOSEN_CONSTANTS,
    HORIZON,
    QUANTITIES,
    STARRED,
    STEPS,
    announce,
    case_argument,
    figure_alone,
    figure_option,
)

if TYPE_CHECKING:
    from splitrelay.theory import Bound, Comparison, Side

KEYS = (*QUANTITIES, STARRED[0], STEPS[1], CHOSEN_CONSTANTS, HORIZON)
ONE_STEP = "One eta is another step in each algorithm: give eta_tilde, or none for the best of each."
NAMES = {
    "ssl": "SSL",
    "fedavg": "FedAvg",
    "minibatch-sgd": "minibatch SGD",
    "fedavg-swor": "FedAvg SWOR",
    "fedavg-swr": "FedAvg SWR",
    "equal": "neither, they are equal",
    "none": "none to name, one of the two does not apply",
}
PRINTED = ("optimization", "noise", "sampling", "noise drift", "heterogeneity drift")
SAYS = (
    "What may be said: which worst case is smaller in rounds, not in time or bytes; that eta up to 1/(6 L M K) in SSL"
    " and 1/(6 L K) in FedAvg is safe; that SSL's eta is to be looked for around FedAvg's divided by M."
)
SAYS_NOT = (
    "What may not: that an algorithm is worse on your problem, nor which eta or K is best, nor what error remains."
    " A short pilot over a grid of eta tells."
)
MINIBATCH = (
    "Minibatch SGD, one step a round with the mean of M K gradients, has no drift: in order neither of the two beats"
    " it, as the paper grants."
)
USEFUL = {
    "ssl, order": "SSL, by order: (sigma2/zeta2) (mu/L) R",
    "ssl, at its step": "SSL, with the bound's constants at its eta_tilde",
    "fedavg, order": "FedAvg, by order: the same / M",
    "fedavg, at its step": "FedAvg, with the bound's constants at its eta_tilde",
}


@click.command(
    cls=Command,
    keys=KEYS,
    example="splitrelay theory compare strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 S=2 K=5 R=1000 D2=1",
)
@case_argument
@settings_argument(KEYS)
@format_option
@figure_option
def compare(case: Any, settings: tuple[str, ...], shape: str, figure: Path | None) -> None:
    """SSL against FedAvg, terms side by side, with minibatch SGD beside them.

    At equal rounds with all clients; and where S is given, at equal compute: R rounds of FedAvg with S clients against
    S R/M rounds of SSL. Each at the step that minimises its own bound, or all at the eta_tilde that you give.
    """
    grid = read_grid(settings, KEYS, elsewhere={"eta": ONE_STEP})
    found = _compared(case, grid)
    if figure is not None:
        announce(_draw(case, read_grid(settings, KEYS, FINE), figure))
    if figure_alone(figure):
        return
    if shape == "json":
        records = _records(found, grid)
        emit(Table((), ()), records[0] if grid.single else records, shape)
    elif grid.single and shape != "csv":
        _emit_one(found, _records(found, grid)[0], grid, shape)
    else:
        emit(_many(found, grid, with_terms=shape == "csv"), None, shape)


def _compared(case: Any, grid: Grid) -> Comparison:
    from splitrelay.theory import compare

    return compare(case, grid.problem, **grid.others, **grid.words)


def _sides(found: Comparison) -> dict[str, dict[str, Side]]:
    return {"equal_rounds": dict(found.equal_rounds), "equal_compute": dict(found.equal_compute)}


def _records(found: Comparison, grid: Grid) -> list[dict[str, Any]]:
    sides = {
        how: {name: _side_records(side, grid) for name, side in group.items()} for how, group in _sides(found).items()
    }
    smaller = {how: column(words, grid.size) for how, words in found.smaller.items()}
    useful_K = {how: column(values, grid.size) for how, values in found.useful_K.items()}
    conditions = condition_records(found.conditions, grid.size)
    facts = {"case": found.case, "constants": found.constants, "notes": list(found.notes)}
    return [
        {how: {name: records[j] for name, records in group.items()} for how, group in sides.items()}
        | {"smaller": {how: words[j] for how, words in smaller.items()}, "conditions": conditions[j]}
        | {"useful_K": {how: values[j] for how, values in useful_K.items()}}
        | facts
        | {"settings": settings}
        for j, settings in enumerate(grid.settings)
    ]


def _side_records(side: Side, grid: Grid) -> list[dict[str, Any]]:
    """One record a setting: the rounds, the bound where there is one, the order where there is one."""
    size = grid.size
    rounds = column(side.rounds, size)
    records: list[dict[str, Any]] = [{"rounds": rounds[j]} for j in range(size)]
    for record in records:
        record |= {"total": None, "terms": {}, "applicable": False, "why_not": side.why_not}
    if side.bound is not None:
        for record, bound in zip(records, bound_records(side.bound, grid), strict=True):
            names = (
                "total",
                "terms",
                "eta",
                "eta_tilde",
                "vacuous",
                "applicable",
                "why_not",
                "conditions",
                "statement",
            )
            record |= {name: bound[name] for name in names}
            if not bound["applicable"] and record["rounds"] != record["rounds"]:  # NaN: S R/M is less than a round
                record["why_not"] = side.why_not
    if side.rate is not None:
        totals, dominant = column(side.rate.total, size), column(side.rate.dominant, size)
        terms = {name: column(values, size) for name, values in side.rate.terms.items()}
        for j, record in enumerate(records):
            order = {"total": totals[j], "terms": {name: values[j] for name, values in terms.items()}}
            record["order"] = order | {"dominant": dominant[j]}
    return records


def _emit_one(found: Comparison, record: Mapping[str, Any], grid: Grid, shape: str) -> None:
    say(f"{wrapped(_title(found))}\n{wrapped(grid.caption)}\n")
    emit(_beside(record["equal_rounds"], "At equal rounds, all clients taking part"), None, shape)
    say(f"Smaller bound: {NAMES[record['smaller']['equal rounds']]}.\n")
    if record["equal_compute"]:
        title = "At equal compute, S of M clients taking part in FedAvg, SSL over S R/M rounds"
        emit(_beside(record["equal_compute"], title), None, shape)
        for how in ("without replacement", "with replacement"):
            say(f"Smaller bound {how}: {NAMES[record['smaller'][f'equal compute, {how}']]}.")
        say("")
    _emit_conditions(record["conditions"], shape)
    useful = [(USEFUL[how], value) for how, value in record["useful_K"].items()]
    emit(Table(("K beyond which more local steps stop helping the bound", "K"), useful), None, shape)
    say("\n" + "\n".join(wrapped(line) for line in _notes(found)))


def _emit_conditions(conditions: Sequence[Mapping[str, Any]], shape: str) -> None:
    """The conditions, and below the table what each is for."""
    if conditions:
        parts = [condition["name"].rsplit(" (", 1) for condition in conditions]
        short = [{**c, "name": name} for c, (name, _) in zip(conditions, parts, strict=True)]
        emit(conditions_table(short), None, shape)
        say("\n".join(f"{name}: {why.rstrip(')')}." for name, why in parts) + "\n")


def _notes(found: Comparison) -> list[str]:
    return [*found.notes, MINIBATCH, SAYS, SAYS_NOT]


def _beside(sides: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """A column for every algorithm: rounds and step, the terms, the total, the terms that remain for large R."""
    shown = {name: side for name, side in sides.items() if side["total"] is not None or side["why_not"]}
    terms = sorted({name for side in shown.values() for name in side["terms"]}, key=PRINTED.index)
    lines: dict[str, list[Any]] = {
        key: [side.get(key) for side in shown.values()] for key in ("rounds", "eta_tilde", "eta")
    }
    lines |= {term: [side["terms"].get(term) for side in shown.values()] for term in terms}
    lines |= {"total": [side["total"] for side in shown.values()]}
    lines |= {"vacuous": [side.get("vacuous") for side in shown.values()]}
    lines |= {"for large R": [side.get("order", {}).get("dominant") for side in shown.values()]}
    rows = [(name, *map(cell, values)) for name, values in lines.items()]
    notes = [f"{NAMES[name]}: {side['why_not']}" for name, side in shown.items() if side["why_not"]]
    return Table(("bound", *(NAMES[name] for name in shown)), rows, title, notes)


def _title(found: Comparison) -> str:
    return f"SSL against FedAvg, {found.case}, {found.constants} constants"


def _many(found: Comparison, grid: Grid, with_terms: bool) -> Table:
    """A row for every setting; the terms too where there is no edge to the page."""
    columns = grid.columns
    for label, bound in _bounds(found, "SSL over S R/M").items():
        columns[label] = column(bound.total, grid.size)
        terms = bound.terms if with_terms else {}
        columns |= {f"{label}: {term}": column(values, grid.size) for term, values in terms.items()}
    columns |= {f"smaller at {how}": column(words, grid.size) for how, words in found.smaller.items()}
    title = f"{wrapped(_title(found))}\n{wrapped(grid.caption)}"
    return table_of(columns, title, [wrapped(line) for line in _notes(found)], len(grid.varying))


def _draw(case: Any, grid: Grid, path: Path) -> Path:
    from splitrelay.reports.theory_figures import draw_stacks
    from splitrelay.reports.theory_panels import bound_panel

    found = [(panel, _compared(case, panel)) for panel in grid.panels(PANELS // (6 if "S" in grid.values else 3))]
    words = figure_words(grid, _title(found[0][1]), _measure(found[0][1]), case)
    panels = [
        bound_panel(panel_label(grid, panel, words, label), panel.abscissa, bound, levels(bound, panel))
        for panel, comparison in found
        for label, bound in _bounds(comparison, "SSL over $SR/M$ rounds").items()
    ]
    return draw_stacks(panels, words, path)


def _bounds(found: Comparison, fewer: str) -> dict[str, Bound]:
    """Every bound under its label; SSL's at equal compute under one of its own."""
    labels = {"equal_rounds": NAMES, "equal_compute": NAMES | {"ssl": fewer}}
    return {
        labels[how][name]: side.bound
        for how, group in _sides(found).items()
        for name, side in group.items()
        if side.bound is not None
    }


def _measure(found: Comparison) -> str:
    return next(iter(_bounds(found, "").values())).measure
