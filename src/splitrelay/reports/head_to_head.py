"""Compare SSL with FedAvg in every setting in which both were run, each at its best rate, seed by seed.

Let a(s) be the mean test accuracy of seed s over the last 20 rounds. The gap of a setting is the mean over seeds of
a_SSL(s) - a_FedAvg(s), in percentage points, and its spread is their standard deviation. Both algorithms use the same
partition for the same seed. An algorithm is ahead if it is better with every seed. Otherwise the setting is even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.errors import InputError
from splitrelay.reports.labels import get_algorithm_label
from splitrelay.reports.seed_groups import Group, describe_seeds, group_runs
from splitrelay.reports.summary import compare_seeds, compute_by_seed, describe_ends
from splitrelay.reports.table_layout import Choice, Place, choose_runs, describe_choices, row_label
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST
from splitrelay.table import Cell, Heading, Piece, Table

FACTORS = ("C", "alpha", "K", "S")  # heterogeneity, local steps, participation


@dataclass(frozen=True)
class Comparison:
    """Both algorithms in one setting, each at its best rate and norm."""

    ssl: Choice
    fedavg: Choice
    last: int = LAST

    @property
    def place(self) -> Place:
        """Return the common setting."""
        return self.ssl.place

    @cached_property
    def gaps(self) -> NDArray[np.float64]:
        """Return the gap of every common seed, in percentage points."""
        return compare_seeds(self.ssl.best, self.fedavg.best, self.last)

    @property
    def gap(self) -> float:
        """Return the mean gap over seeds. It is positive if SSL is ahead."""
        return float(self.gaps.mean()) if self.gaps.size else math.nan

    @property
    def spread(self) -> float:
        """Return the standard deviation over seeds, or NaN for one seed."""
        return float(self.gaps.std(ddof=1)) if self.gaps.size > 1 else math.nan

    @property
    def winner(self) -> str | None:
        """Return the algorithm that is ahead with every seed, or None."""
        if self.gaps.size and (self.gaps > 0).all():
            return "ssl"
        return "fedavg" if self.gaps.size and (self.gaps < 0).all() else None

    @property
    def factors(self) -> dict[str, float]:
        """Return the values of heterogeneity, local steps and participation."""
        spec = self.ssl.best.spec
        part = spec.partition
        return {"C": part.C, "alpha": part.alpha, "K": spec.K, "S": spec.S or part.M}


def find_comparisons(runs: Sequence[Run], rule: str = "test", last: int = LAST) -> tuple[list[Comparison], list[str]]:
    """Return all settings in which both were run, in the order of the tables, and notes about the runs."""
    groups, notes = group_runs(runs)
    choices = choose_runs(groups, rule, last)
    pairs = [
        Comparison(choice, other, last)
        for choice in choices
        if choice.column.algorithm == "ssl" and (other := _find_counterpart(choice, choices)) is not None
    ]
    if not pairs:
        hint = "Run one setting with algorithm=ssl and with algorithm=fedavg."
        raise InputError("no setting of these runs has both SSL and FedAvg", hint=hint)
    both = [choice for pair in pairs for choice in (pair.ssl, pair.fedavg)]
    said = [*describe_seeds(_get_groups(pairs)), *describe_choices(both), *notes]
    return pairs, said


def _get_groups(pairs: Sequence[Comparison]) -> list[Group]:
    """Return the best runs of both algorithms."""
    return [choice.best for pair in pairs for choice in (pair.ssl, pair.fedavg)]


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


def build_winners_table(runs: Sequence[Run], *, rule: str = "test", last: int = LAST) -> Table:
    """Build one row per setting: both accuracies, the gap, and the algorithm that is ahead with every seed."""
    pairs, notes = find_comparisons(runs, rule, last)
    places = [pair.place for pair in pairs]
    heads = [Heading(name, is_numeric=name == "K", is_label=True) for name in ("setting", "data", "partition", "K")]
    heads += [*(Heading(name, is_numeric=True) for name in ("SSL", "FedAvg", "gap")), Heading("ahead")]
    rows = [_build_row(pair, places) for pair in pairs]
    caption = (
        f"Test accuracy in %, mean over seeds and the last {last} rounds, each at its best learning "
        "rate. Gap: SSL minus FedAvg ± standard deviation over seeds. Ahead: better with every seed."
    )
    tally = {name: sum(pair.winner == name for pair in pairs) for name in ("ssl", "fedavg", None)}
    score = (
        f"SSL is ahead in {tally['ssl']} of {len(pairs)} settings, FedAvg in {tally['fedavg']}; {tally[None]} are even."
    )
    notes = [score, *notes, *describe_ends(_get_groups(pairs), last)]
    records = [_build_record(pair) for pair in pairs]
    return Table(heads, rows, caption=caption, notes=notes, lead=2, name="winners", records=records)


def _build_row(pair: Comparison, places: Sequence[Place]) -> list[Cell]:
    where = [pair.place.setting, row_label(pair.place, places), pair.ssl.column.partition, pair.place.K]
    ahead = "even" if pair.winner is None else get_algorithm_label(pair.winner)
    spread = "" if math.isnan(pair.spread) else f" ± {pair.spread:.2f}"
    scores = [
        (
            Piece(f"{_compute_percent(choice.best, pair.last):.2f}", pair.winner == choice.column.algorithm),
            Piece(describe_rate(choice)),
        )
        for choice in (pair.ssl, pair.fedavg)
    ]
    return [*map(str, where), *scores, f"{pair.gap:+.2f}{spread}", ahead]


def describe_rate(choice: Choice) -> str:
    """Return the rate, and the clipping norm if there is one."""
    step = choice.best.spec.optimiser
    diverged = f", {len(choice.best.diverged)} diverged" if choice.best.diverged else ""
    return f" (η {step.eta:g}{'' if step.clip is None else f', clip {step.clip:g}'}{diverged})"


def _build_record(pair: Comparison) -> dict[str, Any]:
    spec = pair.ssl.best.spec
    own = {"data": spec.data.name, "model": spec.model.name, "M": spec.partition.M, **pair.factors}
    for name, choice in (("ssl", pair.ssl), ("fedavg", pair.fedavg)):
        own[f"{name}_percent"] = round(_compute_percent(choice.best, pair.last), 4)
        own[f"{name}_eta"], own[f"{name}_clip"] = choice.best.spec.optimiser.eta, choice.best.spec.optimiser.clip
    return {**own, "gap": round(pair.gap, 4), "spread": pair.spread, "seeds": pair.gaps.size, "ahead": pair.winner}


def _compute_percent(group: Group, last: int) -> float:
    return 100 * float(np.mean(list(compute_by_seed(group, last).values())))
