"""The view Runs: the list, curves of a metric, comparisons of settings, and what has changed since a row number."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

import numpy as np

from splitrelay.errors import InputError, SplitrelayError, UnknownName
from splitrelay.reports.html_page import select_points
from splitrelay.reports.html_report import list_commands
from splitrelay.reports.labels import (
    describe_setting,
    format_value_label,
    get_data_label,
    get_key_label,
    get_partition_label,
    get_run_label,
)
from splitrelay.reports.seed_groups import Group, describe_keys
from splitrelay.reports.statistics import ALPHA, MARGIN, judge_differences
from splitrelay.reports.summary import (
    Floats,
    build_curve,
    compare_seeds,
    compute_axis,
    compute_run_accuracy,
    describe_metric,
    get_metric_unit,
    summarise_group,
)
from splitrelay.runs.run_directory import LAST
from splitrelay.table import is_missing
from splitrelay.web.source import ChangeLog, PageSource, Reading

Query = Mapping[str, str]
AXES = {"round": "training rounds", "bytes": "MB between clients and server", "flops": "client GFLOP", "seconds": "s"}
HIDDEN = ("round", "test_per_class", "skipped_visits")  # fields of a row that are not metrics
START = 12  # lines that are drawn at first: those with several seeds if there are any
POINTS = 2000  # of one line; a longer one keeps the lowest and highest point of each interval


def list_runs(source: PageSource, query: Query) -> dict[str, Any]:
    """Return every run with its state, its settings that differ, and the metrics of all rows."""
    reading = source.read()
    several = [number for number, group in reading.lines.items() if len(group.runs) > 1]
    ends = [run.rows[-1] for run in reading.runs.values() if run.rows]
    names = dict.fromkeys(name for end in ends for name, value in end.items() if not is_missing(value))
    return {
        "folder": None if source.folder is None else str(source.folder),
        "keys": [get_key_label(key) for key in reading.differing_keys],
        "columns": [get_key_label(key) for key in reading.label_keys],
        "metrics": [{"name": name, "label": describe_metric(name)} for name in names if name not in HIDDEN],
        "runs": [describe_run(reading, number) for number in reading.names],
        "lines": {number: describe_line(group, reading.label_keys) for number, group in reading.lines.items()},
        "first": (several or list(reading.lines))[:START],
        "last": LAST,
    }


def describe_run(reading: Reading, number: str) -> dict[str, Any]:
    """Return one entry of the list."""
    name = reading.names[number]
    if number in reading.damaged:
        why = reading.damaged[number]
        return {"id": number, "name": name, "state": "damaged", "why": why, "rows": 0, "settings": {}, "line": None}
    run = reading.runs[number]
    flat, end = run.spec.flatten(), run.rows[-1] if run.rows else {}
    state, why = reading.describe_state(run)
    return {
        "id": number,
        "name": name,
        "hash": run.spec.hash,
        "state": state,
        "why": why,
        "rows": len(run.rows),
        "round": end.get("round", 0),
        "R": run.spec.R,
        "seed": run.spec.seed,
        "algorithm": get_run_label(run.spec),
        "data": get_data_label(run.spec.data.name),
        "partition": get_partition_label(run.spec.partition),
        "settings": {get_key_label(key): format_value_label(flat[key]) for key in reading.differing_keys},
        "accuracy": 100 * compute_run_accuracy(run),
        "loss": end.get("test_loss"),
        "bytes": end.get("bytes_up", 0) + end.get("bytes_down", 0),
        "seconds": end.get("seconds", 0.0),
        "line": reading.line_of.get(run.path),
        "commands": [{"why": why, "text": text} for why, text in list_commands(run, state)],
    }


def describe_line(group: Group, keys: Sequence[str]) -> dict[str, Any]:
    """Return the label and the seeds of a line."""
    own = f"{get_run_label(group.spec)}, {describe_keys(group.spec, keys)}" if keys else describe_setting(group.spec)
    return {"label": own, "seeds": list(group.seeds)}


def get_curves(source: PageSource, query: Query) -> dict[str, Any]:
    """Return lines of a metric: the mean over seeds, and one standard deviation below and above it.

    The query has metric, x (one of AXES), lines (ids with commas between them; all if empty) and each=1 for one line
    per run. Numbers are packed (see `pack_numbers`). Most lines have the same x values, so each list of x values is
    sent once, and a line has its position in `xs`.
    """
    reading, metric, axis = source.read(), query.get("metric", "test_accuracy"), query.get("x", "round")
    if axis not in AXES:
        raise UnknownName("axis", axis, AXES)
    wanted, is_each = set(filter(None, query.get("lines", "").split(","))), query.get("each") == "1"
    groups = {number: Group((run,)) for number, run in reading.runs.items() if run.rows} if is_each else reading.lines
    xs, lines, notes = dict[str, int](), [], []
    for number, group in groups.items():
        if wanted and number not in wanted:
            continue
        try:
            x, y, deviation = build_line(group, metric, axis, int(query.get("points", POINTS)))
        except (SplitrelayError, ImportError) as error:
            notes.append({"id": number, "error": str(error)})
            continue
        drawn = {"y": y} if len(group.runs) == 1 else {"y": y, "low": y - deviation, "high": y + deviation}
        packed = {name: pack_numbers(values) for name, values in drawn.items()}
        lines.append({"id": number, "x": xs.setdefault(pack_numbers(x), len(xs)), **packed})
    return {"metric": describe_metric(metric), "axis": AXES[axis], "xs": list(xs), "lines": lines, "notes": notes}


def pack_numbers(values: Floats) -> str:
    """Return 64-bit floats as base64, which a browser reads faster than a list. Values that are not finite are NaN."""
    return base64.b64encode(np.where(np.isfinite(values), values, np.nan).astype("<f8").tobytes()).decode()


def build_line(group: Group, metric: str, axis: str, most: int = POINTS) -> tuple[Floats, Floats, Floats]:
    """Return x, the mean and the standard deviation over seeds (NaN for one seed), at up to `most` points."""
    curve, (_, scale) = build_curve(group, metric), get_metric_unit(metric)
    if axis == "flops":
        history = import_module("splitrelay.deploy.visit_history")  # it needs torch, which takes seconds to import
        x = curve.rounds * history.compute_round_flops(group.runs[0]) / 1e9
    else:
        x = compute_axis(group, axis)
    keep = select_points(curve.mean, most)
    return x[keep], scale * curve.mean[keep], scale * curve.deviation[keep]


def compare_lines(source: PageSource, query: Query) -> dict[str, Any]:
    """Compare the test accuracy of settings with that of the first one, over the seeds that both have."""
    reading = source.read()
    wanted = [number for number in query.get("lines", "").split(",") if number]
    groups = [reading.lines[number] for number in wanted if number in reading.lines]
    if len(groups) < 2:
        hint = "Select two settings in the list of runs."
        raise InputError("a comparison needs two settings", value=len(groups), hint=hint)
    lines = [
        {**describe_line(group, reading.label_keys), "accuracy": 100 * summarise_group(group).mean} for group in groups
    ]
    judged = judge_differences([compare_seeds(group, groups[0]).tolist() for group in groups[1:]])
    rows = [line | asdict(judgement) for line, judgement in zip(lines[1:], judged, strict=True)]
    return {"baseline": lines[0], "rows": rows, "alpha": ALPHA, "margin": MARGIN, "last": LAST}


def describe_changes(log: ChangeLog, after: int) -> dict[str, Any]:
    """Return the runs that have newer rows or another state; `reload` is set if runs have come or gone."""
    reading = log.source.read()
    changed = [number for number in reading.runs if log.numbers.get(number, 0) > after]
    return {"runs": [describe_run(reading, number) for number in changed], "reload": log.listed > after}
