"""Tables of accuracy and of best learning rates in the paper's layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitrelay.paper.cells import Printed
from splitrelay.reports.labels import format_value_label
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.summary import describe_ends, find_last_round, find_paper_cell, summarise_group
from splitrelay.reports.table_layout import (
    AUTO,
    Choice,
    Column,
    Place,
    build_record,
    choose_runs,
    column_key,
    describe_choices,
    row_label,
)
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.table import Cell, Heading, Piece, Table


@dataclass(frozen=True)
class Value:
    """What stands in a cell, in percent; rounds None: never."""

    accuracy: float
    spread: float
    rounds: int | None
    diverged: int = 0  # seeds


def build_accuracy_table(
    runs: Sequence[Run],
    *,
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
    goal: float | None = None,
    beside: bool = False,
    by_algorithm: bool = False,
) -> Table:
    """Mean and spread over seeds and the last rounds, and the rounds that the goal took.

    `beside` puts what the paper prints below each row; `by_algorithm` turns the table: a row for each algorithm.
    """
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning)
    ours = {(choice.place, choice.column): _compute_value(choice, last, goal) for choice in choices}
    papers = {(choice.place, choice.column): _get_paper_value(choice) for choice in choices} if beside else {}
    notes = [*describe_seeds([choice.best for choice in choices]), *describe_choices(choices), *notes]
    notes += describe_ends([choice.best for choice in choices], last)
    heads, rows = (_build_turned_rows if by_algorithm else _build_rows)(ours, papers, beside)
    records = [
        _build_record(choice, ours[choice.place, choice.column], _get_paper_value(choice), last, goal)
        for choice in choices
    ]
    return Table(
        heads, rows, caption=_build_caption(choices, last, goal), notes=notes, name="accuracy", records=records
    )


def format_value(value: Value | None, best: bool = False, fastest: bool = False) -> Cell:
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
        Piece(")" if not value.diverged else f"), {value.diverged} diverged"),
    )


Values = Mapping[tuple[Place, Column], Value | None]


def _build_rows(ours: Values, papers: Values, beside: bool) -> tuple[list[Heading], list[list[Cell]]]:
    places = list(dict.fromkeys(place for place, _ in ours))
    columns = sorted({column for _, column in ours}, key=column_key)
    heads = [Heading("setting"), Heading("data"), Heading("K", is_numeric=True)] + [Heading("")] * beside
    heads += [Heading(column.name, column.partition) for column in columns]
    rows, above = [], ("", "")
    for place in places:
        label = (place.setting, row_label(place, places))
        first = [(text if label[: j + 1] != above[: j + 1] else "") for j, text in enumerate(label)]
        above = label
        rows.append([*first, str(place.K), *["ours"] * beside, *_build_cells(place, columns, ours)])
        if beside:
            rows.append(["", "", "", "paper", *_build_cells(place, columns, papers)])
    return heads, rows


def _build_cells(place: Place, columns: Sequence[Column], values: Values) -> Iterator[Cell]:
    """Within one partition the highest accuracy and the fewest rounds are bold, where there is a choice."""
    for column in columns:
        rivals = [values.get((place, other)) for other in columns if other.partition == column.partition]
        yield _mark_best(values.get((place, column)), [rival for rival in rivals if rival is not None])


def _mark_best(value: Value | None, rivals: Sequence[Value]) -> Cell:
    if value is None or len(rivals) < 2:
        return format_value(value)
    times = [rival.rounds for rival in rivals if rival.rounds is not None]
    best = max((rival.accuracy for rival in rivals if not math.isnan(rival.accuracy)), default=None)
    return format_value(value, value.accuracy == best, bool(times) and value.rounds == min(times))


def _build_turned_rows(ours: Values, papers: Values, beside: bool) -> tuple[list[Heading], list[list[Cell]]]:
    """A row for each algorithm and variant, a column for each place and partition."""
    places = list(dict.fromkeys(place for place, _ in ours))
    partitions = list(dict.fromkeys(c.partition for c in sorted({column for _, column in ours}, key=column_key)))
    names = list(dict.fromkeys(c.name for c in sorted({c for _, c in ours}, key=lambda c: column_key(c)[3:])))
    spots = [(place, part) for place in places for part in partitions if _find_values(ours, place, part)]
    heads = [Heading("algorithm"), *[Heading("")] * beside]
    heads += [Heading(part, f"{row_label(place, places)}, {place.setting}, K={place.K}") for place, part in spots]
    rows = []
    for name in names:
        rows.append([name, *["ours"] * beside, *_build_cells_across(ours, spots, name)])
        if beside:
            rows.append(["", "paper", *_build_cells_across(papers, spots, name)])
    return heads, rows


def _build_cells_across(values: Values, spots: Sequence[tuple[Place, str]], name: str) -> Iterator[Cell]:
    for place, part in spots:
        found = _find_values(values, place, part)
        yield _mark_best(found.get(name), list(found.values()))


def _find_values(values: Values, place: Place, part: str) -> dict[str, Value]:
    inside = {column.name: value for (p, column), value in values.items() if p == place and column.partition == part}
    return {name: value for name, value in inside.items() if value is not None}


def _compute_value(choice: Choice, last: int, goal: float | None) -> Value:
    seen = summarise_group(choice.best, last, goal)
    return Value(100 * seen.mean, 100 * seen.spread, seen.rounds, len(choice.best.diverged))


def _get_paper_value(choice: Choice) -> Value | None:
    printed = get_printed_value(choice)
    return None if printed is None else Value(printed.accuracy, printed.spread, printed.rounds)


def get_printed_value(choice: Choice) -> Printed | None:
    """What the paper prints for this algorithm in this place."""
    cell = find_paper_cell(choice.best.spec)
    if cell is None or choice.column.algorithm not in ("fedavg", "ssl"):
        return None
    return cell.ssl if choice.column.algorithm == "ssl" else cell.fedavg


def _build_caption(choices: Sequence[Choice], last: int, goal: float | None) -> str:
    goals = sorted({(choice.column.partition, summarise_group(choice.best, last, goal).goal) for choice in choices})
    different = {value for _, value in goals}
    words = (
        [f"{100 * value:g} % ({part})" for part, value in goals] if len(different) > 1 else [f"{100 * goals[0][1]:g} %"]
    )
    ends = [find_last_round(choice.best) for choice in choices]
    what = f"Test accuracy in %, mean ± standard deviation over seeds and the {describe_final_rounds(ends, last)}"
    return f"{what}; in brackets the first round in which the mean over seeds is at {', '.join(words)} or above."


def _build_record(choice: Choice, value: Value, paper: Value | None, last: int, goal: float | None) -> dict[str, Any]:
    seen = summarise_group(choice.best, last, goal)
    return {
        **build_record(choice),
        "R": min(run.rows[-1]["round"] for run in choice.best.runs),
        "seeds": " ".join(map(format_value_label, choice.best.seeds)),
        "diverged": value.diverged,
        "accuracy_percent": round(value.accuracy, 4),
        "spread_percent": round(value.spread, 4),
        "goal_percent": 100 * seen.goal,
        "rounds_to_goal": value.rounds,
        "paper_accuracy_percent": paper and paper.accuracy,
        "paper_spread_percent": paper and paper.spread,
        "paper_rounds_to_goal": paper and paper.rounds,
    }


EDGE = "†"


def build_rates_table(
    runs: Sequence[Run], *, rule: str = AUTO, last: int = LAST, tuning: Sequence[int] = (), beside: bool = False
) -> Table:
    """The best rate of each algorithm in each place; `beside` puts the paper's in brackets."""
    groups, notes = group_runs(runs)
    choices = {(choice.place, choice.column): choice for choice in choose_runs(groups, rule, last, tuning=tuning)}
    places = list(dict.fromkeys(place for place, _ in choices))
    columns = sorted({column for _, column in choices}, key=column_key)
    heads = [Heading("setting"), Heading("data"), Heading("K", is_numeric=True)]
    heads += [Heading(column.name, column.partition) for column in columns]
    rows = list(_build_rate_rows(choices, places, columns, beside))
    found = list(choices.values())
    caption, records = _build_rate_caption(found, beside), [_build_rate_record(choice) for choice in found]
    return Table(heads, rows, caption=caption, notes=[*_build_notes(found), *notes], name="rates", records=records)


