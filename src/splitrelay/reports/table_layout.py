"""Assign settings to rows and columns of tables and to panels of figures, and choose their best rates."""

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
from splitrelay.runs.run_directory import LAST
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
    """A column of the paper's tables. The variant lists the other keys in which runs of one algorithm differ."""

    partition: str
    algorithm: str
    variant: str
    C: int

    @property
    def name(self) -> str:
        """Return the algorithm, and its variant if there are several."""
        return get_algorithm_label(self.algorithm) + (f" ({self.variant})" if self.variant else "")


@dataclass(frozen=True)
class Choice:
    """All runs of one setting, and the best of them by a rule."""

    place: Place
    column: Column
    tried: tuple[Group, ...]
    rule: str = "test"
    last: int = LAST

    @cached_property
    def best(self) -> Group:
        """Return the setting with the highest score; of several, the smallest rate.

        A setting that was not run to its end is chosen only if all are so. A setting of which a seed diverged is chosen
        only if this is so of all of them, and then one of which the fewest diverged.
        """
        complete = [group for group in self.tried if group.complete] or list(self.tried)

        def rank(group: Group) -> tuple[float, float, float]:
            return -len(group.diverged) / len(group.runs), self.score(group), -group.spec.optimiser.eta

        return max(complete, key=rank)

    @property
    def grid(self) -> list[float]:
        """Return the rates that were tried with the clipping of the best one."""
        clip = self.best.spec.optimiser.clip
        return sorted({group.spec.optimiser.eta for group in self.tried if group.spec.optimiser.clip == clip})

    @property
    def on_edge(self) -> bool:
        """Return whether the best rate is on the edge of the grid."""
        return len(self.grid) > 1 and self.best.spec.optimiser.eta in (self.grid[0], self.grid[-1])

    @cached_property
    def seed(self) -> int | None:
        """Return the seed of the search: the paper's first seed if all runs have it, else a common seed, else None."""
        common = set.intersection(*(set(group.seeds) for group in self.tried))
        return next((seed for seed in (*SEEDS, *sorted(common)) if seed in common), None)

    def score(self, group: Group) -> float:
        """Return the mean over the last rounds with the seed of the search (over all seeds if no seed is common)."""
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
    """Return all settings in the order of the tables, with the runs of each (or each rate separately)."""
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
    """Return notes on how rates were chosen."""
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
    """Return the first fields of the record of a choice: its setting and its spec."""
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
    """Return the row of a spec."""
    return Place(get_setting_label(spec), spec.data.name, spec.model.name, spec.K, spec.partition.M)


def get_column(spec: Spec, variant: str = "") -> Column:
    """Return the column of a spec."""
    return Column(get_partition_label(spec.partition), spec.algorithm, variant, spec.partition.C)


def place_key(place: Place) -> tuple[object, ...]:
    """Return a sort key: cross-device before cross-silo, data sets in the paper's order, increasing K."""
    return (-place.M, place.setting, find_place(DATA, place.data), place.model, place.K)


def column_key(column: Column) -> tuple[object, ...]:
    """Return a sort key: ExDir by C, then other partitions; FedAvg, SSL, then the other algorithms."""
    exdir = column.partition.startswith("ExDir")
    return (
        not exdir,
        column.C if exdir else 0,
        column.partition,
        find_place(ALGORITHMS, column.algorithm),
        column.variant,
    )


def row_label(place: Place, places: Iterable[Place]) -> str:
    """Return the data set, with its model if there are several models."""
    models = {other.model for other in places if other.data == place.data}
    return get_data_label(place.data) + (f", {place.model}" if len(models) > 1 else "")


def _find_variant_keys(groups: Sequence[Group], tuned: tuple[str, ...]) -> dict[str, list[str]]:
    """Return for each algorithm the keys in which runs of the same setting differ."""
    together: dict[tuple[str, Place, Column], list[Spec]] = {}
    for group in groups:
        key = (group.spec.algorithm, get_place(group.spec), get_column(group.spec))
        together.setdefault(key, []).append(group.spec)
    found: dict[str, list[str]] = {}
    for (algorithm, _, _), specs in together.items():
        names = found.setdefault(algorithm, [])
        names += [name for name in find_differing_keys(specs, (*REPEATS, *tuned)) if name not in names]
    return found
