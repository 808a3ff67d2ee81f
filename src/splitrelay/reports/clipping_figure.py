"""Draw the clipping figure: the same runs with and without clipping, at two learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splitrelay.errors import InputError
from splitrelay.reports.curves import ACCURACY, ROUNDS, compute_accuracy_line
from splitrelay.reports.line_plots import Drawing, Line, LineStyle, Panel, grid, styles
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.style import GREEN, ORANGE, PURPLE, SKY
from splitrelay.reports.table_layout import Choice, choose_runs, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.rows import LAST

NORMS = (GREEN, PURPLE, ORANGE, SKY)


def draw_clipping(runs: Sequence[Run], *, rule: str = "test", last: int = LAST, smooth: int = 1) -> Drawing:
    """Draw one row per algorithm and one column per partition. The colour is the norm, the pattern is the rate."""
    groups, notes = group_runs(runs)
    searched = [
        choice for choice in choose_runs(groups, rule, last) if len({_norm(group) for group in choice.tried}) > 1
    ]
    choices = [replace(choice, tried=_at_two_rates(choice)) for choice in searched]
    if not choices:
        hint = "Run one setting with clip=10 and with clip=none; presets paper/clipping-... do."
        raise InputError("nothing here was run both with and without clipping", hint=hint)
    norms = sorted({_norm(group) for choice in choices for group in choice.tried}, key=lambda norm: norm or np.inf)
    colours = {norm: NORMS[j % len(NORMS)] for j, norm in enumerate(norms)}
    rows = list(dict.fromkeys(_build_row(choice) for choice in choices))
    columns = list(dict.fromkeys(choice.column.partition for choice in choices))
    panels = [[_build_panel(_at(choices, row, part), choices, colours, smooth) for part in columns] for row in rows]
    said = [
        *describe_seeds(group for choice in choices for group in choice.tried),
        *_describe_left_out(searched, choices),
        *notes,
    ]
    said += [f"Each point is the mean of {smooth} evaluations that end there."] * (smooth > 1)
    key = {_words(norm): LineStyle(colours[norm], "-") for norm in norms}
    caption = "Test accuracy with and without clipping, mean over seeds; the band is one standard deviation over seeds."
    upright = ACCURACY if smooth == 1 else f"{ACCURACY},\nmean of {smooth} evaluations"
    return Drawing(grid(panels, (ROUNDS, upright), said, key), [caption, *said])


def _at_two_rates(choice: Choice) -> tuple[Group, ...]:
    """Return the runs at the best rate and at the next higher one, as in the paper (the next lower one if needed)."""
    best, etas = choice.best.spec.optimiser.eta, set(map(_eta, choice.tried))
    below = max((eta for eta in etas if eta < best), default=best)
    other = min((eta for eta in etas if eta > best), default=below)
    return tuple(group for group in sorted(choice.tried, key=_eta) if _eta(group) in (best, other))


def _describe_left_out(searched: Sequence[Choice], choices: Sequence[Choice]) -> list[str]:
    if [len(choice.tried) for choice in searched] == [len(choice.tried) for choice in choices]:
        return []
    return [f"Of the rates tried, the best by {choices[0].rule} accuracy and the next above it are drawn (else below)."]


def _eta(group: Group) -> float:
    return group.spec.optimiser.eta


def _build_panel(
    choice: Choice | None, choices: Sequence[Choice], colours: dict[float | None, str], smooth: int
) -> Panel | None:
    if choice is None:
        return None
    etas = sorted(set(map(_eta, choice.tried)))
    style = styles(etas)
    lines = [
        _build_line(group, LineStyle(colours[_norm(group)], style[group.spec.optimiser.eta]), smooth)
        for group in choice.tried
    ]
    rates = f"{etas[0]:g}" if len(etas) == 1 else f"{etas[0]:g} (solid), {etas[1]:g} (dashed)"
    places = {other.place for other in choices}
    where = f"{row_label(choice.place, places)}, K={choice.place.K}, " if len(places) > 1 else ""
    return Panel(f"{choice.column.name}, {where}{choice.column.partition}\n$\\eta=$ {rates}", lines)


def _build_line(group: Group, style: LineStyle, smooth: int) -> Line:
    seen = compute_accuracy_line(group, smooth)
    return Line(_words(_norm(group)), style, seen.rounds.astype(np.float64), seen.mean, seen.deviation)


def _at(choices: Sequence[Choice], row: tuple[object, ...], part: str) -> Choice | None:
    return next((c for c in choices if _build_row(c) == row and c.column.partition == part), None)


def _build_row(choice: Choice) -> tuple[object, ...]:
    return choice.place, choice.column.name


def _norm(group: Group) -> float | None:
    return group.spec.optimiser.clip


def _words(norm: float | None) -> str:
    return "no clipping" if norm is None else f"max norm {norm:g}"