def _build_rate_rows(
    choices: dict[tuple[Place, Column], Choice], places: list[Place], columns: list[Column], beside: bool
) -> Iterator[list[str]]:
    searched = any(len({group.spec.optimiser.clip for group in choice.tried}) > 1 for choice in choices.values())
    above = ("", "")
    for place in places:
        label = (place.setting, row_label(place, places))
        first = [(text if label[: j + 1] != above[: j + 1] else "") for j, text in enumerate(label)]
        above = label
        cells = [_format_rate(choices.get((place, column)), beside, searched) for column in columns]
        yield [*first, str(place.K), *cells]


def _format_rate(choice: Choice | None, beside: bool, clips: bool) -> str:
    if choice is None:
        return ""
    step, printed = choice.best.spec.optimiser, get_printed_value(choice)
    norm = ", no clip" if step.clip is None else f", clip {step.clip:g}"
    paper = f" [{printed.eta:g}]" if beside and printed else ""
    return f"{step.eta:g}{EDGE * choice.on_edge}{norm * clips}{paper}"


def _build_rate_caption(choices: Sequence[Choice], beside: bool) -> str:
    rule, last = choices[0].rule, choices[0].last
    rounds = describe_final_rounds([find_last_round(choice.best) for choice in choices], last)
    paper = " In square brackets the paper's." if beside else ""
    return f"Rates η with the best mean {rule} accuracy over the {rounds}.{paper}"


