"""`splitrelay track`: copy rows to experiment trackers."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, stopping
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.tracking.session import Copied, Tracking

INTERVAL = 2.0  # seconds between two looks at the rows
COLUMNS = ("run", "tracker", "new rounds", "round", "of", "state")
STOPPING = "stopping; the same command continues where it stopped"


@click.command(cls=Command, example="splitrelay track results --to tensorboard:logs")
@click.argument("path", metavar="RUN|FOLDER", type=click.Path(path_type=Path))
@click.option("--to", "places", multiple=True, required=True, metavar="TRACKER[,TRACKER]...",
              help="tensorboard:DIR, mlflow:URI, wandb or wandb:[ENTITY/]PROJECT.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Continue with new rows until the run ends, or until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=INTERVAL, show_default=True,
              help="Seconds between two looks at the rows, with --follow.")  # fmt: skip
@format_option
def track(path: Path, places: tuple[str, ...], follow: bool, interval: float, shape: str) -> None:
    """Copy the rows of runs to TensorBoard, MLflow or Weights & Biases, during the training or after it.

    The command reads run directories, simulated or deployed, and never takes part in a training. A second call writes
    only what is new. Of a folder, --follow also finds runs that start later, and ends with Ctrl-C.
    """
    from splitrelay.tracking.session import Tracking, make_tracker

    texts = [text for place in places for text in place.split(",") if text]
    if not texts:
        raise InputError("--to names no tracker", hint="For example: --to tensorboard:logs")
    if not path.exists():  # before a tracker is contacted
        Tracking(path, [])
    with Tracking(path, [make_tracker(text) for text in texts]) as tracking:
        copied = _follow(tracking, interval) if follow else tracking.update()
    if not copied:
        raise InputError(f"there are no runs in {path}", hint="Wait for the first row with --follow.")
    rows = [tuple(asdict(each).values()) for each in copied]
    emit(Table(COLUMNS, rows), [asdict(each) for each in copied], shape)


def _follow(tracking: Tracking, interval: float) -> list[Copied]:
    """Update until the run ends. At Ctrl-C, finish the current update and close the trackers."""
    totals: dict[tuple[str, str], int] = {}
    with stopping(STOPPING) as stop:
        while True:
            copied = tracking.update()
            for each in copied:
                key = each.name, each.tracker
                if each.new or key not in totals:
                    note(f"{each.name}: round {each.round} of {each.R}, {each.state}; {each.new} new at {each.tracker}")
                totals[key] = totals.get(key, 0) + each.new
            if tracking.is_over(copied) or stop.wait(interval):
                break
    if stop.is_set():
        raise KeyboardInterrupt
    return [replace(each, new=totals[each.name, each.tracker]) for each in copied]
