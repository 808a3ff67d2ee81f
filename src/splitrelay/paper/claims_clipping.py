"""What the paper says of clipping, and what our records say to it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from splitrelay.errors import InputError
from splitrelay.paper.evidence import CLIPPING, SEARCH, Evidence, Finding, counted
from splitrelay.reports.labels import algorithm_label, data_label
from splitrelay.reports.seed_groups import Group, grouped
from splitrelay.reports.summary import curve, tail
from splitrelay.runs.records import runs_under
from splitrelay.runs.spec import MAX_NORM


def hurt_by_clipping(records: Evidence) -> Finding:
    """C = 1: is every run worse with a largest norm, and FedAvg's most?"""
    lost: dict[str, list[float]] = {"fedavg": [], "ssl": []}
    words = []
    for free, clipped in _pairs(records, C=1):
        ends = [100 * float(np.mean(tail(curve(group)).values)) for group in (free, clipped)]
        lost[free.spec.algorithm].append(ends[0] - ends[1])
        words.append(f"{_named(free)}: {ends[0]:.1f} without, {ends[1]:.1f} with")
    found = [loss > 0 for losses in lost.values() for loss in losses]
    found += [max(lost["fedavg"]) > max(lost["ssl"])] if found else []
    for place, without, within in _at_their_best(records):
        found.append(without > within)
        words.append(f"{place} at the best rate of either: {without:.1f} without, {within:.1f} with")
    return counted(found, words)


def _at_their_best(records: Evidence) -> list[tuple[str, float, float]]:
    """C = 1, searched: the best end without a largest norm, and with one, for each algorithm and place."""
    ends: dict[str, dict[bool, float]] = {}
    with suppress(InputError):
        for group in grouped(runs_under(records.folder / SEARCH))[0]:
            spec = group.spec
            if spec.partition.C == 1 and group.complete:
                end = 100 * float(np.mean(tail(curve(group)).values))
                place = f"{algorithm_label(spec.algorithm)} on {data_label(spec.data.name)} K={spec.K}"
                best = ends.setdefault(place, {})
                best[spec.optimiser.clip is None] = max(best.get(spec.optimiser.clip is None, 0.0), end)
    return [(place, best[True], best[False]) for place, best in sorted(ends.items()) if len(best) == 2]


def steadied_by_clipping(records: Evidence) -> Finding:
    """C = 2: does no curve fall as deep below what it had reached, after its first quarter?"""
    words, steadier = [], []
    for free, clipped in _pairs(records, C=2):
        falls = [_fall(group) for group in (free, clipped)]
        steadier.append(falls[1] < falls[0])
        words.append(f"{_named(free)}: {falls[0]:.1f} points without, {falls[1]:.1f} with")
    return counted(steadier, words)


def _fall(group: Group) -> float:
    """The deepest of the mean curve, in points."""
    seen = curve(group)
    late = 100 * seen.mean[seen.rounds >= seen.rounds[-1] / 4]
    return float(np.max(np.maximum.accumulate(late) - late))


def _named(group: Group) -> str:
    return f"{algorithm_label(group.spec.algorithm)} η {group.spec.optimiser.eta:g}"


def _pairs(records: Evidence, C: int) -> list[tuple[Group, Group]]:
    """Runs that differ in their largest norm alone: without one, and with the paper's; by algorithm and rate."""
    with suppress(InputError):
        groups = grouped(runs_under(records.folder / CLIPPING))[0]
        here = {_setting(group): group for group in groups if group.spec.partition.C == C}
        free = [(key, group) for key, group in sorted(here.items(), key=lambda pair: pair[0][:2]) if key[-1] is None]
        return [(group, other) for key, group in free if (other := here.get((*key[:-1], MAX_NORM))) is not None]
    return []


def _setting(group: Group) -> tuple[str, float, float | None]:
    return group.spec.algorithm, group.spec.optimiser.eta, group.spec.optimiser.clip
