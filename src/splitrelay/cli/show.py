"""`splitrelay show`: a run or a folder of runs."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import Table, emit, format_option, say
from splitrelay.cli.run import describe_accuracy
from splitrelay.cli.sweep import format_summary, show_status
from splitrelay.runs.client_records import ClientRecord, RunClients, read_clients

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
        _one(run_at(path), shape)
    elif sweeps and not has_runs(path):
        show_status(path, shape)  # nothing is on the disk yet
    else:
        from splitrelay.sweeps.sweep import load_status

        boards = [board for board in map(load_status, sweeps) if board.count("running")]  # by other processes
        notes = [
            f"{board.folder}: {format_summary(board)} (every point: sweep --status {board.folder})" for board in boards
        ]
        _many(runs_under(path), path, shape, notes)


def _one(run: Run, shape: str) -> None:
    from splitrelay.runs.spec import Spec

    usual, own = Spec(algorithm=run.spec.algorithm).flatten(), run.spec.flatten()
    told = {name: value for name, value in own.items() if value != usual[name] or name in ("algorithm", "R", "seed")}
    rows = run.rows[-LAST:]
    accuracy, metrics = _list_columns(run)
    shown = ("round", *accuracy, "test_loss", *metrics, "train_loss", "bytes_up", "bytes_down", "seconds")
    table = Table(shown, [[row.get(name) for name in shown] for row in rows], notes=_notes(run))
    clients, environment = read_clients(run.path), _read_environment(run)
    made_by = _describe_code(environment)
    if shape != "table":
        payload = {
            "environment": environment,
            "spec": own,
            "finished": run.finished,
            "hash": run.spec.hash,
            "accuracy": run.accuracy,
            "last_evaluation": _last(run, "test_accuracy"),
            "rows": run.rows,
        }
        emit(table, payload | (_clients_payload(clients) if clients else {}), shape)
        return
    say(f"{run.path}: {_state(run)}, name {run.spec.hash}")
    from splitrelay.reports.labels import format_value_label

    say("  ".join(f"{name}={format_value_label(value)}" for name, value in told.items()))
    if made_by:
        say(made_by)
    if run.rows and accuracy:
        say(f"test accuracy 0 to 100 %, round 0 to {run.rows[-1]['round']}: {curve(run.column('test_accuracy'))}")
    if run.rows:
        emit(table, None, shape)
    if clients:
        say("")
        emit(_clients_table(clients), None, shape)


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


def _clients_payload(found: RunClients) -> dict[str, Any]:
    groups = {"clients": found.clients, "others": found.others}
    return {"skipped": found.skipped, **{name: [asdict(one) for one in group] for name, group in groups.items()}}


def _clients_table(found: RunClients) -> Table:
    """Return who took part in a deployed run; the evaluator and the fed server, if they are others, come last."""
    from splitrelay.runs.client_records import PREFIX

    names = [str(one.client) for one in found.clients]
    names += [OTHERS.get(one.client, str(one.client)) for one in found.others]
    rows = []
    listed = [*zip(names, [*found.clients, *found.others], strict=True)]
    if len(listed) > CLIENTS:  # those with skipped visits first
        listed = sorted(listed, key=lambda pair: -pair[1].skipped)
    for name, one in listed[:CLIENTS]:
        told = [", ".join(one.cpu), ", ".join(one.software).replace("splitrelay ", ""), one.digest[:PREFIX]]
        rows.append([name, one.samples or None, one.visits, one.skipped, *(text or None for text in told)])
    columns = ("client", "samples", "visits", "skipped", "cpu", "version", "data digest")
    made = sum(one.visits for one in found.clients)
    notes = [f"and {len(listed) - CLIENTS} more (--format json has all)"] * (len(listed) > CLIENTS)
    notes += [f"visits until round {found.round}: {made} made, {found.skipped} skipped"]
    notes += [f"client {one.client}: {count} x {why}" for one in found.clients for why, count in _most(one)]
    notes += [f"{name}: {theirs} (server: {here})" for name, (theirs, here) in found.unlike().items()]
    return Table(columns, rows, notes=notes[:NOTES] + [f"and {len(notes) - NOTES} more notes"] * (len(notes) > NOTES))


def _most(one: ClientRecord) -> list[tuple[str, int]]:
    """Return the commonest reasons for which visits of a client were skipped."""
    return sorted(one.reasons.items(), key=lambda item: -item[1])[:REASONS]


def _notes(run: Run) -> list[str]:
    if not run.rows:
        return ["no row yet"]
    if not _list_columns(run)[0]:
        return _note_resume(run)
    best = max(run.rows, key=lambda row: -1 if math.isnan(row["test_accuracy"]) else row["test_accuracy"])
    best_line = f"best evaluation: {best['test_accuracy']:.2%} in round {best['round']}"
    return [describe_accuracy(run.rows, has_diverged=run.has_diverged), best_line, *_note_resume(run)]


def _note_resume(run: Run) -> list[str]:
    from splitrelay.runs.run_directory import RunDirectory, format_resume_command

    can_resume = not run.finished and not RunDirectory(run.path).is_locked()
    return [f"go on: {format_resume_command(run.path)}"] if can_resume else []


def _list_columns(run: Run) -> tuple[list[str], list[str]]:
    """Return the column of the accuracy, if the run has one, and the columns of further metrics."""
    from splitrelay.runs.run_directory import has_accuracy, list_metrics

    accuracy = ["test_accuracy"] if not run.rows or any(map(has_accuracy, run.rows)) else []
    return accuracy, list_metrics(run.rows[-1]) if run.rows else []


def _many(runs: list[Run], folder: Path, shape: str, notes: list[str]) -> None:
    from splitrelay.reports.seed_groups import describe_keys, find_differing_keys
    from splitrelay.runs.run_directory import name_final_accuracy

    keys = find_differing_keys([run.spec for run in runs])
    rows = [
        (
            str(run.path.relative_to(folder)),
            describe_keys(run.spec, keys),
            _state(run),
            _round(run.accuracy),
            _round(_last(run, "test_accuracy")),
            _round(_last(run, "seconds"), 1, 1),
        )
        for run in runs
    ]
    name = name_final_accuracy([run.rows[-1]["round"] for run in runs if run.rows])
    table = Table(("run", "what differs", "state", name, "last evaluation (%)", "seconds"), rows, notes=notes)
    names = ("run", "what_differs", "state", "accuracy", "last_evaluation", "seconds")
    emit(table, [dict(zip(names, row, strict=True)) for row in rows], shape)


def _last(run: Run, name: str) -> Any:
    return run.rows[-1][name] if run.rows else None


def _round(value: float | None, factor: float = 100, digits: int = 2) -> float | None:
    return None if value is None else round(factor * value, digits)


def _state(run: Run) -> str:
    from splitrelay.runs.packed_records import has_record
    from splitrelay.runs.run_directory import RunDirectory

    if run.finished:
        return f"finished, {run.spec.R} rounds"
    directory, r = RunDirectory(run.path), run.rows[-1]["round"] if run.rows else 0
    how = ", running" if directory.is_locked() else ", diverged" if has_record(directory.diverged) else ""
    return f"round {r} of {run.spec.R}{how}"


def curve(shares: list[float]) -> str:
    """Numbers from 0 to 1 as a row of bars, in letters where the output has no bars."""
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
        bars = BARS
    except UnicodeEncodeError:
        bars = PLAIN
    picked = shares if len(shares) <= WIDTH else [shares[j * (len(shares) - 1) // (WIDTH - 1)] for j in range(WIDTH)]
    known = [0.0 if math.isnan(share) else share for share in picked]  # an evaluator may have been away
    return "".join(bars[min(len(bars) - 1, int(share * len(bars)))] for share in known)
