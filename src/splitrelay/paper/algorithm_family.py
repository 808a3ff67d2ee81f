"""What matters and what does not: the algorithms of the family in one cell, and one choice changed at a time.

Everything is at the best of its rates. Differences are taken seed against seed; one counts where it has the same sign
with every seed and its mean is a point or more.
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
from splitrelay.reports.summary import compare_seeds, describe_ends, summarise_group
from splitrelay.reports.table_layout import TUNED
from splitrelay.runs.records import has_runs, runs_under
from splitrelay.runs.rows import LAST
from splitrelay.runs.spec import load_spec
from splitrelay.table import Heading, Table

FOLDER = "family/best"
RIVALS = ("ssl", "fedavg")
COUNTS = 1.0  # a difference, in points of percent


@dataclass(frozen=True)
class Difference:
    """One setting against another, with the seeds that both have."""

    ours: Group
    theirs: Group

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """Of every seed; positive where ours is better."""
        return compare_seeds(self.ours, self.theirs)

    @property
    def verdict(self) -> str:
        """Better or worse where it counts; same elsewhere."""
        if not self.points.size or abs(self.points.mean()) < COUNTS or len(set(np.sign(self.points))) > 1:
            return "same"
        return "better" if self.points.mean() > 0 else "worse"

    def __str__(self) -> str:
        if not self.points.size:
            return ""
        spread = f" ± {self.points.std(ddof=1):.1f}" if self.points.size > 1 else ""
        return f"{self.points.mean():+.1f}{spread}"


@dataclass(frozen=True)
class Corner:
    """All that was run on one set with so many clients."""

    data: str
    M: int
    groups: tuple[Group, ...]

    def usual(self, algorithm: str) -> Group | None:
        """The setting of an algorithm from which its others differ least; of two the one nearer to a bare spec."""
        own = [group for group in self.groups if group.spec.algorithm == algorithm]
        bare = load_spec(None, [f"algorithm={algorithm}"])

        def far(group: Group) -> tuple[int, int]:
            return sum(len(find_changed_keys(other, group)) for other in own), len(
                find_differing_keys([group.spec, bare], REPEATS)
            )

        return min(own, key=far, default=None)


def find_changed_keys(ours: Group, theirs: Group) -> list[str]:
    """The keys in which two settings differ, rates and norms aside."""
    return find_differing_keys([ours.spec, theirs.spec], (*REPEATS, *TUNED))


def find_corners(folder: Path) -> tuple[list[Corner], list[str]]:
    """Sets in the paper's order, many clients before few; and what must be said of the runs."""
    runs = runs_under(folder / FOLDER) if has_runs(folder / FOLDER) else []
    if not runs:
        raise InputError(f"nothing of the family was run in {folder}", limit=f"folder {FOLDER}")
    groups, notes = group_runs(runs)
    places = {(group.spec.data.name, group.spec.partition.M) for group in groups}
    found = [
        Corner(data, M, tuple(g for g in groups if (g.spec.data.name, g.spec.partition.M) == (data, M)))
        for data, M in sorted(places, key=lambda place: (-place[1], find_place(DATA, place[0])))
    ]
    return found, [*describe_seeds(groups), *notes, *describe_ends(groups)]


def build_algorithms_table(folder: Path) -> Table:
    """A row for each algorithm in its usual setting among the most clients, against SSL and against FedAvg."""
    found, notes = find_corners(folder)
    found = [corner for corner in found if corner.M == found[0].M]
    names = sorted(
        {g.spec.algorithm for corner in found for g in corner.groups}, key=lambda name: find_place(ALGORITHMS, name)
    )
    heads = [Heading("algorithm", is_label=True)]
    columns = ("accuracy", "above SSL", "above FedAvg")
    heads += [Heading(text, get_data_label(corner.data), is_numeric=True) for corner in found for text in columns]
    rows = [
        [get_algorithm_label(name), *(cell for c in found for cell in _compare_with_rivals(c, name))] for name in names
    ]
    caption = (
        f"{_describe_cell(found[0])}: test accuracy in %, mean ± standard deviation over seeds and the "
        f"last {LAST} rounds (the best rate), and what it is above SSL and above FedAvg, in points, seed against seed."
    )
    records = [_build_record(corner, name) for name in names for corner in found]
    return Table(heads, rows, caption=caption, notes=notes, name="family-algorithms", records=records)


