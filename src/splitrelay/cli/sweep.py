"""`splitrelay sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.board import BROKEN, Display, results
from splitrelay.cli.console import note
from splitrelay.cli.interrupts import stopping
from splitrelay.cli.lazy import Command
from splitrelay.cli.output import emit, format_option, ready
from splitrelay.cli.run import HERE, KEYS, at_hand
from splitrelay.cli.settings import settings_argument
from splitrelay.cli.spread import spread
from splitrelay.errors import InputError, WorkError

if TYPE_CHECKING:
    from splitrelay.experiments.places import Places
    from splitrelay.experiments.points import Point
    from splitrelay.experiments.sweep import Board


OFTEN = 10  # looks between two checkpoints


def places_options(command: Any) -> Any:
    """Where points are run, and how often they are kept."""
    for option in (
        click.option("--jobs", type=click.IntRange(min=1), help="Points at once (default: one a core)."),
        click.option("--on", default=HERE, show_default=True, metavar="local|ray|ADDRESS",
                     help="local: the cores of this machine; ray: a Ray started here; or the address of one: ray://..."),
        click.option("--checkpoint", type=click.IntRange(min=1), default=OFTEN, show_default=True,
                     help="Looks between two of them."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command, keys=KEYS, example="splitrelay sweep data=digits R=2 eta=0.1,0.3")
@settings_argument(KEYS, metavar="[SPEC] [KEY=VALUE[,VALUE]...]...")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: results/sweep).")
@places_options
@click.option("--status", type=click.Path(path_type=Path), metavar="FOLDER", help="Only show how far a sweep is.")
@format_option
def sweep(settings: Sequence[str], out: Path | None, status: Path | None, shape: str, **how: Any) -> None:
    """Run every combination of the given values: comma lists, and ranges from:to[:log][:points].

    Each point is a run directory of its own, named by what varies and by the run's hash. Points that are finished are
    not run again, points that were stopped go on. One that fails stops no other; the reasons stand below the table.
    """
    if status is not None:
        show_status(status, shape)
        return
    from splitrelay.experiments.points import points_of

    file, values = spread("sweep", settings)
    found = points_of(file, values)
    for twin in found.dropped:
        note(f"left out: {twin}")
    folder = out or Path("results/sweep")
    board = swept(found.points, folder, command("sweep", settings, folder, **how), **how)
    emit(results(board), payload(board), shape)
    broken = board.number(*BROKEN)
    if broken:
        raise WorkError(f"{broken} of {len(board.entries)} points failed", way_out="The others are done.")


def command(
    name: str, settings: Sequence[str], folder: Path, *more: str, on: str, jobs: int | None, checkpoint: int
) -> str:
    """What to type to go on."""
    places = ["--on", on] * (on != HERE) + ["--jobs", str(jobs)] * (jobs is not None)
    often = ["--checkpoint", str(checkpoint)] * (checkpoint != OFTEN)
    return shlex.join(["splitrelay", name, *settings, *more, *places, *often, "--out", str(folder)])


def swept(points: Sequence[Point], folder: Path, again: str, *, on: str, jobs: int | None, checkpoint: int) -> Board:
    """The sweep, shown while it runs; `again` is the command that goes on after Ctrl-C."""
    where = places(on, jobs, folder)
    from splitrelay.experiments.feasible import settled

    found = settled(points)
    for twin in found.dropped:
        note(f"left out: {twin}")
    ready(folder)
    try:
        return _watched(found.points, folder, where, checkpoint)
    except KeyboardInterrupt:
        note(f"kept in {folder}. Go on with: {again}")
        raise


def _watched(points: Sequence[Point], folder: Path, where: Places, checkpoint: int) -> Board:
    from splitrelay.experiments.sweep import sweep as run

    display = Display()
    with stopping() as stop, closing(run(points, folder, where, checkpoint=checkpoint, stop=stop)) as going:
        try:
            for board, news in going:
                display.show(board, news)
        finally:
            display.close()
    return board


def places(on: str, jobs: int | None, folder: Path) -> Places:
    """What --on names."""
    if on == HERE:
        from splitrelay.experiments.pool import Local

        return Local(jobs, folder / "workers.log")
    if on == "slurm":
        raise InputError("--on slurm is not there yet", way_out="Use local, ray, or the address of a Ray cluster.")
    from splitrelay.experiments.addresses import address_of

    with at_hand("ray"):
        from splitrelay.experiments.cluster import OnRay
    return OnRay(address_of(on), jobs)


def show_status(folder: Path, shape: str) -> None:
    """The same table, from a second terminal."""
    from splitrelay.experiments.sweep import status

    board = status(folder)
    emit(results(board), payload(board), shape)


def payload(board: Board) -> dict[str, Any]:
    """The board for programs."""
    return {"folder": str(board.folder), "points": [asdict(entry) for entry in board.entries.values()]}
