"""Where a setting stands: its row and column in a table, its panel in a figure; and which rate speaks for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from splitrelay.errors import InputError, UnknownName
from splitrelay.reports.labels import (
    ALGORITHMS,
    DATA,
    find_place,
    get_algorithm_label,
    get_data_label,
    get_partition_label,
    get_setting_label,
)
from splitrelay.reports.seed_groups import REPEATS, Group, describe_keys, find_differing_keys
from splitrelay.reports.summary import build_curve, select_tail
from splitrelay.runs.rows import LAST
from splitrelay.runs.spec import SEEDS, Spec

# How the best rate is chosen: the paper looks at the test set, with one seed.
RULES = {"test": "test_accuracy", "validation": "validation_accuracy"}
TUNED = ("optimiser.eta", "optimiser.clip")  # what a search may choose


@dataclass(frozen=True)
class Place:
    """A row of the paper's tables."""

    setting: str
    data: str
    model: str
    K: int
    M: int


@dataclass(frozen=True)
class Column:
    """A column of the paper's tables; the variant says in what else runs of one algorithm differ."""

    partition: str
    algorithm: str
    variant: str
    C: int

    @property
    def name(self) -> str:
        """The algorithm, and its variant where there are several."""
        return get_algorithm_label(self.algorithm) + (f" ({self.variant})" if self.variant else "")


@dataclass(frozen=True)
class Choice:
    """All that was tried in one place, and the best of it by a rule."""

    place: Place
    column: Column
    tried: tuple[Group, ...]
    rule: str = "test"
    last: int = LAST

    @cached_property
    def best(self) -> Group:
        """The highest score; of several, the smallest rate. What was not run to its end is chosen only if all is so."""
        complete = [group for group in self.tried if group.complete] or list(self.tried)
        return max(complete, key=lambda group: (self.score(group), -group.spec.optimiser.eta))

    @property
    def grid(self) -> list[float]:
        """The rates that were tried with the best one's clipping."""
        clip = self.best.spec.optimiser.clip
        return sorted({group.spec.optimiser.eta for group in self.tried if group.spec.optimiser.clip == clip})

    @property
    def on_edge(self) -> bool:
        """Whether the grid, not the optimum, chose the rate."""
        return len(self.grid) > 1 and self.best.spec.optimiser.eta in (self.grid[0], self.grid[-1])

    @cached_property
    def seed(self) -> int | None:
        """The seed of the search: the paper's first if all have it, else one that all have; None: there is none."""
        common = set.intersection(*(set(group.seeds) for group in self.tried))
        return next((seed for seed in (*SEEDS, *sorted(common)) if seed in common), None)

    def score(self, group: Group) -> float:
        """The mean over the last rounds with the search's seed; over all seeds where they have none in common."""
        field = RULES[self.rule]
        own = replace(group, runs=tuple(run for run in group.runs if self.seed in (None, run.spec.seed)))
        values = select_tail(build_curve(own, field), self.last).values
        if values.size and math.isnan(values.mean()) and field not in own.runs[0].rows[-1]:
            hint = "Run it with validation=0.1, or choose by --tune test."
            raise InputError(f"{own.runs[0].path} has no {field}", hint=hint)
        mean = float(values.mean()) if values.size else math.nan
        return -math.inf if math.isnan(mean) else mean


def choose_runs(
    groups: Sequence[Group], rule: str = "test", last: int = LAST, *, every_rate: bool = False
) -> list[Choice]:
    """Every place that is taken, in the tables' order, with what was tried there (or each rate by itself)."""
    if rule not in RULES:
        raise UnknownName("rule", rule, RULES)
    extra = _find_variant_keys(groups, TUNED if not every_rate else ())
    tried: dict[tuple[Place, Column], list[Group]] = {}
    for group in groups:
        variant = describe_keys(group.spec, extra.get(group.spec.algorithm, []))
        tried.setdefault((get_place(group.spec), get_column(group.spec, variant)), []).append(group)
    choices = [Choice(place, column, tuple(found), rule, last) for (place, column), found in tried.items()]
    return sorted(choices, key=lambda choice: (place_key(choice.place), column_key(choice.column)))


def describe_choices(choices: Iterable[Choice], what: str = "shown") -> list[str]:
    """What must be said where rates were chosen."""
    several = [choice for choice in choices if len(choice.tried) > 1]
    if not several:
        return []
    seeds = sorted({str(choice.seed) for choice in several})
    with_seed = f"with seed {seeds[0]}" if len(seeds) == 1 and seeds != ["None"] else "with seeds that differ"
    said = f"Where several rates were tried the one with the best mean {several[0].rule} accuracy over the last"
    sentences = [f"{said} {several[0].last} rounds {with_seed} is {what}."]
    if several[0].rule == "test":
        sentences[0] += " It was chosen on the test set."
    edges = sum(choice.on_edge for choice in several)
    return sentences + [f"{edges} of {len(several)} best rates lie on the edge of their grid."] * bool(edges)


def build_record(choice: Choice) -> dict[str, Any]:
    """Where a choice stands and what it is, as every table of numbers begins."""
    spec = choice.best.spec
    return {
        "setting": choice.place.setting,
        "data": spec.data.name,
        "model": spec.model.name,
        "M": spec.partition.M,
        "S": spec.S or spec.partition.M,
        "K": spec.K,
        "partition": choice.column.partition,
        "algorithm": spec.algorithm,
        "variant": choice.column.variant,
        "eta": spec.optimiser.eta,
        "clip": spec.optimiser.clip,
        "on_edge": choice.on_edge,
    }


def get_place(spec: Spec) -> Place:
    """The row."""
    return Place(get_setting_label(spec), spec.data.name, spec.model.name, spec.K, spec.partition.M)


def get_column(spec: Spec, variant: str = "") -> Column:
    """The column."""
    return Column(get_partition_label(spec.partition), spec.algorithm, variant, spec.partition.C)


def place_key(place: Place) -> tuple[object, ...]:
    """Cross-device before cross-silo, sets in the paper's order, K upwards."""
    return (-place.M, place.setting, find_place(DATA, place.data), place.model, place.K)


def column_key(column: Column) -> tuple[object, ...]:
    """ExDir by C, then other partitions; FedAvg, SSL, then the others."""
    exdir = column.partition.startswith("ExDir")
    return (
        not exdir,
        column.C if exdir else 0,
        column.partition,
        find_place(ALGORITHMS, column.algorithm),
        column.variant,
    )


def row_label(place: Place, places: Iterable[Place]) -> str:
    """The set, with its model where one set has several."""
    models = {other.model for other in places if other.data == place.data}
    return get_data_label(place.data) + (f", {place.model}" if len(models) > 1 else "")


def _find_variant_keys(groups: Sequence[Group], tuned: tuple[str, ...]) -> dict[str, list[str]]:
    """By algorithm: the keys in which runs differ that would stand in one and the same place."""
    together: dict[tuple[str, Place, Column], list[Spec]] = {}
    for group in groups:
        key = (group.spec.algorithm, get_place(group.spec), get_column(group.spec))
        together.setdefault(key, []).append(group.spec)
    found: dict[str, list[str]] = {}
    for (algorithm, _, _), specs in together.items():
        names = found.setdefault(algorithm, [])
        names += [name for name in find_differing_keys(specs, (*REPEATS, *tuned)) if name not in names]
    return found
