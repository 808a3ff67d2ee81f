"""Write report.html: a run, or a folder of runs, as one page that works offline.

Build the HTML page of one run.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import write_text
from splitrelay.data.partition_io import load_partition
from splitrelay.errors import InputError
from splitrelay.reports.accuracy import build_accuracy_table
from splitrelay.reports.html_page import (
    MOST,
    Series,
    chart,
    command,
    draw_bar_chart,
    draw_heat_map,
    draw_line_chart,
    format_linked_row,
    format_setting_row,
    format_table,
    get_colour,
    note,
    page,
    section,
    table,
    thin_points,
    tiles,
)
from splitrelay.reports.labels import (
    format_value_label,
    get_algorithm_label,
    get_data_label,
    get_key_label,
    get_partition_label,
    get_run_label,
    get_setting_label,
)
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.reports.seed_groups import Group, find_state, is_complete
from splitrelay.reports.summary import summarise_group
from splitrelay.reports.table_layout import Place, column_key, get_column, get_place, place_key
from splitrelay.runs.client_records import CLIENTS, PREFIX, ClientRecord, read_clients
from splitrelay.runs.records import Run, has_runs, is_run, run_at, runs_under
from splitrelay.runs.run_directory import RunDirectory, describe_final_rounds, format_resume_command, list_metrics
from splitrelay.runs.spec import Spec
from splitrelay.structured_text import parse_json
from splitrelay.table import format_cell

ROWS = 12  # last evaluations that are shown as numbers
OPEN = 30  # clients; a longer list is folded


def build_run_page(run: Run) -> str:
    """Return the page of a run, finished or not: settings, results, cost, and commands to continue."""
    spec = run.spec
    where = f"{get_data_label(spec.data.name)}, {get_partition_label(spec.partition)}, {get_setting_label(spec)}"
    parts = [note(f"Run {spec.hash}, seed {spec.seed}, {_describe_state(run)}.")]
    if run.rows:
        parts += [_build_tiles(run), _build_curves(run), _build_classes(run)]
    parts += [
        _build_partition(run.path),
        _build_clients(run.path),
        _build_settings(run),
        _build_traffic(run),
        _build_environment(run.path),
        _build_commands(run),
    ]
    return page(
        f"{get_run_label(spec)} on {where}",
        [part for part in parts if part],
    )


def series(run: Run, field: str, name: str, colour: str, times: float = 1) -> Series:
    """Return the values of a field over the rounds."""
    points = [(float(row["round"]), times * float(row[field])) for row in run.rows if _is_number(row.get(field))]
    return Series(name, colour, points)


def _is_number(value: Any) -> bool:
    """Return whether a row has this field. Evaluations that the evaluator missed have no numbers."""
    return value is not None and not math.isnan(value)


def _describe_state(run: Run) -> str:
    if not run.rows:
        return "no rows yet"
    r = run.rows[-1]["round"]
    state = "diverged" if run.has_diverged else "not finished"
    return f"finished after {r} rounds" if is_complete(run) else f"{state}: round {r} of {run.spec.R}"


def _build_tiles(run: Run) -> str:
    end = run.rows[-1]
    seen = summarise_group(Group((run,)))
    best = max(run.rows, key=lambda row: -1 if math.isnan(row["test_accuracy"]) else row["test_accuracy"])
    goal = "never" if seen.rounds is None else f"round {seen.rounds}"
    rounds = (
        "last value, as it diverged" if run.has_diverged else f"mean of the {describe_final_rounds([end['round']])}"
    )
    return tiles(
        [
            (f"test accuracy, {rounds}", _format_percent(seen.mean)),
            (f"last evaluation of the test accuracy (round {end['round']})", _format_percent(end["test_accuracy"])),
            (f"best test accuracy (round {best['round']})", _format_percent(best["test_accuracy"])),
            (f"first at {100 * seen.goal:g} % or above", goal),
            ("between clients and server", _format_bytes(end["bytes_up"] + end["bytes_down"])),
            ("training and evaluation", _format_seconds(end["seconds"])),
        ]
    )


def _build_curves(run: Run) -> str:
    accuracy = [
        series(run, "test_accuracy", "test", "blue", 100),
        series(run, "validation_accuracy", "validation", "green", 100),
    ]
    loss = [series(run, "test_loss", "test", "blue"), series(run, "train_loss", "training", "red")]
    charts = [
        chart(
            "Accuracy",
            draw_line_chart([line for line in accuracy if line.points], "training rounds", "accuracy (%)", 100),
        ),
        chart("Loss", draw_line_chart([line for line in loss if line.points], "training rounds", "loss")),
    ]
    charts = charts if accuracy[0].points else charts[1:]  # real numbers have no accuracy
    charts += [_draw_metric(run, name.removeprefix("test_")) for name in list_metrics(run.rows[-1])]
    said = [note(f"Drawn from {len(run.rows)} evaluations: the lowest and the highest of each interval.")] * (
        len(run.rows) > MOST
    )
    rows = [[_format_cell(row.get(name)) for name in _get_columns(run)] for row in run.rows[-ROWS:]]
    last = f"<details><summary>The last {len(rows)} evaluations</summary>{table(_get_columns(run), rows)}</details>"
    return section("Curves", f'<div class="charts">{"".join(charts)}</div>', *said, last)


def _draw_metric(run: Run, name: str) -> str:
    """Return the chart of a metric. Its axis begins at 0, and values below 0 are left out."""
    lines = [series(run, f"test_{name}", "test", "blue"), series(run, f"validation_{name}", "validation", "green")]
    drawn = [Series(one.name, one.colour, [point for point in one.points if point[1] >= 0]) for one in lines]
    is_cut = any(len(one.points) < len(whole.points) for one, whole in zip(drawn, lines, strict=True))
    title = f"{name} (values below 0 are not drawn)" if is_cut else name
    return chart(title, draw_line_chart([line for line in drawn if line.points], "training rounds", name))


def _build_classes(run: Run) -> str:
    end = run.rows[-1]
    shares = [math.nan if share is None else float(share) for share in end.get("test_per_class") or []]
    if not shares:
        return ""
    names = [f"class {c}" for c in range(len(shares))]
    return section(
        "Each class at the end", draw_bar_chart(names, shares, f"test accuracy (%) after round {end['round']}")
    )


def _build_partition(directory: Path) -> str:
    file = directory / "partition.npz"
    if not file.exists():
        deployed = (directory / CLIENTS).exists()  # the server of a deployed run does not know the partition
        return "" if deployed else section("Partition", note("There is no partition.npz here."))
    try:
        found = load_partition(file)
        counts, labels = found.counts, [str(label) for label in found.classes.tolist()]
    except InputError as error:
        return section("Partition", note(str(error)))
    sizes = found.sizes
    words = f"{found.title}; {found.N} samples, {sizes.min()} to {sizes.max()} per client. Darker means more samples."
    return section("Partition", draw_heat_map(counts, labels), note(words))


def _build_clients(directory: Path) -> str:
    """Return the clients of a deployed run; nothing for a simulation."""
    try:
        found = read_clients(directory)
    except InputError as error:
        return section("Clients", note(str(error)))
    if found is None:
        return ""
    head = [
        "client",
        "samples",
        "visits",
        "skipped",
        "why skipped",
        "CPU level",
        "software",
        "data digest",
        "last arrival",
    ]
    rows = [_build_client_row(one) for one in (*found.clients, *found.others)]
    made = sum(one.visits for one in found.clients)
    notes = [f"A deployed run. Visits until round {found.round}: {made} made, {found.skipped} skipped."]
    unlike = "; ".join(f"{name}: {theirs} (server: {here})" for name, (theirs, here) in found.unlike().items())
    notes += [f"Unlike the server, so equality to the bit is not promised: {unlike}."] * bool(unlike)
    notes.append("Two clients with equal data have different digests. A digest belongs to this run.")
    listed = table(head, rows)
    if len(rows) > OPEN:
        listed = f"<details><summary>All {len(rows)} clients</summary>{listed}</details>"
    return section("Clients", *map(note, notes), listed)


def _build_client_row(one: ClientRecord) -> list[str]:
    why = "; ".join(f"{count} x {reason}" for reason, count in one.reasons.items())
    numbers = [str(one.client), str(one.samples or "-"), str(one.visits), str(one.skipped)]
    details = [", ".join(one.cpu), ", ".join(one.software), one.digest[:PREFIX], one.last_arrival]
    return [*numbers, *(text or "-" for text in (why, *details))]


def _build_settings(run: Run) -> str:
    rows = [format_setting_row(**setting) for setting in list_settings(run.spec)]
    skipped = sum(row.get("skipped", 0) for row in run.rows)
    decided = f"These settings and the {skipped} skipped visits" if skipped else "These settings alone"
    marked = note(f"● differs from the default. {decided} determine the numbers.")
    return section("Settings", marked, table(["", "key", "value", "meaning"], rows))


def list_settings(spec: Spec) -> list[dict[str, Any]]:
    """Return name, value and meaning of every key of a spec; `own` marks values that differ from the default."""
    defaults, words = Spec(algorithm=spec.algorithm).flatten(), get_key_descriptions()
    return [
        {
            "name": get_key_label(key),
            "value": format_value_label(value),
            "meaning": words[key],
            "own": value != defaults[key],
        }
        for key, value in spec.flatten().items()
    ]


def get_key_descriptions() -> dict[str, str]:
    """Every dotted key of a spec with its description."""
    found: dict[str, str] = {}
    for name, field in Spec.model_fields.items():
        part: Any = field.annotation
        inner = getattr(part, "model_fields", None)
        found |= (
            {f"{name}.{key}": f.description or "" for key, f in inner.items()}
            if inner
            else {name: field.description or ""}
        )
    return found


def _build_traffic(run: Run) -> str:
    if not run.rows:
        return ""
    end = run.rows[-1]
    rounds = max(end["round"], 1)
    rows = [
        ["bytes to the server", _format_bytes(end["bytes_up"]), _format_bytes(end["bytes_up"] / rounds)],
        ["bytes to the clients", _format_bytes(end["bytes_down"]), _format_bytes(end["bytes_down"] / rounds)],
        [
            "time, including evaluations",
            _format_seconds(end["seconds"]),
            _format_seconds(end["seconds"] / rounds),
        ],
    ]
    return section("Bytes and times", table(["", "total", "per round"], rows))


def _build_environment(directory: Path) -> str:
    file = directory / "environment.json"
    if not file.exists():
        return ""
    try:
        content = dict(parse_json(file.read_text(encoding="utf-8")))
    except ValueError:
        return section("Environment", note(f"{file.name} cannot be read."))
    said = note("Results are bit-identical only with the same versions and the same kind of processor.")
    return section("Environment", said, table(["name", "value"], [[str(k), str(v)] for k, v in content.items()]))


def _build_commands(run: Run) -> str:
    data = f"--model {shlex.quote(run.spec.model.name)} --data {shlex.quote(run.spec.data.name)}"
    place, state = shlex.quote(str(run.path)), find_state(run)
    return section(
        "Commands",
        *(command(text, why) for why, text in list_commands(run, "stopped" if state == "running" else state)),
        command(f"splitrelay evaluate {place} {data}", "Evaluate its final model:"),
        command(f"splitrelay report {place}", "Make this page again:"),
    )


def list_commands(run: Run, state: str) -> list[tuple[str, str]]:
    """Return the commands for a run in this state, each with its purpose, the most useful one first."""
    place, spec = shlex.quote(str(run.path)), shlex.quote(str(run.path / "spec.toml"))
    rate, slower = f"eta={run.spec.optimiser.eta / 3:.2g}", shlex.quote(f"{run.path}-smaller-rate")
    again = shlex.quote(f"{run.path}-again")
    first = {
        "finished": ("Repeat it elsewhere and compare it bit by bit:", f"splitrelay verify {place}"),
        "diverged": ("A smaller learning rate may help:", f"splitrelay run {spec} {rate} --out {slower}"),
        "running": ("It is running. To follow it in a terminal:", f"splitrelay show {place}"),
    }
    resume = ("It has stopped before its last round. Continue it:", format_resume_command(run.path))
    repeat = ("Run the same settings again in a new folder:", f"splitrelay run {spec} --out {again}")
    return [first.get(state, resume), repeat]


def _get_columns(run: Run) -> list[str]:
    return [name for name in run.rows[-1] if name not in ("test_per_class", "skipped_visits")]


def _format_cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _format_percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.2f} %"


def _format_bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.4g} B"


def _format_seconds(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.3g} s"


NAME = "report.html"
POINTS = 20_000  # of all curves together


def build_folder_page(folder: Path, runs: Sequence[Run], name: str) -> str:
    """Return the page of a folder of runs. `name` is the file name of the page of each run."""
    seen = [run for run in runs if run.rows]
    parts = [note(f"{len(runs)} runs, {sum(map(is_complete, runs))} of them finished.")]
    if seen:
        parts += [
            section("Curves", *_build_panels(seen)),
            section("Accuracy", format_table(build_accuracy_table(seen))),
        ]
    parts.append(_build_links(folder, runs, name))
    return page(f"Runs in {folder.resolve().name}", parts)


def _build_panels(runs: Sequence[Run]) -> Iterator[str]:
    """Yield one chart per data set, setting, K and partition, with one line per run, coloured by algorithm."""
    together: dict[tuple[Place, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (place_key(get_place(run.spec)), column_key(get_column(run.spec)))):
        together.setdefault((get_place(run.spec), get_partition_label(run.spec.partition)), []).append(run)
    names = sorted({run.spec.algorithm for run in runs})
    most = max(20, min(MOST, POINTS // len(runs)))
    charts = [
        chart(f"{get_data_label(place.data)}, {place.setting}, {part}, K={place.K}", _draw_lines(found, names, most))
        for (place, part), found in together.items()
    ]
    yield f'<div class="charts many">{"".join(charts)}</div>'
    yield note("Each line is a run. Point at a line to see its name.")


def _draw_lines(runs: Sequence[Run], names: Sequence[str], most: int) -> str:
    lines, named = [], set()
    for run in sorted(runs, key=lambda run: run.spec.algorithm):
        algorithm = run.spec.algorithm
        points = thin_points(series(run, "test_accuracy", "", "", 100).points, most)
        label = "" if algorithm in named else get_algorithm_label(algorithm)
        named.add(algorithm)
        lines.append(Series(label, get_colour(algorithm, names), points, run.path.name))
    return draw_line_chart(lines, "training rounds", "test accuracy (%)", 100)


def _build_links(folder: Path, runs: Sequence[Run], name: str) -> str:
    sheet = build_runs_table(runs)
    heads = [head.name for head in sheet.headings[:-1]]
    rows = [
        format_linked_row(
            _get_relative_path(run.path / name, folder),
            _get_relative_path(run.path, folder),
            map(format_cell, row[:-1]),
        )
        for run, row in zip(runs, sheet.rows, strict=True)
    ]
    return section("Runs", note(sheet.description), table(["run", *heads], rows))


def _get_relative_path(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def write_report(directory: Path) -> Path:
    """Write DIR/report.html for a run (finished or not) or for a folder of runs, from the records alone."""
    if not directory.is_dir() and has_runs(directory):
        hint = f"Unpack it: splitrelay publish {directory} --to FOLDER"
        raise InputError(f"{directory} is in an archive, so {NAME} cannot be written there", hint=hint)
    if is_run(directory):
        content = build_run_page(run_at(directory))
    else:
        runs = runs_under(directory)
        for run in runs:
            if _is_stale(run.path):
                write_report(run.path)
        content = build_folder_page(directory, runs, NAME)
    write_text(directory / NAME, content)
    return directory / NAME


def _is_stale(directory: Path) -> bool:
    """Return whether a run has no page, or a page that is older than its rows."""
    own, records = directory / NAME, RunDirectory(directory)
    rows = records.rounds if records.rounds.exists() else records.published
    return not own.exists() or own.stat().st_mtime_ns < rows.stat().st_mtime_ns
