"""The paper's accuracy tables: rows by set and K, columns by partition and algorithm, the better value bold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitrelay.paper.cells import Printed
from splitrelay.reports.labels import value_label
from splitrelay.reports.seed_groups import grouped, seeds_said
from splitrelay.reports.summary import ends, papers_cell, summarised
from splitrelay.reports.table_layout import (
    Choice,
    Column,
    Place,
    choices_said,
    column_key,
    laid_out,
    record_of,
    row_label,
)
from splitrelay.runs.records import Run
from splitrelay.runs.rows import LAST
from splitrelay.table import Cell, Heading, Piece, Table


@dataclass(frozen=True)
class Value:
    """What stands in a cell, in percent; rounds None: never."""

    accuracy: float
    spread: float
    rounds: int | None


def accuracy_table(
    runs: Sequence[Run],
    *,
    rule: str = "test",
    last: int = LAST,
    goal: float | None = None,
    beside: bool = False,
    by_algorithm: bool = False,
) -> Table:
    """Mean and spread over seeds and the last rounds, and the rounds that the goal took.

    `beside` puts what the paper prints below each row; `by_algorithm` turns the table: a row for each algorithm.
    """
    groups, notes = grouped(runs)
    choices = laid_out(groups, rule, last)
    ours = {(choice.place, choice.column): _ours(choice, last, goal) for choice in choices}
    papers = {(choice.place, choice.column): _papers(choice) for choice in choices} if beside else {}
    notes = [*seeds_said([choice.best for choice in choices]), *choices_said(choices), *notes]
    notes += ends([choice.best for choice in choices], last)
    heads, rows = (_turned if by_algorithm else _rows)(ours, papers, beside)
    records = [_record(choice, ours[choice.place, choice.column], _papers(choice), last, goal) for choice in choices]
    return Table(heads, rows, caption=_caption(choices, last, goal), notes=notes, name="accuracy", records=records)


def shown(value: Value | None, best: bool = False, fastest: bool = False) -> Cell:
    """'98.84 ± 0.19 (16)'; a dash where the goal is never reached."""
    if value is None:
        return ""
    if math.isnan(value.accuracy):
        return "-"
    spread = "" if math.isnan(value.spread) else f" ± {value.spread:.2f}"
    rounds = "-" if value.rounds is None else str(value.rounds)
    return (
        Piece(f"{value.accuracy:.2f}", best),
        Piece(f"{spread} ("),
        Piece(rounds, fastest and value.rounds is not None),
        Piece(")"),
    )


Values = Mapping[tuple[Place, Column], Value | None]


def _rows(ours: Values, papers: Values, beside: bool) -> tuple[list[Heading], list[list[Cell]]]:
    places = list(dict.fromkeys(place for place, _ in ours))
    columns = sorted({column for _, column in ours}, key=column_key)
    heads = [Heading("setting"), Heading("data"), Heading("K", is_numeric=True)] + [Heading("")] * beside
    heads += [Heading(column.name, column.partition) for column in columns]
    rows, above = [], ("", "")
    for place in places:
        label = (place.setting, row_label(place, places))
        first = [(text if label[: j + 1] != above[: j + 1] else "") for j, text in enumerate(label)]
        above = label
        rows.append([*first, str(place.K), *["ours"] * beside, *_cells(place, columns, ours)])
        if beside:
            rows.append(["", "", "", "paper", *_cells(place, columns, papers)])
    return heads, rows


def _cells(place: Place, columns: Sequence[Column], values: Values) -> Iterator[Cell]:
    """Within one partition the highest accuracy and the fewest rounds are bold, where there is a choice."""
    for column in columns:
        rivals = [values.get((place, other)) for other in columns if other.partition == column.partition]
        yield _marked(values.get((place, column)), [rival for rival in rivals if rival is not None])


def _marked(value: Value | None, rivals: Sequence[Value]) -> Cell:
    if value is None or len(rivals) < 2:
        return shown(value)
    times = [rival.rounds for rival in rivals if rival.rounds is not None]
    best = max((rival.accuracy for rival in rivals if not math.isnan(rival.accuracy)), default=None)
    return shown(value, value.accuracy == best, bool(times) and value.rounds == min(times))


def _turned(ours: Values, papers: Values, beside: bool) -> tuple[list[Heading], list[list[Cell]]]:
    """A row for each algorithm and variant, a column for each place and partition."""
    places = list(dict.fromkeys(place for place, _ in ours))
    partitions = list(dict.fromkeys(c.partition for c in sorted({column for _, column in ours}, key=column_key)))
    names = list(dict.fromkeys(c.name for c in sorted({c for _, c in ours}, key=lambda c: column_key(c)[3:])))
    spots = [(place, part) for place in places for part in partitions if _at(ours, place, part)]
    heads = [Heading("algorithm"), *[Heading("")] * beside]
    heads += [Heading(part, f"{row_label(place, places)}, {place.setting}, K={place.K}") for place, part in spots]
    rows = []
    for name in names:
        rows.append([name, *["ours"] * beside, *_across(ours, spots, name)])
        if beside:
            rows.append(["", "paper", *_across(papers, spots, name)])
    return heads, rows


def _across(values: Values, spots: Sequence[tuple[Place, str]], name: str) -> Iterator[Cell]:
    for place, part in spots:
        found = _at(values, place, part)
        yield _marked(found.get(name), list(found.values()))


def _at(values: Values, place: Place, part: str) -> dict[str, Value]:
    inside = {column.name: value for (p, column), value in values.items() if p == place and column.partition == part}
    return {name: value for name, value in inside.items() if value is not None}


def _ours(choice: Choice, last: int, goal: float | None) -> Value:
    seen = summarised(choice.best, last, goal)
    return Value(100 * seen.mean, 100 * seen.spread, seen.rounds)


def _papers(choice: Choice) -> Value | None:
    printed = papers_value(choice)
    return None if printed is None else Value(printed.accuracy, printed.spread, printed.rounds)


def papers_value(choice: Choice) -> Printed | None:
    """What the paper prints for this algorithm in this place."""
    cell = papers_cell(choice.best.spec)
    if cell is None or choice.column.algorithm not in ("fedavg", "ssl"):
        return None
    return cell.ssl if choice.column.algorithm == "ssl" else cell.fedavg


def _caption(choices: Sequence[Choice], last: int, goal: float | None) -> str:
    goals = sorted({(choice.column.partition, summarised(choice.best, last, goal).goal) for choice in choices})
    different = {value for _, value in goals}
    words = (
        [f"{100 * value:g} % ({part})" for part, value in goals] if len(different) > 1 else [f"{100 * goals[0][1]:g} %"]
    )
    what = f"Test accuracy in %, mean ± standard deviation over seeds and the last {last} rounds"
    return f"{what}; in brackets the first round in which the mean over seeds is at {', '.join(words)} or above."


def _record(choice: Choice, value: Value, paper: Value | None, last: int, goal: float | None) -> dict[str, Any]:
    seen = summarised(choice.best, last, goal)
    return {
        **record_of(choice),
        "R": min(run.rows[-1]["round"] for run in choice.best.runs),
        "seeds": " ".join(map(value_label, choice.best.seeds)),
        "accuracy_percent": round(value.accuracy, 4),
        "spread_percent": round(value.spread, 4),
        "goal_percent": 100 * seen.goal,
        "rounds_to_goal": value.rounds,
        "paper_accuracy_percent": paper and paper.accuracy,
        "paper_spread_percent": paper and paper.spread,
        "paper_rounds_to_goal": paper and paper.rounds,
    }
