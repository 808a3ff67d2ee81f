"""`splitrelay sweep`: run every combination of values and show the progress."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import Table, emit, format_option, note, prepare_folder, progress_hidden, stopping
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.run import HERE, require_package
from splitrelay.cli.spec_arguments import CPU, check_device, device_option, expand_arguments, list_spec_keys
from splitrelay.errors import InputError, WorkError

if TYPE_CHECKING:
    from splitrelay.sweeps.jobs import JobRunner, JobStatus, Shard
    from splitrelay.sweeps.points import Point
    from splitrelay.sweeps.sweep import PointStatus, SweepStatus


REDRAW_SECONDS = 0.2  # seconds between two drawings
PULSE = 300.0  # seconds between two lines on the points that run, where there is no terminal
BROKEN = ("diverged", "failed")


class Display:
    """What is said about a sweep while it runs; all of it goes to stderr."""

    def __init__(self) -> None:
        self.live, self.lines, self.drawn = not progress_hidden(), 0, -math.inf
        self.pulse = time.monotonic()

    def show(self, board: SweepStatus, news: JobStatus | None) -> None:
        """The board after this news."""
        if self.live:
            self._draw(board, at_once=news is not None and news.state != "running")
        elif news is not None and news.round is None:
            note(_change(board, board.entries[news.name]))
        elif time.monotonic() - self.pulse > PULSE:
            self.pulse = time.monotonic()
            note(_pulse(board))

    def close(self) -> None:
        """The table of results takes its choose_folder."""
        if self.live:
            self._erase()

    def _draw(self, board: SweepStatus, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now - self.drawn < REDRAW_SECONDS:
            return
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in _picture(board, size.lines - 3)]
        self._erase()
        click.echo("\n".join(lines), err=True)
        self.lines, self.drawn = len(lines), now

    def _erase(self) -> None:
        if self.lines:
            click.echo(f"\x1b[{self.lines}F\x1b[J", err=True, nl=False, color=True)
            sys.stderr.flush()
        self.lines = 0


def summary(board: SweepStatus) -> str:
    """How many are where, the time that is left, what comes next, the best so far."""
    best, waiting = board.find_best(), board.select("waiting")
    words = [counted(board)]
    if waiting and board.count("running"):
        words.append(f"next {waiting[0].label}")
    if best is not None and best.accuracy is not None:
        seeds = f" (mean of {len(best.points)} seeds)" if len(best.points) > 1 else ""
        words.append(f"best so far {best.accuracy:.2%}{seeds} at {best.label}")
    return "; ".join(words)


def counted(board: SweepStatus) -> str:
    """How many are where, and the time that is left unless they are being stopped."""
    counts = {state: board.count(state) for state in ("done", "running", "waiting", "stopped", *BROKEN)}
    words = ", ".join(f"{number} {state}" for state, number in counts.items() if number or state == "done")
    left = _time_left(board)
    return f"{words}; {left} left" if left else words


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def results(board: SweepStatus) -> Table:
    """Return one row per point. Notes below the table report what went wrong."""
    from splitrelay.runs.run_directory import name_final_accuracy

    entries = board.entries.values()
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    name = name_final_accuracy([entry.R for entry in entries])
    columns = (*(keys or ["point"]), "state", "round", "of", name, "last evaluation (%)")
    rows = [(*([_plain(entry.settings.get(key)) for key in keys] or [entry.label]), *_seen(entry)) for entry in entries]
    return Table(columns, rows, notes=[*_reasons(board), summary(board)])


def overview(boards: Sequence[SweepStatus], folder: Path) -> Table:
    """One row a sweep, and what runs in it."""
    states = ("done", "running", "waiting", "stopped", *BROKEN)
    rows = [
        (str(board.folder.relative_to(folder)), *(board.count(state) for state in states), _time_left(board) or None,
         "; ".join(map(_so_far, board.select("running"))) or None)
        for board in boards
    ]  # fmt: skip
    return Table(("sweep", *states, "left", "at"), rows, notes=["--status and a sweep's folder: every point of it."])


def _time_left(board: SweepStatus) -> str:
    """Of what runs and waits; nothing while points are being stopped, or before there is a pace."""
    left = board.estimate_seconds_left()
    return duration(left) if math.isfinite(left) and not board.count("stopped") else ""


def _seen(entry: PointStatus) -> tuple[object, ...]:
    shares = entry.accuracy, entry.last_evaluation
    return entry.state, entry.round, entry.R, *(None if share is None else round(100 * share, 2) for share in shares)


def _reasons(board: SweepStatus) -> Iterator[str]:
    for entry in board.entries.values():
        if entry.state in BROKEN:
            yield f"{entry.state}: {entry.label}: {entry.why}"
    if board.count("diverged"):
        yield "A run that diverged is a result, and not run again; --retry does."


def _plain(text: str | None) -> object:
    """A number where it is one, so that columns line up."""
    try:
        return None if text is None else int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def _picture(board: SweepStatus, most: int) -> list[str]:
    """The running points first where there is no room for all."""
    entries = list(board.entries.values())
    if len(entries) > most:
        rank = {"running": 0, "failed": 1, "diverged": 1, "done": 2}
        chosen = sorted(entries, key=lambda entry: rank.get(entry.state, 3))[: max(most - 1, 1)]
        entries = [entry for entry in entries if entry in chosen]
    width = max(len(entry.label) for entry in entries)
    hidden = len(board.entries) - len(entries)
    more = [f"... and {hidden} more"] if hidden else []
    return [*(_row(entry, width) for entry in entries), *more, summary(board)]


def _row(entry: PointStatus, width: int) -> str:
    share = entry.last_evaluation if entry.accuracy is None else entry.accuracy
    accuracy = "" if share is None else f"{share:.2%}"
    why = f"  {entry.why}" if entry.why else ""
    return f"{entry.label:<{width}}  {entry.state:<8}  {entry.round:>6}/{entry.R:<6}  {accuracy:>7}{why}".rstrip()


def _change(board: SweepStatus, entry: PointStatus) -> str:
    best = _describe_best(board, entry) if entry.state == "done" else ""
    counts = _halting(board) if entry.state == "stopped" else counted(board)
    return f"{_place(board)}  {entry.state:<8}  {_told(entry)}{best}  ({counts})"


def _describe_best(board: SweepStatus, entry: PointStatus) -> str:
    """Return that the setting of a point is the best of several, or an empty string."""
    ranked, best = [each for each in board.list_settings() if each.accuracy is not None], board.find_best()
    if best is None or len(ranked) < 2 or entry not in best.points:
        return ""
    several = len(best.points) > 1
    return f", its setting the best so far (mean {best.accuracy:.2%})" if several else ", the best so far"


def _halting(board: SweepStatus) -> str:
    busy = board.count("running")
    rest = f"{board.count('stopped')} to be gone on with, {board.count('waiting')} not begun"
    return f"{busy} still at a visit" if busy else rest


def _pulse(board: SweepStatus) -> str:
    running = [entry for entry in board.entries.values() if entry.state == "running"]
    return f"{_place(board)}  {'running':<8}  {'; '.join(map(_so_far, running))}  ({counted(board)})"


def _place(board: SweepStatus) -> str:
    done = f"{board.count('done', *BROKEN)}/{len(board.entries)}"
    return f"{time.strftime('%H:%M:%S')} {done:>7}"


def _so_far(entry: PointStatus) -> str:
    accuracy = "" if entry.last_evaluation is None else f" {entry.last_evaluation:.2%}"
    return f"{entry.label} round {entry.round}/{entry.R}{accuracy}"


def _told(entry: PointStatus) -> str:
    if entry.state == "done" and entry.accuracy is not None:
        return f"{entry.label}  {entry.accuracy:.2%}"
    if entry.round and not entry.why:  # it goes on, or will
        return _so_far(entry)
    return f"{entry.label}: {entry.why}" if entry.why else entry.label


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
    own = _share(share)
    file, values = expand_arguments("sweep", settings)
    found = expand_points(file, values)
    for twin in found.dropped:
        note(f"left out: {twin}")
    folder = out or Path("results/sweep")
    more = [] if share is None else ["--share", share]
    board = swept(found.points, folder, command("sweep", settings, folder, *more, **how), shard=own, **how)
    emit(results(board), payload(board), shape)
    failed = board.count("failed")
    if failed:
        raise WorkError(f"{failed} of {len(board.entries)} points failed", hint="The same command tries them again.")


def _share(text: str | None) -> Shard:
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


def swept(
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
        return _watched(found.points, folder, where, device=device, **how)
    except KeyboardInterrupt:
        note(f"results so far: {folder}. To continue: {again}")
        raise


def _watched(points: Sequence[Point], folder: Path, where: JobRunner, **how: Any) -> SweepStatus:
    from splitrelay.sweeps.sweep import run_sweep

    display = Display()
    with stopping() as stop, closing(run_sweep(points, folder, where, stop=stop, **how)) as going:
        try:
            for board, news in going:
                display.show(board, news)
        finally:
            display.close()
    return board


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
        emit(results(board), payload(board), shape)
        return
    boards = [load_status(path) for path in found]
    emit(overview(boards, folder), [payload(board) for board in boards], shape)


def payload(board: SweepStatus) -> dict[str, Any]:
    """Return the status for --format json."""
    points = [asdict(entry) for entry in board.entries.values()]
    return {"folder": str(board.folder), "seconds_left": board.estimate_seconds_left(), "points": points}
