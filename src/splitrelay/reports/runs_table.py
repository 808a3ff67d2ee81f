"""Tabulate runs, one row each: the keys in which they differ, their progress and their results."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonpath, relpath
from typing import Any

from splitrelay.reports.labels import ALGORITHMS, format_value_label, get_key_label, is_splitfed_v1
from splitrelay.reports.seed_groups import find_differing_keys, is_complete
from splitrelay.reports.summary import compute_run_accuracy
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, list_metrics, name_final_accuracy
from splitrelay.table import Heading, Table, is_missing

ALWAYS = ("algorithm", "seed")
ACCURACY = "accuracy (%)"
AFTER = ("rounds", ACCURACY, "last evaluation (%)", "test loss", "MB", "seconds", "hash", "run")
DECIMALS = {ACCURACY: 2, "last evaluation (%)": 2, "test loss": 4, "MB": 1, "seconds": 1}


def build_runs_table(runs: Sequence[Run], *, last: int = LAST) -> Table:
    """Build one row per run, by its path in the common folder, with a column for each key in which runs differ."""
    keys = [*ALWAYS, *find_differing_keys((run.spec for run in runs), ("R", *ALWAYS))]
    metrics = list(dict.fromkeys(name for run in runs if run.rows for name in list_metrics(run.rows[-1])))
    records = [_build_record(run, keys, last, metrics) for run in runs]
    after = tuple(name for head in AFTER for name in (head, *(metrics if head == "test loss" else ())))
    heads = [Heading(get_key_label(key), is_numeric=_is_numeric(records, get_key_label(key))) for key in keys]
    named = {ACCURACY: name_final_accuracy([run.rows[-1]["round"] for run in runs if run.rows], last)}
    numeric = (*DECIMALS, *metrics)
    heads += [Heading(named.get(name, name), is_numeric=name in numeric, is_label=name == "hash") for name in after]
    shared = commonpath([run.path.parent for run in runs])
    shown = [{**record, "run": relpath(record["run"], shared)} for record in records]
    for run, record in zip(runs, shown, strict=True):
        if is_splitfed_v1(run.spec):
            record["algorithm"] = ALGORITHMS["splitfed-v1"]
    rows = [[_format_cell(name, record[name]) for name in (*map(get_key_label, keys), *after)] for record in shown]
    ends = [run for run in runs if not is_complete(run) and not run.has_diverged]
    notes = [f"{len(ends)} of {len(runs)} runs have not reached their last round."] if ends else []
    caption = f"{len(runs)} runs. The loss is that of the last evaluation."
    return Table(heads, rows, caption=caption, notes=notes, lead=2, name="runs", records=records)


def _build_record(run: Run, keys: Sequence[str], last: int, metrics: Sequence[str]) -> dict[str, Any]:
    flat = run.spec.flatten()
    own = {get_key_label(key): flat[key] for key in keys}
    end: dict[str, Any] = run.rows[-1] if run.rows else {}
    r, diverged = end.get("round"), ", diverged" if run.has_diverged else ""
    return {
        **own,
        "rounds": "none" if r is None else str(r) if is_complete(run) else f"{r} of {run.spec.R}{diverged}",
        ACCURACY: round(100 * compute_run_accuracy(run, last), 2),
        "last evaluation (%)": None if not end else round(100 * end["test_accuracy"], 2),
        "test loss": None if not end else round(end["test_loss"], 4),
        **{name: None if end.get(name) is None else round(end[name], 4) for name in metrics},
        "MB": None if not end else round((end["bytes_up"] + end["bytes_down"]) / 1e6, 1),
        "seconds": None if not end else round(end["seconds"], 1),
        "hash": run.spec.hash,
        "run": str(run.path),
    }


def _format_cell(name: str, value: Any) -> str:
    if is_missing(value):
        return "-"
    return f"{value:.{DECIMALS[name]}f}" if name in DECIMALS else format_value_label(value)


def _is_numeric(records: Sequence[dict[str, Any]], name: str) -> bool:
    return all(isinstance(record[name], int | float) and not isinstance(record[name], bool) for record in records)
