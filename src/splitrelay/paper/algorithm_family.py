"""Compare all algorithms in one cell, and settings that differ in one key.

Every setting is at its best rate. Differences are computed seed by seed and judged as in `reports.statistics`, with
Holm's correction within a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitrelay.errors import InputError
from splitrelay.reports.labels import ALGORITHMS, DATA, find_place, get_algorithm_label, get_data_label
from splitrelay.reports.seed_groups import (
    REPEATS,
    Group,
    describe_keys,
    describe_seeds,
    find_differing_keys,
    group_runs,
)
from splitrelay.reports.statistics import AHEAD, BEHIND, EVEN, MARGIN, UNDECIDED, judge_differences
from splitrelay.reports.summary import compare_seeds, describe_ends, summarise_group
from splitrelay.reports.table_layout import TUNED
from splitrelay.runs.records import has_runs, runs_under
from splitrelay.runs.run_directory import LAST
from splitrelay.runs.spec import load_spec
from splitrelay.table import Heading, Table

FOLDER = "family/best"
RIVALS = ("ssl", "fedavg")
VERDICTS = {AHEAD: "better", BEHIND: "worse", EVEN: "same", UNDECIDED: UNDECIDED}


@dataclass(frozen=True)
class Difference:
    """The difference between two settings over their common seeds."""

    ours: Group
    theirs: Group

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """Return the difference of every seed. It is positive if ours is better."""
        return compare_seeds(self.ours, self.theirs)

    def __str__(self) -> str:
        if not self.points.size:
            return ""
        spread = f" ± {self.points.std(ddof=1):.1f}" if self.points.size > 1 else ""
        return f"{self.points.mean():+.1f}{spread}"


@dataclass(frozen=True)
class FamilyRuns:
    """All runs on one data set with one number of clients."""

    data: str
    M: int
    groups: tuple[Group, ...]

    def get_baseline(self, algorithm: str) -> Group | None:
        """Return the setting of an algorithm that differs least from its others, and then from the default."""
        own = [group for group in self.groups if group.spec.algorithm == algorithm]
        bare = load_spec(None, [f"algorithm={algorithm}"])

        def far(group: Group) -> tuple[int, int]:
            return sum(len(find_changed_keys(other, group)) for other in own), len(
                find_differing_keys([group.spec, bare], REPEATS)
            )

        return min(own, key=far, default=None)


def find_changed_keys(ours: Group, theirs: Group) -> list[str]:
    """Return the keys in which two settings differ, without rates and norms."""
    return find_differing_keys([ours.spec, theirs.spec], (*REPEATS, *TUNED))


def find_family_runs(folder: Path) -> tuple[list[FamilyRuns], list[str]]:
    """Return the runs by data set and number of clients, in the paper's order, and notes about them."""
    runs = runs_under(folder / FOLDER) if has_runs(folder / FOLDER) else []
    if not runs:
        raise InputError(f"no runs of the study family in {folder}", limit=f"folder {FOLDER}")
    groups, notes = group_runs(runs)
    places = {(group.spec.data.name, group.spec.partition.M) for group in groups}
    found = [
        FamilyRuns(data, M, tuple(g for g in groups if (g.spec.data.name, g.spec.partition.M) == (data, M)))
        for data, M in sorted(places, key=lambda place: (-place[1], find_place(DATA, place[0])))
    ]
    return found, [*describe_seeds(groups), *notes, *describe_ends(groups)]


def build_algorithms_table(folder: Path) -> Table:
    """Build one row per algorithm in its baseline setting, compared with SSL and with FedAvg."""
    found, notes = find_family_runs(folder)
    found = [family for family in found if family.M == found[0].M]
    names = sorted(
        {g.spec.algorithm for family in found for g in family.groups}, key=lambda name: find_place(ALGORITHMS, name)
    )
    heads = [Heading("algorithm", is_label=True)]
    columns = ("accuracy", "above SSL", "above FedAvg")
    heads += [Heading(text, get_data_label(family.data), is_numeric=True) for family in found for text in columns]
    rows = [
        [get_algorithm_label(name), *(cell for c in found for cell in _compare_with_rivals(c, name))] for name in names
    ]
    caption = (
        f"{_describe_cell(found[0])}: test accuracy in %, mean ± standard deviation over seeds and the "
        f"last {LAST} rounds (at the best rate), and the difference to SSL and to FedAvg in points, seed by seed, ± "
        "standard deviation. These differences were not tested."
    )
    records = [_build_record(family, name) for name in names for family in found]
    return Table(heads, rows, caption=caption, notes=notes, name="family-algorithms", records=records)


