"""One row for each run: what sets it apart, how far it is, and what it came to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os.path import commonpath, relpath
from typing import Any

from splitrelay.reports.labels import ALGORITHMS, format_value_label, get_key_label, is_splitfed_v1
from splitrelay.reports.seed_groups import Group, find_differing_keys, is_complete, is_diverged
from splitrelay.reports.summary import build_curve, select_tail
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST
from splitrelay.table import Heading, Table, is_missing

ALWAYS = ("algorithm", "seed")
AFTER = ("rounds", "accuracy (%)", "test loss", "MB", "seconds", "hash", "run")
DECIMALS = {"accuracy (%)": 2, "test loss": 4, "MB": 1, "seconds": 1}


def build_runs_table(runs: Sequence[Run], *, last: int = LAST) -> Table:
    """All runs, by path within the folder that they share; columns for the keys in which they differ."""
    keys = [*ALWAYS, *find_differing_keys((run.spec for run in runs), ("R", *ALWAYS))]
    records = [_build_record(run, keys, last) for run in runs]
    heads = [Heading(get_key_label(key), is_numeric=_is_numeric(records, get_key_label(key))) for key in keys]
    heads += [Heading(name, is_numeric=name in DECIMALS, is_label=name == "hash") for name in AFTER]
    shared = commonpath([run.path.parent for run in runs])
    shown = [{**record, "run": relpath(record["run"], shared)} for record in records]
    for run, record in zip(runs, shown, strict=True):
        if is_splitfed_v1(run.spec):
            record["algorithm"] = ALGORITHMS["splitfed-v1"]
    rows = [[_format_cell(name, record[name]) for name in (*map(get_key_label, keys), *AFTER)] for record in shown]
    ends = [run for run in runs if not is_complete(run) and not is_diverged(run)]
    notes = [f"{len(ends)} of {len(runs)} runs have not reached their last round."] if ends else []
    caption = f"{len(runs)} runs; accuracy is the mean over the last {last} rounds, loss that of the last look."
    return Table(heads, rows, caption=caption, notes=notes, lead=2, name="runs", records=records)


def _build_record(run: Run, keys: Sequence[str], last: int) -> dict[str, Any]:
    flat = run.spec.flatten()
    own = {get_key_label(key): flat[key] for key in keys}
    end: dict[str, Any] = run.rows[-1] if run.rows else {}
    r, diverged = end.get("round"), ", diverged" if is_diverged(run) else ""
    return {
        **own,
        "rounds": "none" if r is None else str(r) if is_complete(run) else f"{r} of {run.spec.R}{diverged}",
        "accuracy (%)": round(100 * _compute_accuracy(run, last), 2),
        "test loss": None if not end else round(end["test_loss"], 4),
        "MB": None if not end else round((end["bytes_up"] + end["bytes_down"]) / 1e6, 1),
        "seconds": None if not end else round(end["seconds"], 1),
        "hash": run.spec.hash,
        "run": str(run.path),
    }


def _compute_accuracy(run: Run, last: int) -> float:
    values = select_tail(build_curve(Group((run,))), last).values if run.rows else None
    return float(values.mean()) if values is not None and values.size else math.nan


def _format_cell(name: str, value: Any) -> str:
    if is_missing(value):
        return "-"
    return f"{value:.{DECIMALS[name]}f}" if name in DECIMALS else format_value_label(value)


def _is_numeric(records: Sequence[dict[str, Any]], name: str) -> bool:
    return all(isinstance(record[name], int | float) and not isinstance(record[name], bool) for record in records)
