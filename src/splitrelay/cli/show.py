"""`splitrelay show`: a run or a folder of runs."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, say
from splitrelay.cli.run import describe_accuracy
from splitrelay.cli.sweep import format_summary, show_status
from splitrelay.runs.client_records import RunClients, read_clients
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.runs.records import Run

BARS = " ▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#@"
WIDTH = 60  # columns of the curve
LAST = 5  # rows at the end that are shown
CLIENTS = 40  # rows of the table of the clients
NOTES = 20  # lines below the table of the clients
REASONS = 3  # of skipped visits, of one client
OTHERS = {10_000: "evaluator", 10_001: "fed server"}  # numbers of those that are none of the clients


@click.command(cls=Command, example="splitrelay show results")
@click.argument("path", type=click.Path(path_type=Path), default=Path("results"))
@format_option
def show(path: Path, shape: str) -> None:
    """One run: what it is, how far it came, its curve. A folder of runs: one line each, with what tells them apart.

    Of a deployed run also its clients: samples, visits made and skipped, CPU level, version, digest of the data.

    Reading changes nothing: a run that another process is working on can be watched.
    """
    from splitrelay.runs.records import has_runs, is_run, run_at, runs_under
    from splitrelay.sweeps.sweep import find_sweeps

    sweeps = find_sweeps(path)
    if is_run(path):
        _show_run(run_at(path), shape)
    elif sweeps and not has_runs(path):
        show_status(path, shape)  # nothing is on the disk yet
    else:
        from splitrelay.sweeps.sweep import load_status

        boards = [board for board in map(load_status, sweeps) if board.count("running")]  # by other processes
        notes = [
            f"{board.folder}: {format_summary(board)} (every point: sweep --status {board.folder})" for board in boards
        ]
        _show_runs(runs_under(path), path, shape, notes)


def _show_run(run: Run, shape: str) -> None:
    """Print the keys, the last rows and the clients of one run."""
    from splitrelay.runs.spec import Spec

    usual, own = Spec(algorithm=run.spec.algorithm).flatten(), run.spec.flatten()
    settings = {
        name: value for name, value in own.items() if value != usual[name] or name in ("algorithm", "R", "seed")
    }
    rows = run.rows[-LAST:]
    accuracy, metrics = _list_columns(run)
    shown = ("round", *accuracy, "test_loss", *metrics, "train_loss", "bytes_up", "bytes_down", "seconds")
    table = Table(shown, [[row.get(name) for name in shown] for row in rows], notes=_list_notes(run))
    clients, environment = read_clients(run.path), _read_environment(run)
    made_by = _describe_code(environment)
    if shape != "table":
        payload = {
            "environment": environment,
            "spec": own,
            "finished": run.finished,
            "hash": run.spec.hash,
            "accuracy": run.accuracy,
            "last_evaluation": _get_last(run, "test_accuracy"),
            "rows": run.rows,
        }
        if clients:
            groups = {"clients": clients.clients, "others": clients.others}
            payload["skipped"] = clients.skipped
            payload |= {name: [asdict(one) for one in group] for name, group in groups.items()}
        emit(table, payload, shape)
        return
    say(f"{run.path}: {_describe_state(run)}, name {run.spec.hash}")
    from splitrelay.reports.labels import format_value_label

    say("  ".join(f"{name}={format_value_label(value)}" for name, value in settings.items()))
    if made_by:
        say(made_by)
    if run.rows and accuracy:
        say(f"test accuracy 0 to 100 %, round 0 to {run.rows[-1]['round']}: {draw_curve(run.column('test_accuracy'))}")
    if run.rows:
        emit(table, None, shape)
    if clients:
        say("")
        emit(_build_clients_table(clients), None, shape)


def _read_environment(run: Run) -> dict[str, Any]:
    """Return environment.json of a run; empty if it is missing or damaged, because rows can be shown without it."""
    from splitrelay.errors import InputError
    from splitrelay.runs.sources import read_environment

    try:
        return read_environment(run.path)
    except InputError:
        return {}


def _describe_code(environment: dict[str, Any]) -> str:
    """Return the version and the commit that made a run; empty for a record without environment."""
    if "splitrelay" not in environment:
        return ""
    commit, changes = environment.get("commit", "not recorded"), " with changes" * bool(environment.get("modified"))
    return f"made by splitrelay {environment['splitrelay']}, commit {commit}{changes}"


def _build_clients_table(found: RunClients) -> Table:
    """Return the clients of a deployed run. A separate evaluator and the fed server come last."""
    from splitrelay.runs.client_records import PREFIX

    names = [str(one.client) for one in found.clients]
    names += [OTHERS.get(one.client, str(one.client)) for one in found.others]
    rows = []
    listed = [*zip(names, [*found.clients, *found.others], strict=True)]
    if len(listed) > CLIENTS:  # those with skipped visits first
        listed = sorted(listed, key=lambda pair: -pair[1].skipped)
    for name, one in listed[:CLIENTS]:
        texts = [", ".join(one.cpu), ", ".join(one.software).replace("splitrelay ", ""), one.digest[:PREFIX]]
        rows.append([name, one.samples or None, one.visits, one.skipped, *(text or None for text in texts)])
    columns = ("client", "samples", "visits", "skipped", "cpu", "version", "data digest")
    made = sum(one.visits for one in found.clients)
    notes = [f"and {len(listed) - CLIENTS} more (--format json has all)"] * (len(listed) > CLIENTS)
    notes += [f"visits until round {found.round}: {made} made, {found.skipped} skipped"]
    for one in found.clients:
        commonest = sorted(one.reasons.items(), key=lambda item: -item[1])[:REASONS]
        notes += [f"client {one.client}: {count} x {why}" for why, count in commonest]
    notes += [f"{name}: {theirs} (server: {here})" for name, (theirs, here) in found.unlike().items()]
    return Table(columns, rows, notes=notes[:NOTES] + [f"and {len(notes) - NOTES} more notes"] * (len(notes) > NOTES))


def _list_notes(run: Run) -> list[str]:
    if not run.rows:
        return ["no row yet"]
    if not _list_columns(run)[0]:
        return _list_resume_notes(run)
    best = max(run.rows, key=lambda row: -1 if math.isnan(row["test_accuracy"]) else row["test_accuracy"])
    best_line = f"best evaluation: {best['test_accuracy']:.2%} in round {best['round']}"
    return [describe_accuracy(run.rows, has_diverged=run.has_diverged), best_line, *_list_resume_notes(run)]


def _list_resume_notes(run: Run) -> list[str]:
    from splitrelay.runs.run_directory import RunDirectory, format_resume_command

    can_resume = not run.finished and not RunDirectory(run.path).is_locked()
    return [f"go on: {format_resume_command(run.path)}"] if can_resume else []


def _list_columns(run: Run) -> tuple[list[str], list[str]]:
    """Return the column of the accuracy, if the run has one, and the columns of further metrics."""
    from splitrelay.runs.run_directory import has_accuracy, list_metrics

    accuracy = ["test_accuracy"] if not run.rows or any(map(has_accuracy, run.rows)) else []
    return accuracy, list_metrics(run.rows[-1]) if run.rows else []


def _show_runs(runs: list[Run], folder: Path, shape: str, notes: list[str]) -> None:
    """Print one row for each run of a folder."""
    from splitrelay.reports.seed_groups import describe_keys, find_differing_keys
    from splitrelay.runs.run_directory import name_final_accuracy

    keys = find_differing_keys([run.spec for run in runs])
    rows = [
        (
            str(run.path.relative_to(folder)),
            describe_keys(run.spec, keys),
            _describe_state(run),
            _scale(run.accuracy),
            _scale(_get_last(run, "test_accuracy")),
            _scale(_get_last(run, "seconds"), 1, 1),
        )
        for run in runs
    ]
    name = name_final_accuracy([run.rows[-1]["round"] for run in runs if run.rows])
    table = Table(("run", "what differs", "state", name, "last evaluation (%)", "seconds"), rows, notes=notes)
    names = ("run", "what_differs", "state", "accuracy", "last_evaluation", "seconds")
    emit(table, [dict(zip(names, row, strict=True)) for row in rows], shape)


def _get_last(run: Run, name: str) -> Any:
    return run.rows[-1][name] if run.rows else None


def _scale(value: float | None, factor: float = 100, digits: int = 2) -> float | None:
    return None if value is None else round(factor * value, digits)


def _describe_state(run: Run) -> str:
    from splitrelay.runs.packed_records import has_record
    from splitrelay.runs.run_directory import RunDirectory

    if run.finished:
        return f"finished, {run.spec.R} rounds"
    directory, r = RunDirectory(run.path), run.rows[-1]["round"] if run.rows else 0
    how = ", running" if directory.is_locked() else ", diverged" if has_record(directory.diverged) else ""
    return f"round {r} of {run.spec.R}{how}"


def draw_curve(shares: list[float]) -> str:
    """Return a bar for each number from 0 to 1, or a letter if the output has no bars."""
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
        bars = BARS
    except UnicodeEncodeError:
        bars = PLAIN
    picked = shares if len(shares) <= WIDTH else [shares[j * (len(shares) - 1) // (WIDTH - 1)] for j in range(WIDTH)]
    known = [0.0 if math.isnan(share) else share for share in picked]  # an evaluator may have been away
    return "".join(bars[min(len(bars) - 1, int(share * len(bars)))] for share in known)
