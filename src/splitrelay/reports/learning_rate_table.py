"""Best rates, as in the paper's table of them: by a named rule, marked where the best is on the grid's edge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from splitrelay.reports.accuracy import get_printed_value
from splitrelay.reports.seed_groups import Group, group_runs
from splitrelay.reports.table_layout import Choice, Column, Place, build_record, choose_runs, column_key, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.rows import LAST
from splitrelay.table import Heading, Table

EDGE = "†"


def build_rates_table(runs: Sequence[Run], *, rule: str = "test", last: int = LAST, beside: bool = False) -> Table:
    """The best rate of each algorithm in each place; `beside` puts the paper's in brackets."""
    groups, notes = group_runs(runs)
    choices = {(choice.place, choice.column): choice for choice in choose_runs(groups, rule, last)}
    places = list(dict.fromkeys(place for place, _ in choices))
    columns = sorted({column for _, column in choices}, key=column_key)
    heads = [Heading("setting"), Heading("data"), Heading("K", is_numeric=True)]
    heads += [Heading(column.name, column.partition) for column in columns]
    rows = list(_build_rows(choices, places, columns, beside))
    found = list(choices.values())
    caption, records = _build_caption(found, beside), [_build_record(choice) for choice in found]
    return Table(heads, rows, caption=caption, notes=[*_build_notes(found), *notes], name="rates", records=records)


def _build_rows(
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


def _build_caption(choices: Sequence[Choice], beside: bool) -> str:
    rule, last = choices[0].rule, choices[0].last
    paper = " In square brackets the paper's." if beside else ""
    return f"Rates η with the best mean {rule} accuracy over the last {last} rounds.{paper}"


def _build_notes(choices: Sequence[Choice]) -> list[str]:
    seeds = sorted({"all seeds" if choice.seed is None else f"seed {choice.seed}" for choice in choices})
    notes = [f"Chosen with {' or '.join(seeds)}."]
    if any(choice.on_edge for choice in choices):
        notes.append(f"{EDGE} on the edge of the grid: a better rate may lie beyond it.")
    single = sum(len(choice.grid) == 1 for choice in choices)
    if single:
        notes.append(f"In {single} of {len(choices)} places only one rate was tried.")
    return notes


def _build_record(choice: Choice) -> dict[str, Any]:
    printed = get_printed_value(choice)
    return {
        **build_record(choice),
        "rule": choice.rule,
        "seed": choice.seed,
        "accuracy_percent": _compute_percent(choice, choice.best),
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
