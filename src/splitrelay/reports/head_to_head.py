"""Compare SSL with FedAvg in every setting in which both were run, each at its best rate, seed by seed.

Let a(s) be the accuracy of seed s. The gap of a setting is the mean over seeds of a_SSL(s) - a_FedAvg(s), in percentage
points. Both algorithms use the same partition for the same seed. `statistics` describes the intervals, Holm's
correction within a table, and the verdicts: ahead, even or undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from splitrelay.errors import InputError, UnknownName
from splitrelay.reports.labels import get_algorithm_label
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.statistics import (
    AHEAD,
    BEHIND,
    EVEN,
    MARGIN,
    MOST_SEEDS,
    UNDECIDED,
    Interval,
    Judgement,
    judge_differences,
)
from splitrelay.reports.summary import (
    COLLAPSE,
    compare_seeds,
    compute_by_seed,
    describe_ends,
    find_last_round,
    has_collapsed,
)
from splitrelay.reports.table_layout import AUTO, Choice, Place, choose_runs, describe_choices, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.table import Cell, Heading, Piece, Table

FACTORS = ("C", "alpha", "K", "S")  # heterogeneity, local steps, participation
PAIR = ("ssl", "fedavg")
EXTRA_COLUMNS = {"train-loss": "train_loss", "gradient-norm": "gradient_norm"}  # optional columns, fields of rows


@dataclass(frozen=True)
class Comparison:
    """Both algorithms in one setting, each at its best rate and norm.

    Attributes:
        gaps: SSL minus FedAvg for every common seed, in percentage points.
        judgement: What the gaps show, corrected for the other comparisons of the same table.
    """

    ssl: Choice
    fedavg: Choice
    gaps: tuple[float, ...]
    judgement: Judgement

    @property
    def place(self) -> Place:
        """Return the common setting."""
        return self.ssl.place

    @property
    def gap(self) -> float:
        """Return the mean gap over seeds. It is positive if SSL has the higher mean."""
        return self.judgement.mean

    @property
    def winner(self) -> str | None:
        """Return the algorithm that is ahead, or None if they are even or if it is undecided."""
        return {AHEAD: "ssl", BEHIND: "fedavg"}.get(self.judgement.verdict)

    @property
    def factors(self) -> dict[str, float]:
        """Return the values of heterogeneity, local steps and participation."""
        spec = self.ssl.best.spec
        part = spec.partition
        return {"C": part.C, "alpha": part.alpha, "K": spec.K, "S": spec.S or part.M}


def find_comparisons(
    runs: Sequence[Run],
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
    margin: float = MARGIN,
) -> tuple[list[Comparison], list[str]]:
    """Return all settings in which both were run, in the order of the tables, and notes about the runs."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last, tuning=tuning)
    pairs = [
        (choice, other)
        for choice in choices
        if choice.column.algorithm == "ssl" and (other := _find_counterpart(choice, choices)) is not None
    ]
    if not pairs:
        hint = "Run one setting with algorithm=ssl and with algorithm=fedavg."
        raise InputError("no setting of these runs has both SSL and FedAvg", hint=hint)
    gaps = [compare_seeds(ssl.best, fedavg.best, last).tolist() for ssl, fedavg in pairs]
    found = [
        Comparison(*pair, tuple(row), judgement)
        for pair, row, judgement in zip(pairs, gaps, judge_differences(gaps, margin=margin), strict=True)
    ]
    both = [choice for pair in pairs for choice in pair]
    return found, [*describe_seeds([choice.best for choice in both]), *describe_choices(both), *notes]


def judge_together(pairs: Sequence[Comparison], margin: float = MARGIN) -> list[Comparison]:
    """Return comparisons of several studies as rows of one table, corrected for all of them."""
    judged = judge_differences([pair.gaps for pair in pairs], margin=margin)
    return [replace(pair, judgement=judgement) for pair, judgement in zip(pairs, judged, strict=True)]


def _find_counterpart(choice: Choice, choices: Sequence[Choice]) -> Choice | None:
    """Return FedAvg in the same setting and variant. If FedAvg has only one variant, return that one."""
    there = [
        other
        for other in choices
        if other.column.algorithm == "fedavg"
        and (other.place, other.column.partition) == (choice.place, choice.column.partition)
    ]
    same = [other for other in there if other.column.variant == choice.column.variant]
    return next(iter(same), there[0] if len(there) == 1 else None)


