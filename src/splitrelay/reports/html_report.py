"""Write report.html: a run, or a folder of runs, as one page that works offline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.reports.accuracy import build_accuracy_table
from splitrelay.reports.html_charts import MOST, Series, draw_line_chart, thin_points
from splitrelay.reports.html_page import chart, format_linked_row, format_table, get_colour, note, page, section, table
from splitrelay.reports.html_run import build_run_page, series
from splitrelay.reports.labels import get_algorithm_label, get_data_label, get_partition_label
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.reports.seed_groups import is_complete
from splitrelay.reports.table_layout import Place, column_key, get_column, get_place, place_key
from splitrelay.runs.records import Run, has_runs, is_run, run_at, runs_under
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.table import format_cell

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
