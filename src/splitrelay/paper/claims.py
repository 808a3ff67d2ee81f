"""Check the paper's claims about its experiments against our records and against its own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splitrelay.errors import InputError
from splitrelay.paper.cells import CELLS, Cell
from splitrelay.paper.evidence import (
    CLIPPING,
    DEVICES,
    OPEN,
    SEARCH,
    SILOS,
    SMALL_NET,
    TUNED,
    Evidence,
    Finding,
    summarise_answers,
    summarise_means,
)
from splitrelay.paper.summary_table import format_range
from splitrelay.reports.head_to_head import Comparison
from splitrelay.reports.labels import get_algorithm_label, get_data_label
from splitrelay.reports.seed_groups import Group, group_runs
from splitrelay.reports.statistics import EVEN, UNDECIDED
from splitrelay.reports.summary import build_curve, select_final_values, select_tail, summarise_group
from splitrelay.reports.table_layout import Choice
from splitrelay.runs.records import runs_under
from splitrelay.runs.spec import MAX_NORM
from splitrelay.table import Heading, Table

Test = Callable[[list[float]], bool]


def rises_then_falls(ends: Sequence[float]) -> bool:
    """Return whether values rise from the first to the second and are lower at the end."""
    return ends[0] < ends[1] and ends[1] > ends[-1]


def falls_far(ends: Sequence[float]) -> bool:
    """Return whether the last value is more than five points below the first."""
    return ends[-1] < ends[0] - 5


def falls_throughout(ends: Sequence[float]) -> bool:
    """Return whether no value is above the previous one."""
    return list(ends) == sorted(ends, reverse=True)


def rises_throughout(ends: Sequence[float]) -> bool:
    """Return whether no value is below the previous one."""
    return list(ends) == sorted(ends)


def describe_along_K(algorithm: str, C: int, holds: Test) -> str:
    """Return the printed accuracies with ten clients by K, for example 'no: 80.5 80.9 81.2 81.1'."""
    cells = sorted(find_printed("cross-silo", C), key=lambda cell: cell.K)
    ends = [float(getattr(cell, algorithm).accuracy) for cell in cells]
    return f"{_format_answer(holds(ends))}: {' '.join(f'{end:.1f}' for end in ends)}"


def describe_printed_gaps(cells: Sequence[Cell], holds: Callable[[float], bool]) -> str:
    """Return the printed range of SSL minus FedAvg, for example 'yes: +37.6 to +72.2'."""
    found = sorted(cell.ssl.accuracy - cell.fedavg.accuracy for cell in cells)
    return f"{_format_answer(all(map(holds, found)))}: {found[0]:+.1f} to {found[-1]:+.1f}"


def describe_sooner(cells: Sequence[Cell]) -> str:
    """Return whether SSL reaches the goal in fewer rounds in every cell."""
    rounds = [(cell.ssl.rounds, cell.fedavg.rounds) for cell in cells]
    return _format_answer(all(ssl is not None and (fedavg is None or ssl < fedavg) for ssl, fedavg in rounds))


def describe_silos(algorithm: str, C: int) -> str:
    """Return whether an algorithm is better with ten clients than with 10 of 500, at every common K."""
    silos = {cell.K: getattr(cell, algorithm).accuracy for cell in find_printed("cross-silo", C)}
    devices = {cell.K: getattr(cell, algorithm).accuracy for cell in find_printed("cross-device", C, "cifar10")}
    both = [(silos[K], devices[K]) for K in silos if K in devices]
    return f"{_format_answer(all(silo > device for silo, device in both))}: {_format_pairs(both)}"


def describe_worse_at_one() -> str:
    """Return whether SSL with ten clients is worse at C = 1 than at C = 2, at every K."""
    ones, twos = ({cell.K: cell.ssl.accuracy for cell in find_printed("cross-silo", C)} for C in (1, 2))
    both = [(ones[K], twos[K]) for K in ones]
    return f"{_format_answer(all(one < two for one, two in both))}: {_format_pairs(both)}"


def find_printed(setting: str, C: int, *sets: str) -> list[Cell]:
    """Return the cells of a setting, optionally for some data sets only."""
    return [
        cell for cell in CELLS.values() if (cell.setting, cell.C) == (setting, C) and (not sets or cell.data in sets)
    ]


def _format_pairs(both: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{one:.1f} against {two:.1f}" for one, two in both)


def _format_answer(holds: bool) -> str:
    return "yes" if holds else "no"


def check_clipping_hurts(records: Evidence) -> Finding:
    """Check for C = 1 whether every run is worse with clipping, FedAvg most of all."""
    lost: dict[str, list[float]] = {"fedavg": [], "ssl": []}
    words = []
    for free, clipped in _find_pairs(records, C=1):
        ends = [100 * float(np.mean(select_final_values(group))) for group in (free, clipped)]
        lost[free.spec.algorithm].append(ends[0] - ends[1])
        words.append(f"{_format_group(free)}: {ends[0]:.1f} without, {ends[1]:.1f} with")
    found = [loss > 0 for losses in lost.values() for loss in losses]
    found += [max(lost["fedavg"]) > max(lost["ssl"])] if found else []
    for place, without, within in _find_best_ends(records):
        found.append(without > within)
        words.append(f"{place} at the best rate of either: {without:.1f} without, {within:.1f} with")
    return summarise_means(found, words)


def _find_best_ends(records: Evidence) -> list[tuple[str, float, float]]:
    """Return for C = 1 the best final accuracy without and with clipping, for each algorithm and setting."""
    ends: dict[str, dict[bool, float]] = {}
    with suppress(InputError):
        for group in group_runs(runs_under(records.folder / SEARCH))[0]:
            spec = group.spec
            if spec.partition.C == 1 and group.complete:
                end = 100 * float(np.mean(select_final_values(group)))
                place = f"{get_algorithm_label(spec.algorithm)} on {get_data_label(spec.data.name)} K={spec.K}"
                best = ends.setdefault(place, {})
                best[spec.optimiser.clip is None] = max(best.get(spec.optimiser.clip is None, 0.0), end)
    return [(place, best[True], best[False]) for place, best in sorted(ends.items()) if len(best) == 2]


def check_clipping_steadies(records: Evidence) -> Finding:
    """Check for C = 2 whether clipping reduces the largest drop of each curve after its first quarter."""
    words, steadier = [], []
    for free, clipped in _find_pairs(records, C=2):
        falls = [_compute_fall(group) for group in (free, clipped)]
        steadier.append(falls[1] < falls[0])
        words.append(f"{_format_group(free)}: {falls[0]:.1f} points without, {falls[1]:.1f} with")
    return summarise_means(steadier, words)


def _compute_fall(group: Group) -> float:
    """Return the largest drop of the mean curve, in points."""
    seen = build_curve(group)
    late = 100 * seen.mean[seen.rounds >= seen.rounds[-1] / 4]
    return float(np.max(np.maximum.accumulate(late) - late))


def _format_group(group: Group) -> str:
    return f"{get_algorithm_label(group.spec.algorithm)} η {group.spec.optimiser.eta:g}"


def _find_pairs(records: Evidence, C: int) -> list[tuple[Group, Group]]:
    """Return pairs of runs without and with the paper's clipping, by algorithm and rate."""
    with suppress(InputError):
        groups = group_runs(runs_under(records.folder / CLIPPING))[0]
        here = {_get_setting(group): group for group in groups if group.spec.partition.C == C}
        free = [(key, group) for key, group in sorted(here.items(), key=lambda pair: pair[0][:2]) if key[-1] is None]
        return [(group, other) for key, group in free if (other := here.get((*key[:-1], MAX_NORM))) is not None]
    return []


