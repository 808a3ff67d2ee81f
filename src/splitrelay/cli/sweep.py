"""`splitrelay sweep`: run every combination of values and show the progress."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, is_progress_hidden, note, prepare_folder, stopping
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.run import HERE, require_package
from splitrelay.cli.spec_arguments import CPU, check_device, device_option, expand_arguments, list_spec_keys
from splitrelay.errors import InputError, WorkError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.sweeps.jobs import JobRunner, JobStatus, Shard
    from splitrelay.sweeps.points import Point
    from splitrelay.sweeps.sweep import PointStatus, SweepStatus


REDRAW_SECONDS = 0.2  # seconds between two drawings
PRINT_SECONDS = 300.0  # seconds between two lines on the running points, without a terminal
BROKEN = ("diverged", "failed")


class Display:
    """Shows a sweep on stderr while it runs: a table that is redrawn on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self.is_live, self.lines, self.drawn_at = not is_progress_hidden(), 0, -math.inf
        self.printed_at = time.monotonic()

    def show(self, board: SweepStatus, change: JobStatus | None) -> None:
        """Show the sweep after a change."""
        now = time.monotonic()
        if self.is_live:
            is_urgent = change is not None and change.state != "running"
            if is_urgent or now - self.drawn_at >= REDRAW_SECONDS:
                self._draw(board)
        elif change is not None and change.round is None:
            note(_format_change(board, board.entries[change.name]))
        elif now - self.printed_at > PRINT_SECONDS:
            self.printed_at = now
            points = "; ".join(map(_format_progress, board.select("running")))
            note(f"{_format_place(board)}  {'running':<8}  {points}  ({format_counts(board)})")

    def close(self) -> None:
        """Erase the table, because the table of results takes its place."""
        if self.is_live:
            self._erase()

    def _draw(self, board: SweepStatus) -> None:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in _list_terminal_lines(board, size.lines - 3)]
        self._erase()
        click.echo("\n".join(lines), err=True)
        self.lines, self.drawn_at = len(lines), time.monotonic()

    def _erase(self) -> None:
        if self.lines:
            click.echo(f"\x1b[{self.lines}F\x1b[J", err=True, nl=False, color=True)
            sys.stderr.flush()
        self.lines = 0


def _list_terminal_lines(board: SweepStatus, most: int) -> list[str]:
    """Return a line for each point. If there are too many, those that run come first, and others are left out."""
    entries = list(board.entries.values())
    if len(entries) > most:
        rank = {"running": 0, "failed": 1, "diverged": 1, "done": 2}
        chosen = sorted(entries, key=lambda entry: rank.get(entry.state, 3))[: max(most - 1, 1)]
        entries = [entry for entry in entries if entry in chosen]
    width = max(len(entry.label) for entry in entries)
    lines = []
    for entry in entries:
        share = entry.last_evaluation if entry.accuracy is None else entry.accuracy
        accuracy = "" if share is None else f"{share:.2%}"
        why = f"  {entry.why}" if entry.why else ""
        state = f"{entry.label:<{width}}  {entry.state:<8}  {entry.round:>6}/{entry.R:<6}"
        lines.append(f"{state}  {accuracy:>7}{why}".rstrip())
    hidden = len(board.entries) - len(entries)
    return [*lines, *([f"... and {hidden} more"] if hidden else []), format_summary(board)]


def _format_change(board: SweepStatus, entry: PointStatus) -> str:
    """Return a line on a point whose state has changed."""
    point, counts = entry.label, format_counts(board)
    if entry.state == "done" and entry.accuracy is not None:
        point = f"{entry.label}  {entry.accuracy:.2%}"
    elif entry.why:
        point = f"{entry.label}: {entry.why}"
    elif entry.round:
        point = _format_progress(entry)
    if entry.state == "done":
        point += _describe_best(board, entry)
    if entry.state == "stopped":
        running, stopped, waiting = (board.count(state) for state in ("running", "stopped", "waiting"))
        counts = f"{running} still at a visit" if running else f"{stopped} to be continued, {waiting} not started"
    return f"{_format_place(board)}  {entry.state:<8}  {point}  ({counts})"


def _describe_best(board: SweepStatus, entry: PointStatus) -> str:
    """Return that the setting of a point is the best of several, or an empty string."""
    ranked, best = [each for each in board.list_settings() if each.accuracy is not None], board.find_best()
    if best is None or len(ranked) < 2 or entry not in best.points:
        return ""
    several = len(best.points) > 1
    return f", its setting the best so far (mean {best.accuracy:.2%})" if several else ", the best so far"


