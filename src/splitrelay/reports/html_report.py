"""report.html: a run, or a folder of runs, as one page that explains itself, offline."""

from __future__ import annotations

from pathlib import Path

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.reports.html_folder import folder_page
from splitrelay.reports.html_run import run_page
from splitrelay.runs.records import has_runs, is_run, run_at, runs_under
from splitrelay.runs.run_directory import RunDirectory

NAME = "report.html"


def write_report(directory: Path) -> Path:
    """DIR/report.html, of a run (finished or not) or of a folder of runs; made from the records alone."""
    if not directory.is_dir() and has_runs(directory):
        hint = f"Unpack it: splitrelay publish {directory} --to FOLDER"
        raise InputError(f"{directory} is in an archive, which has no place for {NAME}", hint=hint)
    if is_run(directory):
        content = run_page(run_at(directory))
    else:
        runs = runs_under(directory)
        for run in runs:
            if _is_stale(run.path):
                write_report(run.path)
        content = folder_page(directory, runs, NAME)
    write_text(directory / NAME, content)
    return directory / NAME


def _is_stale(directory: Path) -> bool:
    """Whether a run has no page, or one that is older than its rows."""
    own, records = directory / NAME, RunDirectory(directory)
    rows = records.rounds if records.rounds.exists() else records.published
    return not own.exists() or own.stat().st_mtime_ns < rows.stat().st_mtime_ns
