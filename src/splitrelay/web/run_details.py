"""The view Run: state and commands, classes, forgetting, partition, settings, environment, visits, and costs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data.heterogeneity import describe_partition, measure_heterogeneity
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import load_partition
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.reports.curves import compute_by_place
from splitrelay.reports.html_report import list_settings
from splitrelay.reports.labels import describe_setting
from splitrelay.reports.seed_groups import Group
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import LAST
from splitrelay.runs.sources import read_environment
from splitrelay.web.run_list import Query, describe_run
from splitrelay.web.source import PageSource

COLUMNS = 200  # rounds in the picture of the classes; more are thinned
WINDOW = 60  # rounds in the timeline of visits


def get_run(source: PageSource, query: Query) -> dict[str, Any]:
    """Return everything about one run except its visits. A part that cannot be made has an error instead."""
    reading, number = source.read(), query.get("id", "")
    run = reading.get_run(number)
    return {
        **describe_run(reading, number),
        "title": describe_setting(run.spec),
        "specs": list_settings(run.spec),
        "classes": _attempt(lambda: describe_classes(run)),
        "places": _attempt(lambda: describe_places(run)),
        "partition": _attempt(lambda: describe_saved_partition(run.path)),
        "environment": _attempt(lambda: {name: str(value) for name, value in read_environment(run.path).items()}),
    }


def _attempt(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except SplitrelayError as error:
        return {"error": str(error)}


def describe_classes(run: Run) -> dict[str, Any]:
    """Return the accuracy of each class after each evaluation, in percent."""
    rows = [row for row in run.rows if row.get("test_per_class")]
    if not rows:
        raise InputError("no evaluation has the accuracy of single classes")
    kept = [rows[j] for j in np.unique(np.linspace(0, len(rows) - 1, COLUMNS).astype(int))]
    values = [[None if share is None else 100 * share for share in row["test_per_class"]] for row in kept]
    return {"rounds": [row["round"] for row in kept], "values": values}


def describe_places(run: Run) -> dict[str, Any]:
    """Return the accuracy on a class by the place in the round of the last client that holds it."""
    curve = compute_by_place(Group((run,)))
    return {"x": curve.rounds, "y": curve.mean, "last": LAST}


def describe_saved_partition(directory: Path) -> dict[str, Any]:
    """Return the partition in a run directory."""
    file = directory / "partition.npz"
    if not file.exists():
        hint = "Published records have none, and the server of a deployed run does not know it: see the clients below."
        raise InputError("there is no partition.npz in this run", hint=hint)
    return measure_partition(load_partition(file))


def measure_partition(partition: Partition) -> dict[str, Any]:
    """Return the title, the counts and the measures of a partition."""
    return {"title": partition.title, **describe_partition(partition, measure_heterogeneity(partition))}


def get_visits(source: PageSource, query: Query) -> dict[str, Any]:
    """Return the timeline of a run, from round `first` on, and the cost of each client."""
    history = import_module("splitrelay.deploy.visit_history")  # it needs torch, which takes seconds to import
    run = source.read().get_run(query.get("id", ""))
    done = run.rows[-1]["round"] if run.rows else 0
    asked = query.get("first", "")
    first = min(int(asked) if asked.isdecimal() else max(done - WINDOW, 0), max(done - 1, 0))
    order = history.get_order(run)
    rounds = history.build_timeline(run, order, first, min(first + WINDOW, done))
    clients, known = history.describe_clients(run, order)
    about = {"first": first, "window": WINDOW, "total": done, "rounds": rounds, **history.list_notes(run)}
    return {**about, "clients": clients, "clients_note": known}
