"""The view Runs: the list, curves of a metric, comparisons of settings, and what has changed since a row number."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitrelay.errors import InputError, SplitrelayError, UnknownName
from splitrelay.reports.labels import (
    describe_setting,
    format_value_label,
    get_data_label,
    get_key_label,
    get_partition_label,
    get_run_label,
)
from splitrelay.reports.seed_groups import Group, describe_keys, is_complete
from splitrelay.reports.statistics import ALPHA, MARGIN, judge_differences
from splitrelay.reports.summary import build_curve, compare_seeds, summarise_group
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST, RunDirectory, format_resume_command
from splitrelay.sweeps.sweep import find_sweeps, load_status
from splitrelay.table import is_missing
from splitrelay.web.source import PageSource, Reading, get_lines

Query = Mapping[str, str]
Floats = NDArray[np.float64]
Progress = dict[str, tuple[int, str]]  # rows and state of each run
AXES = {"round": "training rounds", "bytes": "MB between clients and server", "flops": "client GFLOP", "seconds": "s"}
HIDDEN = ("round", "test_per_class", "skipped_visits")  # fields of a row that are not metrics
START = 12  # lines that are drawn at first
POINTS = 2000  # of one line; a longer one keeps the lowest and highest point of each interval
NEXT_STEPS = {
    "finished": "Repeat it and compare it bit by bit:",
    "diverged": "A smaller learning rate may help:",
    "running": "It is running. To follow it in a terminal:",
    "stopped": "It has stopped before its last round. Continue it:",
}


def list_runs(source: PageSource, query: Query) -> dict[str, Any]:
    """Return every run with its state, its settings that differ, and the metrics of all rows."""
    reading = source.read()
    failures = find_failures(source.folder)
    keys = [key for key in reading.differing_keys if key != "seed"]
    ends = [run.rows[-1] for run in reading.runs.values() if run.rows]
    names = dict.fromkeys(name for end in ends for name, value in end.items() if not is_missing(value))
    return {
        "folder": None if source.folder is None else str(source.folder),
        "keys": [get_key_label(key) for key in keys],
        "columns": [get_key_label(key) for key in reading.label_keys],
        "metrics": [{"name": name, "label": get_metric_label(name)} for name in names if name not in HIDDEN],
        "axes": AXES,
        "runs": [describe_run(reading, number, keys, failures) for number in reading.names],
        "lines": {number: describe_line(group, reading.label_keys) for number, group in reading.lines.items()},
        "first": choose_first_lines(reading),
        "last": LAST,
    }


def choose_first_lines(reading: Reading, most: int = START) -> list[str]:
    """Return the lines that are drawn at first: those with several seeds if there are any."""
    several = [number for number, group in reading.lines.items() if len(group.runs) > 1]
    return (several or list(reading.lines))[:most]


def describe_run(
    reading: Reading, number: str, keys: Sequence[str], failures: Mapping[Path, str] | None = None
) -> dict[str, Any]:
    """Return one entry of the list."""
    name = reading.names[number]
    if number in reading.damaged:
        why = reading.damaged[number]
        return {"id": number, "name": name, "state": "damaged", "why": why, "rows": 0, "settings": {}, "line": None}
    run = reading.runs[number]
    flat, end = run.spec.flatten(), run.rows[-1] if run.rows else {}
    state, why = find_state(run, failures or {})
    seen = summarise_group(Group((run,))) if run.rows else None
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
        "settings": {get_key_label(key): format_value_label(flat[key]) for key in keys},
        "accuracy": None if seen is None else 100 * seen.mean,
        "loss": end.get("test_loss"),
        "bytes": end.get("bytes_up", 0) + end.get("bytes_down", 0),
        "seconds": end.get("seconds", 0.0),
        "line": reading.line_of.get(number),
        "commands": list_commands(run, state),
    }


def describe_line(group: Group, keys: Sequence[str]) -> dict[str, Any]:
    """Return the label and the seeds of a line."""
    own = f"{get_run_label(group.spec)}, {describe_keys(group.spec, keys)}" if keys else describe_setting(group.spec)
    return {"label": own, "seeds": list(group.seeds), "algorithm": group.spec.algorithm}


def find_state(run: Run, failures: Mapping[Path, str]) -> tuple[str, str]:
    """Return finished, diverged, failed, running or stopped, and the reason if there is one."""
    directory = RunDirectory(run.path)
    if is_complete(run):
        return "finished", ""
    if has_record(directory.diverged):
        return "diverged", read_record(directory.diverged).decode("utf-8", "replace").strip()
    if directory.is_locked():
        return "running", ""
    if run.path in failures:
        return "failed", failures[run.path]
    return "stopped", ""


def find_failures(folder: Path | None) -> dict[Path, str]:
    """Return why the failed points of sweeps in the folder failed, by the path of their run."""
    found: dict[Path, str] = {}
    for sweep in [] if folder is None or not folder.is_dir() else find_sweeps(folder):
        try:
            found |= {sweep / entry.name: entry.why for entry in load_status(sweep).select("failed")}
        except SplitrelayError:
            continue  # a damaged sweep.json does not hide the runs
    return found


def list_commands(run: Run, state: str) -> list[dict[str, str]]:
    """Return the commands that continue, verify or repeat a run, the most useful one first."""
    place = shlex.quote(str(run.path))
    resume = format_resume_command(run.path)
    spec = shlex.quote(str(run.path / "spec.toml"))
    repeat = f"splitrelay run {spec} --out {shlex.quote(f'{run.path}-again')}"
    commands = {
        "finished": f"splitrelay verify {place}",
        "diverged": f"splitrelay run {spec} eta={run.spec.optimiser.eta / 3:.2g} "
        f"--out {shlex.quote(f'{run.path}-smaller-rate')}",
        "running": f"splitrelay show {place}",
    }
    first = {"why": NEXT_STEPS.get(state, "Continue it:"), "text": commands.get(state, resume)}
    return [first, {"why": "Run the same settings again in a new folder:", "text": repeat}]


def get_curves(source: PageSource, query: Query) -> dict[str, Any]:
    """Return lines of a metric: the mean over seeds, and one standard deviation below and above it.

    The query has metric, x (one of AXES), lines (ids with commas between them; all if empty) and each=1 for one line
    per run. Numbers are packed (see `pack_numbers`). Most lines have the same x values, so each list of x values is
    sent once, and a line has its position in `xs`.
    """
    reading, metric, axis = source.read(), query.get("metric", "test_accuracy"), query.get("x", "round")
    if axis not in AXES:
        raise UnknownName("axis", axis, AXES)
    wanted = {number for number in query.get("lines", "").split(",") if number}
    xs, lines, notes = dict[str, int](), [], []
    for number, group in get_lines(reading, wanted, each=query.get("each") == "1").items():
        try:
            x, y, deviation = build_line(group, metric, axis, int(query.get("points", POINTS)))
        except (SplitrelayError, ImportError) as error:
            notes.append({"id": number, "error": str(error)})
            continue
        drawn = {"y": y} if len(group.runs) == 1 else {"y": y, "low": y - deviation, "high": y + deviation}
        packed = {name: pack_numbers(values) for name, values in drawn.items()}
        lines.append({"id": number, "x": xs.setdefault(pack_numbers(x), len(xs)), **packed})
    return {"metric": get_metric_label(metric), "axis": AXES[axis], "xs": list(xs), "lines": lines, "notes": notes}


def pack_numbers(values: Floats) -> str:
    """Return 64-bit floats as base64, which a browser reads faster than a list. Values that are not finite are NaN."""
    return base64.b64encode(np.where(np.isfinite(values), values, np.nan).astype("<f8").tobytes()).decode()


def get_metric_label(name: str) -> str:
    """Return the name of a metric for people, with its unit."""
    words = name.replace("_", " ")
    if name.endswith("accuracy"):
        return f"{words} (%)"
    return f"{words} (MB)" if "bytes" in name else words


def build_line(group: Group, metric: str, axis: str, most: int = POINTS) -> tuple[Floats, Floats, Floats]:
    """Return x, the mean and the standard deviation over seeds (NaN for one seed), at up to `most` points."""
    curve = build_curve(group, metric)
    scale = 100.0 if metric.endswith("accuracy") else 1e-6 if "bytes" in metric else 1.0
    x = curve.rounds.astype(np.float64)
    if axis == "bytes":
        x = (build_curve(group, "bytes_up").mean + build_curve(group, "bytes_down").mean) / 1e6
    elif axis == "seconds":
        x = build_curve(group, "seconds").mean
    elif axis == "flops":
        costs = import_module("splitrelay.web.visits")  # it needs torch, which takes seconds to import
        x = x * costs.compute_round_flops(group.runs[0]) / 1e9
    keep = select_points(curve.mean, most)
    return x[keep], scale * curve.mean[keep], scale * curve.deviation[keep]


def select_points(y: Floats, most: int = POINTS) -> NDArray[np.int64]:
    """Return the positions of the points that are drawn: all, or the lowest and highest of each interval."""
    n = len(y)
    if n <= most:
        return np.arange(n)
    width = -(-n // max(most // 2 - 1, 1))
    starts = np.arange(0, n, width)
    blocks = np.pad(y, (0, len(starts) * width - n), constant_values=np.nan).reshape(-1, width)
    lowest, highest = (np.where(np.isnan(blocks), worst, blocks) for worst in (np.inf, -np.inf))
    return np.unique([0, *(starts + lowest.argmin(1)), *(starts + highest.argmax(1)), n - 1])


def compare_lines(source: PageSource, query: Query) -> dict[str, Any]:
    """Compare the test accuracy of settings with that of the first one, over the seeds that both have."""
    reading = source.read()
    wanted = [number for number in query.get("lines", "").split(",") if number]
    groups = [reading.lines[number] for number in wanted if number in reading.lines]
    if len(groups) < 2:
        hint = "Select two settings in the list of runs."
        raise InputError("a comparison needs two settings", value=len(groups), hint=hint)
    keys = reading.label_keys
    first, others = groups[0], groups[1:]
    differences = [compare_seeds(other, first).tolist() for other in others]
    rows = [
        {**describe_line(other, keys), "accuracy": 100 * summarise_group(other).mean, **asdict(judged)}
        for other, judged in zip(others, judge_differences(differences), strict=True)
    ]
    baseline = {**describe_line(first, keys), "accuracy": 100 * summarise_group(first).mean}
    return {"baseline": baseline, "rows": rows, "alpha": ALPHA, "margin": MARGIN, "last": LAST}


def find_progress(source: PageSource) -> Progress:
    """Return rows and state of every run that can be read."""
    reading, failures = source.read(), find_failures(source.folder)
    return {number: (len(run.rows), find_state(run, failures)[0]) for number, run in reading.runs.items()}


def describe_changes(source: PageSource, before: Progress, now: Progress) -> dict[str, Any]:
    """Return the runs whose rows or state have changed; `reload` is set if runs have come or gone."""
    reading, failures = source.read(), find_failures(source.folder)
    keys = [key for key in reading.differing_keys if key != "seed"]
    changed = [number for number in now if before.get(number) != now[number] and number in reading.runs]
    runs = [describe_run(reading, number, keys, failures) for number in changed]
    return {"runs": runs, "reload": before.keys() != now.keys()}