def build_winners_table(
    runs: Sequence[Run],
    *,
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
    margin: float = MARGIN,
    columns: Sequence[str] = (),
) -> Table:
    """Build one row per setting: both accuracies, the gap, its intervals, and the verdict.

    Args:
        runs: The runs.
        rule: How rates are chosen: "auto", "validation" or "test".
        last: The largest number of rounds over which accuracies are averaged.
        tuning: Seeds that only decide between rates.
        margin: The largest gap, in points, of algorithms that are called even.
        columns: Optional columns, names of `EXTRA_COLUMNS`.
    """
    for name in columns:
        if name not in EXTRA_COLUMNS:
            raise UnknownName("column", name, EXTRA_COLUMNS)
    pairs, notes = find_comparisons(runs, rule, last, tuning, margin)
    places = [pair.place for pair in pairs]
    heads = [Heading(name, is_numeric=name == "K", is_label=True) for name in ("setting", "data", "partition", "K")]
    for algorithm in PAIR:
        names = ("mean", "median", "collapsed", *(name.replace("-", " ") for name in columns))
        heads += [Heading(name, get_algorithm_label(algorithm), is_numeric=True) for name in names]
    heads += [*(Heading(name, is_numeric=True) for name in ("gap", "95 % interval", "corrected")), Heading("ahead")]
    both = [choice.best for pair in pairs for choice in (pair.ssl, pair.fedavg)]
    rounds = describe_final_rounds([find_last_round(group) for group in both], last)
    caption = describe_columns(rounds, margin, "SSL minus FedAvg")
    said = [*describe_verdicts([pair.judgement for pair in pairs], "SSL", "FedAvg"), *notes, *describe_ends(both, last)]
    lacking = [name for name in columns if any(math.isnan(compute_extra(group, name, last)) for group in both)]
    said += [f"Not recorded by all runs, shown as -: {', '.join(lacking)}."] * bool(lacking)
    rows = [_build_row(pair, places, last, columns) for pair in pairs]
    records = [_build_record(pair, last, columns) | {"margin": margin} for pair in pairs]
    return Table(heads, rows, caption=caption, notes=said, lead=4, name="winners", records=records)


def describe_columns(rounds: str, margin: float, gap: str) -> str:
    """Return the caption of a table of judged differences."""
    return (
        f"Test accuracy in %, over the {rounds}: mean and median over seeds. Collapsed: runs that diverged or ended "
        f"more than {100 * COLLAPSE:g} points below their best. Gap: {gap}, mean over paired seeds, with a bootstrap "
        "95 % interval. Corrected: the interval at the level of Holm's procedure within this table. Ahead: both "
        f"intervals exclude 0. Even: within {margin:g} points (two one-sided tests). Otherwise undecided, with the "
        "number of seeds that would probably decide."
    )


def describe_verdicts(judged: Sequence[Judgement], ours: str, theirs: str) -> list[str]:
    """Return the sentence that counts the verdicts."""
    tally = {name: sum(each.verdict == name for each in judged) for name in (AHEAD, BEHIND, EVEN, UNDECIDED)}
    return [
        f"{ours} is ahead in {tally[AHEAD]} of {len(judged)} settings, {theirs} in {tally[BEHIND]}; "
        f"{tally[EVEN]} are even, {tally[UNDECIDED]} undecided."
    ]


def describe_verdict(judgement: Judgement, ours: str, theirs: str) -> str:
    """Return the one that is ahead, "even", or "undecided" with the number of seeds that would probably decide."""
    if judgement.verdict in (AHEAD, BEHIND):
        within = " (within the margin)" if judgement.is_within_margin else ""
        return (ours if judgement.verdict == AHEAD else theirs) + within
    if judgement.verdict == EVEN:
        return EVEN
    if judgement.n < 2:
        return f"{UNDECIDED}: {'one seed' if judgement.n else 'no common seed'}"
    needed = judgement.seeds_needed
    return f"{UNDECIDED}: {f'{needed} seeds' if needed else f'over {MOST_SEEDS} seeds'}"


