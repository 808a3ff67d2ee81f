"""`splitrelay sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.run import HERE, require_package
from splitrelay.cli.signals import stopping
from splitrelay.cli.spec_arguments import expand_arguments, list_spec_keys
from splitrelay.cli.sweep_display import Display, overview, results
from splitrelay.cli.table_output import emit, format_option, prepare_folder
from splitrelay.errors import InputError, WorkError

if TYPE_CHECKING:
    from splitrelay.sweeps.jobs import JobRunner, Shard
    from splitrelay.sweeps.points import Point
    from splitrelay.sweeps.sweep import SweepStatus


OFTEN = 10  # evaluations between two checkpoints


def places_options(command: Any) -> Any:
    """Add the options that choose where points run and how often they are saved."""
    for option in (
        click.option("--retry", is_flag=True, help="Run points that diverged again."),
        click.option("--jobs", type=click.IntRange(min=1), help="Points at a time (default: one per core)."),
        click.option("--on", default=HERE, show_default=True, metavar="local|ray|ADDRESS",
                     help="local: the cores of this machine; ray: a Ray started here; or the address of one."),
        click.option("--checkpoint", type=click.IntRange(min=1), default=OFTEN, show_default=True,
                     help="Evaluations between two checkpoints."),
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
) -> str:
    """Return the command that continues the sweep."""
    places = ["--on", on] * (on != HERE) + ["--jobs", str(jobs)] * (jobs is not None) + ["--retry"] * retry
    often = ["--checkpoint", str(checkpoint)] * (checkpoint != OFTEN)
    return shlex.join(["splitrelay", name, *settings, *more, *places, *often, "--out", str(folder)])


def swept(points: Sequence[Point], folder: Path, again: str, *, on: str, jobs: int | None, **how: Any) -> SweepStatus:
    """Run a sweep and show its progress. `again` is the command that continues it after Ctrl-C."""
    where = choose_backend(on, jobs, folder)
    from splitrelay.sweeps.points import check_points

    found = check_points(points)
    for twin in found.dropped:
        note(f"left out: {twin}")
    prepare_folder(folder)
    try:
        return _watched(found.points, folder, where, **how)
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