def _get_setting(group: Group) -> tuple[str, float, float | None]:
    return group.spec.algorithm, group.spec.optimiser.eta, group.spec.optimiser.clip


WHERE = {
    DEVICES: "at the paper's rates",
    TUNED: "tuned",
    SMALL_NET: "a small network on CIFAR-10, tuned",
    SILOS: "ten clients, tuned",
}
FAR = 10  # points
SHORTER = 400  # rounds of the paper's C=2 cells; those with C=1 have 1000


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, its section, and the function that checks it."""

    says: str
    where: str
    check: Callable[[Evidence], Finding]
    own: str = ""  # the answer of its own tables


def _check_studies(found: dict[str, list[Comparison]], holds: Callable[[Comparison], bool | None]) -> Finding:
    """Return the answer to one question over several studies."""
    ran = {study: pairs for study, pairs in found.items() if pairs}
    words = [f"{WHERE[study]}: {_count_verdicts(pairs)}" for study, pairs in ran.items()]
    return summarise_answers([holds(pair) for pairs in ran.values() for pair in pairs], words)


def _count_verdicts(pairs: Sequence[Comparison]) -> str:
    """Return, for example, 'SSL ahead in 2 (+26.9 to +35.3), undecided in 2'."""
    words = []
    for name in ("ssl", "fedavg"):
        ahead = [pair for pair in pairs if pair.winner == name]
        words += [f"{get_algorithm_label(name)} ahead in {len(ahead)} ({format_range(ahead)})"] if ahead else []
    for verdict in (EVEN, UNDECIDED):
        number = sum(pair.judgement.verdict == verdict for pair in pairs)
        words += [f"{verdict} in {number}"] * bool(number)
    return ", ".join(words)


def check_extreme_gap(records: Evidence) -> Finding:
    """Check for C = 1 across devices whether SSL is ahead, by ten points or more in the mean."""
    found = {study: records.select(study, C=1) for study in (DEVICES, TUNED, SMALL_NET)}
    return _check_studies(found, lambda pair: _is_ahead(pair, "ssl", FAR))


def check_ahead(records: Evidence) -> Finding:
    """Check for C = 1 whether SSL is ahead."""
    found = {study: records.select(study, C=1) for study in WHERE}
    return _check_studies(found, lambda pair: _is_ahead(pair, "ssl"))


def check_moderate_gap(records: Evidence) -> Finding:
    """Check for C = 2 across devices whether neither is ahead by ten points: the corrected interval is within ten."""
    found = {study: records.select(study, C=2) for study in (DEVICES, TUNED, SMALL_NET)}
    return _check_studies(found, _is_moderate)


def check_fashion(records: Evidence) -> Finding:
    """Check for C = 2 on Fashion-MNIST whether FedAvg is ahead."""
    found = {study: records.select(study, C=2, data="fashion-mnist") for study in (DEVICES, TUNED)}
    return _check_studies(found, lambda pair: _is_ahead(pair, "fedavg"))


def _is_ahead(pair: Comparison, name: str, least: float = 0.0) -> bool | None:
    """Return whether an algorithm is ahead, by `least` points in the mean; None if it is undecided."""
    return None if pair.judgement.verdict == UNDECIDED else pair.winner == name and abs(pair.gap) >= least


def _is_moderate(pair: Comparison) -> bool | None:
    low, high = pair.judgement.corrected.low, pair.judgement.corrected.high
    if low > -FAR and high < FAR:
        return True
    return False if low >= FAR or high <= -FAR else None


def check_faster(*studies: str) -> Callable[[Evidence], Finding]:
    """Return a check for C = 1 whether SSL reaches 30 % in fewer rounds."""

    def check(records: Evidence) -> Finding:
        found = []
        for study in studies:
            for pair in records.select(study, C=1):
                ssl, fedavg = (summarise_group(choice.best).rounds for choice in (pair.ssl, pair.fedavg))
                found.append((_format_place(pair), WHERE[study], ssl, fedavg))
        is_sooner = [ssl is not None and (fedavg is None or ssl < fedavg) for _, _, ssl, fedavg in found]
        words = [
            f"{place}, {where}: {_format_rounds(ssl)} against {_format_rounds(fedavg)}"
            for place, where, ssl, fedavg in found
        ]
        return summarise_means(is_sooner, words)

    return check


def check_fewer_rounds(records: Evidence) -> Finding:
    """Check whether SSL is worse at C = 2 than at C = 1 only because it ran fewer rounds."""
    words, explained = [], []
    for one, two in _pair_comparisons(records.select(DEVICES, C=1), records.select(DEVICES, C=2)):
        ends = [_compute_percent(one.ssl), _compute_percent(one.ssl, SHORTER), _compute_percent(two.ssl)]
        explained.append(ends[0] > ends[2] >= ends[1])
        words.append(
            f"{_format_place(one)}: C=1 {ends[0]:.1f}, after {SHORTER} rounds {ends[1]:.1f}; C=2 {ends[2]:.1f}"
        )
    return summarise_means(explained, words)


def check_full_participation(records: Evidence) -> Finding:
    """Check for C = 1 whether FedAvg is better with ten clients that all take part than with 10 of 500."""
    words, better = [], []
    for device, silo in _pair_comparisons(records.select(TUNED, C=1), records.select(SILOS, C=1)):
        ends = [_compute_percent(silo.fedavg), _compute_percent(device.fedavg, silo.fedavg.best.spec.R)]
        better.append(ends[0] > ends[1])
        words.append(f"{_format_place(device)}: {ends[0]:.1f} against {ends[1]:.1f}")
    return summarise_means(better, words)


def check_heterogeneity(records: Evidence) -> Finding:
    """Check for ten clients whether SSL is worse at C = 1 than at C = 2."""
    words, worse = [], []
    for one, two in _pair_comparisons(records.select(SILOS, C=1), records.select(SILOS, C=2)):
        ends = [_compute_percent(pair.ssl) for pair in (one, two)]
        worse.append(ends[0] < ends[1])
        words.append(f"{_format_place(one)}: {ends[0]:.1f} and {ends[1]:.1f}")
    return summarise_means(worse, words)


def check_by_K(algorithm: str, C: int, holds: Callable[[list[float]], bool]) -> Callable[[Evidence], Finding]:
    """Return a check for ten clients whether accuracy depends on K as claimed."""

    def check(records: Evidence) -> Finding:
        words, answers = [], []
        for data in dict.fromkeys(pair.place.data for pair in records.select(SILOS, C=C)):
            pairs = sorted(records.select(SILOS, C=C, data=data), key=lambda pair: pair.factors["K"])
            ends = [_compute_percent(getattr(pair, algorithm)) for pair in pairs]
            answers.append(len(ends) > 1 and holds(ends))
            steps = " ".join(f"{pair.factors['K']:g}" for pair in pairs)
            words.append(f"{get_data_label(data)}, K = {steps}: {' '.join(f'{end:.1f}' for end in ends)}")
        return summarise_means(answers, words)

    return check


def _pair_comparisons(some: Sequence[Comparison], others: Sequence[Comparison]) -> list[tuple[Comparison, Comparison]]:
    """Return pairs of comparisons with the same data and K."""
    return [
        (one, two) for one in some for two in others if (one.place.data, one.place.K) == (two.place.data, two.place.K)
    ]


def _compute_percent(choice: Choice, until: int | None = None) -> float:
    """Return the mean over seeds and the last rounds, or the last rounds up to `until`."""
    if until is None:
        return 100 * float(np.mean(select_final_values(choice.best, choice.last)))
    seen = build_curve(choice.best)
    return 100 * float(np.mean(select_tail(seen.at(seen.rounds <= until), choice.last).values))


def _format_place(pair: Comparison) -> str:
    return f"{get_data_label(pair.place.data)} K={pair.place.K}"


def _format_rounds(found: int | None) -> str:
    return "never" if found is None else str(found)


ONE, TWO = (find_printed("cross-device", C) for C in (1, 2))
CLAIMS = (
    Claim(
        "On extremely heterogeneous data (C = 1) SSL beats FedAvg by far across devices.",
        "abstract, 5",
        check_extreme_gap,
        describe_printed_gaps(ONE, lambda gap: gap >= 10),
    ),
    Claim(
        "On such data (C = 1) SSL beats FedAvg.",
        "abstract, 5",
        check_ahead,
        describe_printed_gaps(ONE, lambda gap: gap > 0),
    ),
    Claim(
        "On such data (C = 1) SSL needs fewer rounds to 30 % across devices.",
        "table",
        check_faster(DEVICES, TUNED, SMALL_NET),
        describe_sooner(ONE),
    ),
    Claim(
        "On such data (C = 1) SSL needs fewer rounds to 30 % among silos.",
        "table",
        check_faster(SILOS),
        describe_sooner(find_printed("cross-silo", 1)),
    ),
    Claim(
        "On moderately heterogeneous data (C = 2) neither is clearly ahead across devices.",
        "5",
        check_moderate_gap,
        describe_printed_gaps(TWO, lambda gap: abs(gap) < 10),
    ),
    Claim(
        "On Fashion-MNIST with C = 2 FedAvg is ahead.",
        "5, table",
        check_fashion,
        describe_printed_gaps(find_printed("cross-device", 2, "fashion-mnist"), lambda gap: gap < 0),
    ),
    Claim(
        "SSL is worse at C = 2 than at C = 1 only because it ran 400 rounds instead of 1000.", "5", check_fewer_rounds
    ),
    Claim(
        "FedAvg does better where all clients take part (C = 1).",
        "5",
        check_full_participation,
        describe_silos("fedavg", 1),
    ),
    Claim(
        "Heterogeneity hurts SSL: it is worse at C = 1 than at C = 2 (silos).",
        "5",
        check_heterogeneity,
        describe_worse_at_one(),
    ),
    *(
        Claim(f"{words} (silos, C = {C}).", "5", check_by_K(algorithm, C, holds), describe_along_K(algorithm, C, holds))
        for words, algorithm, C, holds in (
            ("SSL gains from K = 5 to 10, then loses", "ssl", 1, rises_then_falls),
            ("SSL gains from K = 5 to 10, then loses", "ssl", 2, rises_then_falls),
            ("FedAvg loses heavily as K grows", "fedavg", 1, falls_far),
            ("FedAvg loses with every step of K", "fedavg", 1, falls_throughout),
            ("FedAvg gains with every step of K", "fedavg", 2, rises_throughout),
        )
    ),
    Claim("Clipping hurts both where C = 1, FedAvg above all.", "appendix", check_clipping_hurts),
    Claim("Clipping makes both steadier where C = 2 (falls of the curve).", "appendix", check_clipping_steadies),
)


def build_claims_table(folder: Path) -> Table:
    """Build one row per claim with its answer."""
    records = Evidence(folder)
    found = [(claim, claim.check(records)) for claim in CLAIMS]
    if all(finding.holds == OPEN for _, finding in found):
        raise InputError(
            f"no claim of the paper can be checked with the records in {folder}", limit=f"folders {DEVICES}, {TUNED}"
        )
    heads = [Heading(name) for name in ("the paper says", "where", "its own tables", "here", "our results")]
    rows = [[claim.says, claim.where, claim.own, finding.holds, finding.seen] for claim, finding in found]
    caption = (
        "The paper's claims in our words. Yes: in every setting that was run; in part: in some. Ahead: after Holm's "
        f"correction for {records.tests} comparisons; gaps are SSL minus FedAvg in points of test accuracy. By far, "
        "and clearly: by ten points. (means): the answer compares means over seeds, which were not tested. Its own "
        "tables: the answer of the paper's tables to the same question (for silos, CIFAR-10 only)."
    )
    answers = [{"claim": c.says, "where": c.where, "own": c.own, "holds": f.holds, "seen": f.seen} for c, f in found]
    return Table(heads, rows, caption=caption, name="claims", records=answers)