def _format_place(board: SweepStatus) -> str:
    """Return the time of day and how many of the points have ended."""
    ended = f"{board.count('done', *BROKEN)}/{len(board.entries)}"
    return f"{time.strftime('%H:%M:%S')} {ended:>7}"


def _format_progress(entry: PointStatus) -> str:
    accuracy = "" if entry.last_evaluation is None else f" {entry.last_evaluation:.2%}"
    return f"{entry.label} round {entry.round}/{entry.R}{accuracy}"


def format_summary(board: SweepStatus) -> str:
    """Return the number of points in each state, the time left, the next point and the best setting so far."""
    best, waiting = board.find_best(), board.select("waiting")
    parts = [format_counts(board)]
    if waiting and board.count("running"):
        parts.append(f"next {waiting[0].label}")
    if best is not None and best.accuracy is not None:
        seeds = f" (mean of {len(best.points)} seeds)" if len(best.points) > 1 else ""
        parts.append(f"best so far {best.accuracy:.2%}{seeds} at {best.label}")
    return "; ".join(parts)


def format_counts(board: SweepStatus) -> str:
    """Return the number of points in each state, and the time left if it is known."""
    counts = {state: board.count(state) for state in ("done", "running", "waiting", "stopped", *BROKEN)}
    text = ", ".join(f"{number} {state}" for state, number in counts.items() if number or state == "done")
    left = _format_time_left(board)
    return f"{text}; {left} left" if left else text


def _format_time_left(board: SweepStatus) -> str:
    """Return the time left; an empty string while points stop, or before the first row."""
    left = board.estimate_seconds_left()
    return format_duration(left) if math.isfinite(left) and not board.count("stopped") else ""


