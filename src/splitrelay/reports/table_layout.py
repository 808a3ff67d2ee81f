"""Assign settings to rows and columns of tables and to panels of figures, and choose their best rates."""

from __future__ import annotations

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
    is_splitfed_v1,
)
from splitrelay.reports.seed_groups import REPEATS, Group, describe_keys, find_differing_keys
from splitrelay.reports.statistics import Candidate, choose_candidate
from splitrelay.reports.summary import compute_run_accuracy, find_last_round
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.runs.spec import Spec

# The field by which a rate is chosen. The paper uses the test set, with one seed.
RULES = {"test": "test_accuracy", "validation": "validation_accuracy"}
AUTO = "auto"  # validation if all runs have it, else test
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
    """All runs of one setting, and the rate and clipping norm that a rule chooses.

    Tuning seeds decide the choice: `tuning` if it is given, else the seeds with which every rate was run. The reported
    seeds are the other seeds of the chosen rate. If it has no others, the tuning seeds are reported, with a note.

    Attributes:
        rule: The field that decides, "test" or "validation".
        last: The largest number of rounds over which accuracies are averaged.
        tuning: The tuning seeds. They are never reported.
    """

    place: Place
    column: Column
    tried: tuple[Group, ...]
    rule: str = "test"
    last: int = LAST
    tuning: tuple[int, ...] = ()

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that decide, in the order of the runs; none if no seed was run with every rate."""
        common = [seed for seed in self.tried[0].seeds if all(seed in group.seeds for group in self.tried)]
        return tuple(seed for seed in common if not self.tuning or seed in self.tuning)

    @cached_property
    def chosen(self) -> Group:
        """Return the runs of the chosen rate, with all seeds.

        The one-standard-error rule decides (`choose_candidate`). A rate that was not run to its end is chosen only if
        this is so of all of them. A rate with diverged seeds is chosen only if the others have as many.
        """
        complete = [group for group in self.tried if group.complete] or list(self.tried)
        candidates = [self._build_candidate(group) for group in complete]
        return complete[candidates.index(choose_candidate(candidates))]

    @cached_property
    def best(self) -> Group:
        """Return the runs of the chosen rate with the reported seeds."""
        spent = self.tuning or (self.seeds if len(self.tried) > 1 else ())
        others = tuple(run for run in self.chosen.runs if run.spec.seed not in spent)
        return Group(others) if others else self.chosen

    @property
    def reports_tuning_seeds(self) -> bool:
        """Return whether a seed that decided is also reported."""
        return len(self.tried) > 1 and (not self.seeds or bool({*self.seeds} & {*self.best.seeds}))

    @property
    def grid(self) -> list[float]:
        """Return the rates that were tried with the clipping of the best one."""
        clip = self.best.spec.optimiser.clip
        return sorted({group.spec.optimiser.eta for group in self.tried if group.spec.optimiser.clip == clip})

    @property
    def on_edge(self) -> bool:
        """Return whether the best rate is on the edge of the grid."""
        return len(self.grid) > 1 and self.best.spec.optimiser.eta in (self.grid[0], self.grid[-1])

    def score(self, group: Group) -> float:
        """Return the mean accuracy of the tuning seeds (of all seeds if no seed is common), -inf if there is none."""
        return self._build_candidate(group).mean

    def _build_candidate(self, group: Group) -> Candidate:
        runs = [run for run in group.runs if not self.seeds or run.spec.seed in self.seeds]
        field = RULES[self.rule]
        scores = [compute_run_accuracy(run, self.last, field) for run in runs]
        lacking = [run for run in runs if field not in run.rows[-1]]
        if lacking:
            hint = "Run it with validation=0.1, or choose by --tune test."
            raise InputError(f"{lacking[0].path} has no {field}", hint=hint)
        step = group.spec.optimiser
        return Candidate(step.eta, step.clip, tuple(scores), sum(run.has_diverged for run in runs))


def choose_runs(
    groups: Sequence[Group],
    rule: str = AUTO,
    last: int = LAST,
    *,
    tuning: Sequence[int] = (),
    every_rate: bool = False,
) -> list[Choice]:
    """Return all settings in the order of the tables, with the runs of each (or each rate separately).

    Where FedAvg was run with both placements, FedAvg over a cut is called SplitFed V1. Elsewhere it keeps its name,
    because the accuracies of both are the same.

    Args:
        groups: The runs, by setting and rate.
        rule: "test", "validation", or "auto": validation if all runs have it.
        last: The largest number of rounds over which accuracies are averaged.
        tuning: Seeds that only decide between rates.
        every_rate: Whether each rate is a setting of its own.
    """
    rule = choose_rule(groups, rule)
    columns = [get_column(group.spec) for group in groups]
    if len({group.spec.placement for group in groups if group.spec.algorithm == "fedavg"}) > 1:
        columns = [name_splitfed(column, group.spec) for column, group in zip(columns, groups, strict=True)]
    extra = _find_variant_keys(groups, columns, TUNED if not every_rate else ())
    tried: dict[tuple[Place, Column], list[Group]] = {}
    for group, column in zip(groups, columns, strict=True):
        variant = describe_keys(group.spec, extra.get(column.algorithm, []))
        tried.setdefault((get_place(group.spec), replace(column, variant=variant)), []).append(group)
    choices = [Choice(*key, tuple(found), rule, last, tuple(tuning)) for key, found in tried.items()]
    return sorted(choices, key=lambda choice: (place_key(choice.place), column_key(choice.column)))


def choose_rule(groups: Iterable[Group], rule: str) -> str:
    """Return "test" or "validation". "auto" is validation if all runs have it."""
    if rule not in (AUTO, *RULES):
        raise UnknownName("rule", rule, (AUTO, *RULES))
    if rule != AUTO:
        return rule
    has_validation = all(RULES["validation"] in run.rows[-1] for group in groups for run in group.runs)
    return "validation" if has_validation else "test"


def describe_choices(choices: Iterable[Choice], what: str = "shown") -> list[str]:
    """Return notes on how rates were chosen, and on what weakens the choice."""
    several = [choice for choice in choices if len(choice.tried) > 1]
    if not several:
        return []
    used = sorted({choice.seeds for choice in several})
    rounds = describe_final_rounds([find_last_round(choice.chosen) for choice in several], several[0].last)
    with_seeds = "with different seeds"
    if len(used) == 1 and used[0]:
        with_seeds = f"of seed{'s' * (len(used[0]) > 1)} {', '.join(map(str, used[0]))}"
    notes = [
        f"If several rates were tried, the best one is {what}: by the mean {several[0].rule} accuracy over the {rounds}"
        f" {with_seeds}, with the one-standard-error rule (clipping first, then the smaller rate)."
    ]
    if several[0].rule == "test":
        notes.append("Rates were chosen on the test set, not on validation data.")
    if max(map(len, used)) == 1:
        notes.append("One tuning seed has no standard error, so that the highest value was chosen.")
    overlap = sum(choice.reports_tuning_seeds for choice in several)
    if overlap:
        notes.append(f"In {overlap} of {len(several)} choices the tuning seeds are also reported, which favours them.")
    edges = sum(choice.on_edge for choice in several)
    return notes + [f"{edges} of {len(several)} best rates lie on the edge of their grid."] * bool(edges)


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


def name_splitfed(column: Column, spec: Spec) -> Column:
    """Return the column with the name SplitFed V1 if the spec is FedAvg over a cut."""
    return replace(column, algorithm="splitfed-v1") if is_splitfed_v1(spec) else column


def _find_variant_keys(
    groups: Sequence[Group], columns: Sequence[Column], tuned: tuple[str, ...]
) -> dict[str, list[str]]:
    """Return for each algorithm the keys in which runs of the same setting differ."""
    together: dict[tuple[Place, Column], list[Spec]] = {}
    for group, column in zip(groups, columns, strict=True):
        together.setdefault((get_place(group.spec), column), []).append(group.spec)
    found: dict[str, list[str]] = {}
    for (_, column), specs in together.items():
        names = found.setdefault(column.algorithm, [])
        names += [name for name in find_differing_keys(specs, (*REPEATS, *tuned)) if name not in names]
    return found