def _build_notes(choices: Sequence[Choice]) -> list[str]:
    notes = describe_choices(choices)
    if any(choice.on_edge for choice in choices):
        notes.append(f"{EDGE} on the edge of the grid: a better rate may lie beyond it.")
    single = sum(len(choice.grid) == 1 for choice in choices)
    if single:
        notes.append(f"In {single} of {len(choices)} places only one rate was tried.")
    return notes


def _build_rate_record(choice: Choice) -> dict[str, Any]:
    printed = get_printed_value(choice)
    return {
        **build_record(choice),
        "rule": choice.rule,
        "seeds": " ".join(map(str, choice.seeds)),
        "accuracy_percent": _compute_percent(choice, choice.chosen),
        "tried": "; ".join(_describe_try(choice, group) for group in sorted(choice.tried, key=_get_eta)),
        "paper_eta": printed and printed.eta,
    }


def _get_eta(group: Group) -> float:
    return group.spec.optimiser.eta


def _describe_try(choice: Choice, group: Group) -> str:
    """'0.1 clip 10: 98.52', or how far it came."""
    step = group.spec.optimiser
    norm = "" if step.clip is None else f" clip {step.clip:g}"
    stopped = "" if group.complete else f" (ends at round {group.runs[0].rows[-1]['round']})"
    if group.diverged:
        stopped = f" ({len(group.diverged)} of {len(group.runs)} seeds diverged)"
    score = _compute_percent(choice, group)
    return f"{step.eta:g}{norm}: {'no score' if score is None else f'{score:.2f}'}{stopped}"


def _compute_percent(choice: Choice, group: Group) -> float | None:
    """The score; None where there is none, as for a run that diverged in its first round."""
    score = choice.score(group)
    return round(100 * score, 4) if math.isfinite(score) else None