def _describe_cell(corner: Corner) -> str:
    spec = corner.groups[0].spec
    part = spec.partition
    return f"ExDir({part.C}, {part.alpha:g}), M={part.M}, S={spec.S or part.M}, K={spec.K}, {spec.R} rounds"


def _compare_with_rivals(corner: Corner, name: str) -> Iterator[str]:
    own = corner.usual(name)
    yield ("" if own is None else _format_accuracy(own))
    for rival in RIVALS:
        other = corner.usual(rival)
        yield ("" if own is None or other is None or rival == name else str(Difference(own, other)))


def _format_accuracy(group: Group) -> str:
    seen = summarise_group(group)
    return f"{100 * seen.mean:.1f} ± {100 * seen.spread:.1f} (η {group.spec.optimiser.eta:g})"


def _build_record(corner: Corner, name: str) -> dict[str, object]:
    own = corner.usual(name)
    seen = None if own is None else 100 * summarise_group(own).mean
    return {"data": corner.data, "M": corner.M, "algorithm": name, "percent": seen}


@dataclass(frozen=True)
class Change:
    """One thing changed in one algorithm: 'order=sampled instead of order=consumed'."""

    M: int
    algorithm: str
    now: str
    usual: str


def build_choices_table(folder: Path) -> Table:
    """A row for each setting that differs from its algorithm's usual one, on every set."""
    found, notes = find_corners(folder)
    rows: dict[Change, dict[str, Difference]] = {}
    for corner in found:
        for choice, difference in _find_choices(corner):
            rows.setdefault(choice, {})[corner.data] = difference
    sets = list(dict.fromkeys(corner.data for corner in found))
    heads = [Heading(name, is_label=True) for name in ("M", "algorithm", "with", "instead of")]
    heads += [Heading(get_data_label(data), is_numeric=True) for data in sets] + [Heading("matters")]
    caption = (
        "One thing changed, each at the best of its rates: by how many points of test accuracy it is better, seed "
        f"against seed, ± their standard deviation. It matters where it is so with every seed and by {COUNTS:g} point "
        "or more."
    )
    body = [_build_choice_row(choice, seen, sets) for choice, seen in rows.items()]
    records = [_build_choice_record(choice, data, seen[data]) for choice, seen in rows.items() for data in seen]
    return Table(heads, body, caption=caption, notes=notes, name="family-choices", records=records)


def _find_choices(corner: Corner) -> Iterator[tuple[Change, Difference]]:
    for name in sorted(
        {group.spec.algorithm for group in corner.groups}, key=lambda name: -find_place(ALGORITHMS, name)[0]
    ):
        usual = corner.usual(name)
        for group in corner.groups:
            if usual is not None and group.spec.algorithm == name and (keys := find_changed_keys(group, usual)):
                yield (
                    Change(corner.M, name, describe_keys(group.spec, keys), describe_keys(usual.spec, keys)),
                    Difference(group, usual),
                )


def _build_choice_row(choice: Change, seen: dict[str, Difference], sets: Sequence[str]) -> list[str]:
    first = [str(choice.M), get_algorithm_label(choice.algorithm), choice.now, choice.usual]
    numbers = [str(seen[data]) if data in seen else "" for data in sets]
    return [*first, *numbers, summarise_verdicts([found.verdict for found in seen.values()])]


def summarise_verdicts(verdicts: Sequence[str]) -> str:
    """'no', 'better', 'worse', or how it differs from set to set."""
    telling = sorted(set(verdicts) - {"same"})
    if not telling:
        return "no"
    if len(telling) > 1:
        return "better or worse, by the set"
    return telling[0] if "same" not in verdicts else f"{telling[0]} on one set"


def _build_choice_record(choice: Change, data: str, seen: Difference) -> dict[str, object]:
    own = {"data": data, "M": choice.M, "algorithm": choice.algorithm, "with": choice.now, "instead_of": choice.usual}
    return {**own, "points": [round(float(value), 4) for value in seen.points], "verdict": seen.verdict}