def format_duration(seconds: float) -> str:
    """Return seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def build_results_table(board: SweepStatus) -> Table:
    """Return one row per point. Notes below the table report what went wrong."""
    from splitrelay.runs.run_directory import name_final_accuracy

    entries = board.entries.values()
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    name = name_final_accuracy([entry.R for entry in entries])
    columns = (*(keys or ["point"]), "state", "round", "of", name, "last evaluation (%)")
    rows = []
    for entry in entries:
        settings = [_convert_number(entry.settings.get(key)) for key in keys] or [entry.label]
        shares = [None if share is None else round(100 * share, 2) for share in (entry.accuracy, entry.last_evaluation)]
        rows.append((*settings, entry.state, entry.round, entry.R, *shares))
    notes = [f"{entry.state}: {entry.label}: {entry.why}" for entry in entries if entry.state in BROKEN]
    if board.count("diverged"):
        notes.append("A run that diverged is a result, and not run again; --retry does.")
    return Table(columns, rows, notes=[*notes, format_summary(board)])


def _convert_number(text: str | None) -> object:
    """Return a number if the text is one, so that columns are aligned."""
    try:
        return None if text is None else int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def build_overview_table(boards: Sequence[SweepStatus], folder: Path) -> Table:
    """Return one row per sweep, with the points that run."""
    states = ("done", "running", "waiting", "stopped", *BROKEN)
    rows = [
        (str(board.folder.relative_to(folder)), *(board.count(state) for state in states),
         _format_time_left(board) or None, "; ".join(map(_format_progress, board.select("running"))) or None)
        for board in boards
    ]  # fmt: skip
    return Table(("sweep", *states, "left", "at"), rows, notes=["--status and a sweep's folder: every point of it."])


CHECKPOINT_EVERY = 10  # evaluations between two checkpoints


def places_options(command: Any) -> Any:
    """Add the options that choose where points run and how often they are saved."""
    for option in (
        click.option("--retry", is_flag=True, help="Run points that diverged again."),
        click.option("--jobs", type=click.IntRange(min=1), help="Points at a time (default: one per core)."),
        click.option("--on", default=HERE, show_default=True, metavar="local|ray|ADDRESS",
                     help="local: the cores of this machine; ray: a Ray started here; or the address of one."),
        click.option("--checkpoint", type=click.IntRange(min=1), default=CHECKPOINT_EVERY, show_default=True,
                     help="Evaluations between two checkpoints."),
        device_option,
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay sweep data=digits R=2 eta=0.1,0.3")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE[,VALUE]...]...")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: results/sweep).")
@places_options
@click.option("--share", metavar="I/N", help="Run only every N-th point from the I-th on: for array jobs on N hosts.")
@click.option("--status", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Only show how far a sweep, or all sweeps in a folder, are.")  # fmt: skip
@format_option
def sweep(
    settings: Sequence[str], out: Path | None, share: str | None, status: Path | None, shape: str, **how: Any
) -> None:
    """Run every combination of the given values: comma lists, and ranges from:to[:log][:points].

    Each point has its own run directory, named by the settings that vary and the hash. Finished points are not run
    again, and stopped points continue. A point that fails does not stop the others; the reasons are below the table.
    --on takes local, ray, auto (the Ray of this machine), host:port and ray://host:port.
    """
    if status is not None:
        show_status(status, shape)
        return
    from splitrelay.sweeps.points import expand_points

    if not settings:
        raise InputError("there is nothing to sweep", hint="For example: splitrelay sweep data=digits eta=0.1,0.3")
    shard = _parse_share(share)
    file, values = expand_arguments("sweep", settings)
    found = expand_points(file, values)
    for twin in found.dropped:
        note(f"left out: {twin}")
    folder = out or Path("results/sweep")
    more = [] if share is None else ["--share", share]
    board = run_and_show(found.points, folder, command("sweep", settings, folder, *more, **how), shard=shard, **how)
    emit(build_results_table(board), build_payload(board), shape)
    failed = board.count("failed")
    if failed:
        raise WorkError(f"{failed} of {len(board.entries)} points failed", hint="The same command tries them again.")


def _parse_share(text: str | None) -> Shard:
    from splitrelay.sweeps.jobs import ALL, Shard

    if text is None:
        return ALL
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise InputError("a share is I/N, with I from 1 to N", value=repr(text), hint="For example: --share 3/16.")
    return Shard(int(i), int(n))


def command(
    name: str,
    settings: Sequence[str],
    folder: Path,
    *more: str,
    on: str,
    jobs: int | None,
    checkpoint: int,
    retry: bool,
    device: str,
) -> str:
    """Return the command that continues the sweep."""
    places = ["--on", on] * (on != HERE) + ["--jobs", str(jobs)] * (jobs is not None) + ["--retry"] * retry
    often = ["--checkpoint", str(checkpoint)] * (checkpoint != CHECKPOINT_EVERY)
    often += ["--device", device] * (device != CPU)
    return shlex.join(["splitrelay", name, *settings, *more, *places, *often, "--out", str(folder)])


def run_and_show(
    points: Sequence[Point], folder: Path, again: str, *, on: str, jobs: int | None, device: str = CPU, **how: Any
) -> SweepStatus:
    """Run a sweep and show its progress. `again` is the command that continues it after Ctrl-C."""
    where = choose_backend(on, jobs, folder)
    from splitrelay.sweeps.points import check_points

    check_device(device)
    found = check_points(points, device)
    for twin in found.dropped:
        note(f"left out: {twin}")
    prepare_folder(folder)
    try:
        from splitrelay.sweeps.sweep import run_sweep

        display = Display()
        with (
            stopping() as stop,
            closing(run_sweep(found.points, folder, where, stop=stop, device=device, **how)) as progress,
        ):
            try:
                for board, change in progress:
                    display.show(board, change)
            finally:
                display.close()
        return board
    except KeyboardInterrupt:
        note(f"results so far: {folder}. To continue: {again}")
        raise


def choose_backend(on: str, jobs: int | None, folder: Path) -> JobRunner:
    """Return the backend that --on names."""
    if on == HERE:
        from splitrelay.sweeps.process_backend import ProcessBackend

        return ProcessBackend(jobs, folder / "workers.log")
    if on == "slurm":
        raise InputError("there is no --on slurm", hint="Let an array job of N call: --share $SLURM_ARRAY_TASK_ID/N.")
    from splitrelay.sweeps.ray_backend import check_address

    with require_package("ray"):
        from splitrelay.sweeps.ray_backend import RayBackend
    return RayBackend(check_address(on), jobs)


def show_status(folder: Path, shape: str) -> None:
    """Print the table of a sweep, or a row for each sweep in a folder."""
    from splitrelay.sweeps.sweep import find_sweeps, load_status

    found = find_sweeps(folder)
    if found in ([], [folder]):
        board = load_status(folder)
        emit(build_results_table(board), build_payload(board), shape)
        return
    boards = [load_status(path) for path in found]
    emit(build_overview_table(boards, folder), [build_payload(board) for board in boards], shape)


def build_payload(board: SweepStatus) -> dict[str, Any]:
    """Return the status for --format json."""
    points = [asdict(entry) for entry in board.entries.values()]
    return {"folder": str(board.folder), "seconds_left": board.estimate_seconds_left(), "points": points}
