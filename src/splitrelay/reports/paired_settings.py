"""Compare settings of any kind over paired seeds, for `splitrelay compare` and `splitrelay grid`.

Two folders of runs are compared setting by setting. The keys that vary within a folder (for example K or C) say which
setting of one folder belongs to which of the other. Rates and clipping norms are not part of a setting: the best of
each setting is chosen as in all tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import (
    build_judgement_record,
    build_side_cells,
    build_side_record,
    describe_columns,
    describe_verdict,
    describe_verdicts,
    format_interval,
)
from splitrelay.reports.seed_groups import REPEATS, Group, describe_keys, find_differing_keys, group_runs
from splitrelay.reports.statistics import AHEAD, BEHIND, MARGIN, judge_differences
from splitrelay.reports.summary import compare_seeds, describe_ends, find_last_round
from splitrelay.reports.table_layout import AUTO, TUNED, Choice, choose_rule, describe_choices, get_column, get_place
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, describe_final_rounds
from splitrelay.table import Cell, Heading, Table


@dataclass(frozen=True)
class Pair:
    """Two groups of runs that are compared over their common seeds.

    Attributes:
        setting: What both have in common, for example "K=10". It may be empty.
        names: What distinguishes them, for example ("algorithm=ssl", "algorithm=fedavg").
    """

    setting: str
    names: tuple[str, str]
    ours: Group
    theirs: Group


def pair_folders(
    ours: Sequence[Run],
    theirs: Sequence[Run],
    names: tuple[str, str],
    *,
    rule: str = AUTO,
    last: int = LAST,
    tuning: Sequence[int] = (),
) -> tuple[list[Pair], list[str]]:
    """Return the settings that two folders have in common, and notes about the runs.

    Raises:
        InputError: No setting of one folder belongs to one of the other.
    """
    folders = [group_runs(runs) for runs in (ours, theirs)]
    skipped = (*REPEATS, *TUNED)
    varying = [find_differing_keys((group.spec for group in groups), skipped) for groups, _ in folders]
    keys = list(dict.fromkeys(key for found in varying for key in found))
    resolved = choose_rule([group for groups, _ in folders for group in groups], rule)
    sides: list[dict[str, Choice]] = []
    for groups, _ in folders:
        tried: dict[str, list[Group]] = {}
        for group in groups:
            tried.setdefault(describe_keys(group.spec, keys), []).append(group)
        sides.append({label: _build_choice(found, resolved, last, tuning) for label, found in tried.items()})
    common = [label for label in sides[0] if label in sides[1]]
    if not common:
        hint = "Compare two settings, or folders in which the same keys have the same values."
        raise InputError("the two folders have no setting in common", value=" and ".join(names), hint=hint)
    choices = [side[label] for label in common for side in sides]
    notes = [*describe_choices(choices), *dict.fromkeys(note for _, notes in folders for note in notes)]
    left = sum(len(side) for side in sides) - 2 * len(common)
    notes += [f"{left} settings are in one folder only and are left out."] * bool(left)
    return [Pair(label, names, sides[0][label].best, sides[1][label].best) for label in common], notes


def _build_choice(groups: Sequence[Group], rule: str, last: int, tuning: Sequence[int]) -> Choice:
    spec = groups[0].spec
    return Choice(get_place(spec), get_column(spec), tuple(groups), rule, last, tuple(tuning))


def pair_settings(runs: Sequence[tuple[Mapping[str, str], Run]]) -> list[Pair]:
    """Return the pairs of settings that differ in one key: the algorithm, or else the first key that varies.

    Each value of the key is compared with its first value. Rates, norms and seeds are no settings.

    Args:
        runs: The settings of each run, and the run.

    Raises:
        InputError: There is only one setting.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for settings, run in runs:
        fixed = tuple((name, text) for name, text in settings.items() if name not in ("eta", "clip", "seed"))
        groups.setdefault(fixed, []).append(run)
    values: dict[str, list[str]] = {}
    for fixed in groups:
        for name, text in fixed:
            values.setdefault(name, []).append(text)
    varying = [name for name, texts in values.items() if len(set(texts)) > 1]
    if not varying:
        raise InputError("there is only one setting to report", hint="Give a second one, such as algorithm=ssl,fedavg.")
    key = "algorithm" if "algorithm" in varying else varying[0]
    first = values[key][0]
    pairs = []
    for fixed, found in groups.items():
        own = dict(fixed)
        other = groups.get(tuple({**own, key: first}.items()))
        if own[key] != first and other is not None:
            setting = " ".join(f"{name}={text}" for name, text in fixed if name != key)
            names = f"{key}={first}", f"{key}={own[key]}"
            pairs.append(Pair(setting, names, Group(tuple(other)), Group(tuple(found))))
    return pairs


def build_pairs_table(
    pairs: Sequence[Pair],
    notes: Sequence[str] = (),
    *,
    margin: float = MARGIN,
    last: int = LAST,
) -> Table:
    """Build one row per pair, corrected for the number of rows."""
    gaps = [compare_seeds(pair.ours, pair.theirs, last).tolist() for pair in pairs]
    judged = judge_differences(gaps, margin=margin)
    columns = ("mean", "median", "collapsed")
    heads = [Heading(name, is_label=True) for name in ("setting", "first", "second")]
    heads += [Heading(name, side, is_numeric=True) for side in ("first", "second") for name in columns]
    heads += [*(Heading(name, is_numeric=True) for name in ("gap", "95 % interval", "corrected")), Heading("ahead")]
    rows, records = [], []
    for pair, judgement in zip(pairs, judged, strict=True):
        cells: list[Cell] = [pair.setting, *pair.names]
        cells += build_side_cells(pair.ours, judgement.verdict == AHEAD, last)
        cells += build_side_cells(pair.theirs, judgement.verdict == BEHIND, last)
        verdict = describe_verdict(judgement, *pair.names)
        gap = [f"{judgement.mean:+.2f}", *map(format_interval, (judgement.interval, judgement.corrected))]
        rows.append([*cells, *gap, verdict])
        record = {"setting": pair.setting, "first": pair.names[0], "second": pair.names[1]}
        for name, group in (("first", pair.ours), ("second", pair.theirs)):
            record |= build_side_record(name, group, last)
        records.append({**record, **build_judgement_record(judgement), "margin": margin})
    groups = [group for pair in pairs for group in (pair.ours, pair.theirs)]
    rounds = describe_final_rounds([find_last_round(group) for group in groups], last)
    caption = describe_columns(rounds, margin, "the first minus the second")
    said = [*describe_verdicts(judged, "The first", "the second"), *notes, *describe_ends(groups, last)]
    return Table(heads, rows, caption=caption, notes=said, lead=3, name="pairs", records=records)