def format_interval(interval: Interval) -> str:
    """Return '[-0.31, +1.20]', or an empty text if there is none."""
    return "" if math.isnan(interval.low) else f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def _build_row(pair: Comparison, places: Sequence[Place], last: int, columns: Sequence[str]) -> list[Cell]:
    cells: list[Cell] = [
        pair.place.setting,
        row_label(pair.place, places),
        pair.ssl.column.partition,
        str(pair.place.K),
    ]
    for choice in (pair.ssl, pair.fedavg):
        cells += build_side_cells(choice.best, pair.winner == choice.column.algorithm, last, columns)
    judged = pair.judgement
    return [
        *cells,
        f"{judged.mean:+.2f}",
        format_interval(judged.interval),
        format_interval(judged.corrected),
        describe_verdict(judged, "SSL", "FedAvg"),
    ]


def build_side_cells(group: Group, is_ahead: bool, last: int, columns: Sequence[str] = ()) -> list[Cell]:
    """Return mean (bold if ahead) with the rate, median, number of collapsed seeds, and optional columns."""
    values = np.array(list(compute_by_seed(group, last).values()))
    cells: list[Cell] = [(Piece(f"{100 * values.mean():.2f}", is_ahead), Piece(describe_rate(group)))]
    cells += [f"{100 * np.median(values):.2f}", f"{count_collapsed(group, last)} of {len(values)}"]
    found = [compute_extra(group, name, last) for name in columns]
    return cells + ["-" if math.isnan(value) else f"{value:.4f}" for value in found]


def build_side_record(name: str, group: Group, last: int, columns: Sequence[str] = ()) -> dict[str, Any]:
    """Return the same as fields for CSV and JSON. Their names begin with `name`."""
    values = np.array(list(compute_by_seed(group, last).values()))
    step = group.spec.optimiser
    return {
        f"{name}_percent": round(100 * float(values.mean()), 4),
        f"{name}_median": round(100 * float(np.median(values)), 4),
        f"{name}_collapsed": count_collapsed(group, last),
        f"{name}_eta": step.eta,
        f"{name}_clip": step.clip,
        **{f"{name}_{EXTRA_COLUMNS[column]}": compute_extra(group, column, last) for column in columns},
    }


def count_collapsed(group: Group, last: int = LAST) -> int:
    """Return the number of seeds that collapsed."""
    return sum(has_collapsed(run, last) for run in group.runs)


def compute_extra(group: Group, column: str, last: int = LAST) -> float:
    """Return an optional column: the mean of a field over seeds and the last rounds, NaN if a row has no value."""
    field = EXTRA_COLUMNS[column]
    values = [row.get(field) for run in group.runs for row in run.select_final_rows(last)]
    known = [float(value) for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else math.nan


def describe_rate(group: Group) -> str:
    """Return the rate, and the clipping norm if there is one."""
    step = group.spec.optimiser
    diverged = f", {len(group.diverged)} diverged" if group.diverged else ""
    return f" (η {step.eta:g}{'' if step.clip is None else f', clip {step.clip:g}'}{diverged})"


def _build_record(pair: Comparison, last: int, columns: Sequence[str]) -> dict[str, Any]:
    spec = pair.ssl.best.spec
    own = {"data": spec.data.name, "model": spec.model.name, "M": spec.partition.M, **pair.factors}
    for name, choice in zip(PAIR, (pair.ssl, pair.fedavg), strict=True):
        own |= build_side_record(name, choice.best, last, columns)
    return {**own, **build_judgement_record(pair.judgement), "ahead": pair.winner}


def build_judgement_record(judged: Judgement) -> dict[str, Any]:
    """Return the numbers of a judgement for CSV and JSON."""
    return {
        "gap": round(judged.mean, 4),
        "spread": judged.spread,
        "seeds": judged.n,
        "low": judged.interval.low,
        "high": judged.interval.high,
        "corrected_low": judged.corrected.low,
        "corrected_high": judged.corrected.high,
        "p": judged.p,
        "p_holm": judged.p_holm,
        "p_even": judged.p_even,
        "verdict": judged.verdict,
        "seeds_needed": judged.seeds_needed,
    }