def _describe_cell(family: FamilyRuns) -> str:
    spec = family.groups[0].spec
    part = spec.partition
    return f"ExDir({part.C}, {part.alpha:g}), M={part.M}, S={spec.S or part.M}, K={spec.K}, {spec.R} rounds"


def _compare_with_rivals(family: FamilyRuns, name: str) -> Iterator[str]:
    own = family.get_baseline(name)
    yield ("" if own is None else _format_accuracy(own))
    for rival in RIVALS:
        other = family.get_baseline(rival)
        yield ("" if own is None or other is None or rival == name else str(Difference(own, other)))


def _format_accuracy(group: Group) -> str:
    seen = summarise_group(group)
    return f"{100 * seen.mean:.1f} ± {100 * seen.spread:.1f} (η {group.spec.optimiser.eta:g})"


def _build_record(family: FamilyRuns, name: str) -> dict[str, object]:
    own = family.get_baseline(name)
    seen = None if own is None else 100 * summarise_group(own).mean
    return {"data": family.data, "M": family.M, "algorithm": name, "percent": seen}


@dataclass(frozen=True)
class Change:
    """A change of one algorithm, for example 'order=sampled' instead of 'order=consumed'."""

    M: int
    algorithm: str
    now: str
    baseline: str


def build_choices_table(folder: Path) -> Table:
    """Build one row per setting that differs from the baseline of its algorithm, with all data sets."""
    found, notes = find_family_runs(folder)
    rows: dict[Change, dict[str, Difference]] = {}
    for family in found:
        for choice, difference in _find_choices(family):
            rows.setdefault(choice, {})[family.data] = difference
    sets = list(dict.fromkeys(family.data for family in found))
    heads = [Heading(name, is_label=True) for name in ("M", "algorithm", "with", "instead of")]
    heads += [Heading(get_data_label(data), is_numeric=True) for data in sets] + [Heading("matters")]
    caption = (
        "One key changed, each setting at its best rate: the gain in points of test accuracy, seed by seed, ± standard "
        f"deviation. A change is better or worse after Holm's correction for this table, the same within {MARGIN:g} "
        "points, or undecided."
    )
    keys = [(choice, data) for choice, seen in rows.items() for data in seen]
    judged = judge_differences([rows[choice][data].points.tolist() for choice, data in keys])
    verdicts = {key: VERDICTS[each.verdict] for key, each in zip(keys, judged, strict=True)}
    body = [_build_choice_row(choice, seen, verdicts, sets) for choice, seen in rows.items()]
    records = [_build_choice_record(*key, rows[key[0]][key[1]], verdicts[key]) for key in keys]
    return Table(heads, body, caption=caption, notes=notes, name="family-choices", records=records)


def _find_choices(family: FamilyRuns) -> Iterator[tuple[Change, Difference]]:
    for name in sorted(
        {group.spec.algorithm for group in family.groups}, key=lambda name: -find_place(ALGORITHMS, name)[0]
    ):
        baseline = family.get_baseline(name)
        for group in family.groups:
            if baseline is not None and group.spec.algorithm == name and (keys := find_changed_keys(group, baseline)):
                yield (
                    Change(family.M, name, describe_keys(group.spec, keys), describe_keys(baseline.spec, keys)),
                    Difference(group, baseline),
                )


def _build_choice_row(
    choice: Change, seen: dict[str, Difference], verdicts: dict[tuple[Change, str], str], sets: Sequence[str]
) -> list[str]:
    first = [str(choice.M), get_algorithm_label(choice.algorithm), choice.now, choice.baseline]
    numbers = [str(seen[data]) if data in seen else "" for data in sets]
    return [*first, *numbers, summarise_verdicts([verdicts[choice, data] for data in seen])]


def summarise_verdicts(verdicts: Sequence[str]) -> str:
    """Return 'same', 'better', 'worse', 'undecided', or how the result depends on the data set."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    telling = sorted(set(verdicts) - {"same", UNDECIDED})
    if len(telling) > 1:
        return "better or worse, depending on the data set"
    return f"{telling[0]} on one data set" if telling else "undecided or the same"


def _build_choice_record(choice: Change, data: str, seen: Difference, verdict: str) -> dict[str, object]:
    own = {
        "data": data,
        "M": choice.M,
        "algorithm": choice.algorithm,
        "with": choice.now,
        "instead_of": choice.baseline,
    }
    return {**own, "points": [round(float(value), 4) for value in seen.points], "verdict": verdict}
