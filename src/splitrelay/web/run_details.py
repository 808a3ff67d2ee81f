"""The view Run: state and commands, accuracy of each class, forgetting, partition, settings and environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from splitrelay.data.heterogeneity import measure_heterogeneity
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import load_partition
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.reports.curves import compute_by_place
from splitrelay.reports.html_report import get_key_descriptions
from splitrelay.reports.labels import describe_setting, format_value_label, get_key_label
from splitrelay.reports.seed_groups import Group
from splitrelay.runs.client_records import CLIENTS
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST
from splitrelay.runs.spec import Spec
from splitrelay.structured_text import parse_json
from splitrelay.web.run_list import Query, describe_run, find_failures, finite
from splitrelay.web.source import PageSource

COLUMNS = 200  # rounds in the picture of the classes; more are thinned


def get_run(source: PageSource, query: Query) -> dict[str, Any]:
    """Return everything about one run except its visits. A part that cannot be made has an error instead."""
    reading, number = source.read(), query.get("id", "")
    run = reading.get_run(number)
    return {
        **describe_run(reading, number, [], find_failures(source.folder)),
        "path": str(run.path),
        "title": describe_setting(run.spec),
        "specs": list_settings(run.spec),
        "classes": _attempt(lambda: describe_classes(run)),
        "places": _attempt(lambda: describe_places(run)),
        "partition": _attempt(lambda: describe_saved_partition(run.path)),
        "environment": _attempt(lambda: read_environment(run.path)),
        "end": {name: value for name, value in (run.rows[-1] if run.rows else {}).items() if name != "skipped_visits"},
    }


def _attempt(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except SplitrelayError as error:
        return {"error": str(error)}


def list_settings(spec: Spec) -> list[dict[str, Any]]:
    """Return every key of the spec with its meaning; `own` marks values that differ from the default."""
    defaults, flat, words = Spec(algorithm=spec.algorithm).flatten(), spec.flatten(), get_key_descriptions()
    return [
        {
            "key": get_key_label(key),
            "value": format_value_label(value),
            "meaning": words.get(key, ""),
            "own": value != defaults.get(key),
        }
        for key, value in flat.items()
    ]


def describe_classes(run: Run) -> dict[str, Any]:
    """Return the accuracy of each class after each evaluation, in percent."""
    rows = [row for row in run.rows if row.get("test_per_class")]
    if not rows:
        raise InputError("no evaluation has the accuracy of single classes")
    step = -(-len(rows) // COLUMNS)
    kept = sorted({*range(0, len(rows), step), len(rows) - 1})
    values = [[_to_percent(share) for share in rows[j]["test_per_class"]] for j in kept]
    return {"rounds": [rows[j]["round"] for j in kept], "values": values}


def _to_percent(share: Any) -> float | None:
    return None if share is None or not math.isfinite(share) else 100 * share


def describe_places(run: Run) -> dict[str, Any]:
    """Return the accuracy on a class by the place in the round of the last client that holds it."""
    if not run.rows or run.rows[-1]["round"] == 0 or not run.rows[-1].get("test_per_class"):
        raise InputError("no evaluation after the first round has the accuracy of single classes")
    curve = compute_by_place(Group((run,)))
    return {"x": curve.rounds.tolist(), "y": finite(curve.mean), "last": LAST}


def describe_saved_partition(directory: Path) -> dict[str, Any]:
    """Return the partition in a run directory."""
    file = directory / "partition.npz"
    if file.exists():
        return describe_partition(load_partition(file))
    if has_record(directory / CLIENTS):
        raise InputError("the server of a deployed run does not know the partition", hint="See the clients below.")
    hint = "Published records have none; the explorer of partitions draws it again."
    raise InputError("there is no partition.npz in this run", hint=hint)


def describe_partition(partition: Partition) -> dict[str, Any]:
    """Return the counts and the measures of a partition."""
    return {
        "title": partition.title,
        "M": partition.M,
        "N": partition.N,
        "classes": [str(label) for label in partition.classes.tolist()],
        "counts": partition.counts.tolist(),
        "measures": asdict(measure_heterogeneity(partition)),
    }


def read_environment(directory: Path) -> dict[str, str]:
    """Return the content of environment.json as texts."""
    file = directory / "environment.json"
    if not has_record(file):
        raise InputError("there is no environment.json in this run")
    try:
        content = dict(parse_json(read_record(file)))
    except ValueError:
        raise InputError("environment.json cannot be read") from None
    return {str(name): str(value) for name, value in content.items()}
