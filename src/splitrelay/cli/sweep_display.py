"""A sweep as one sees it: a table drawn again in place, or a line for every change where there is no terminal."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.cli.console import note, progress_hidden
from splitrelay.cli.table_output import Table

if TYPE_CHECKING:
    from splitrelay.sweeps.jobs import JobStatus
    from splitrelay.sweeps.sweep import PointStatus, SweepStatus

OFTEN = 0.2  # seconds between two drawings
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
        if not at_once and now - self.drawn < OFTEN:
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
        words.append(f"best so far {best.accuracy:.2%} at {best.label}")
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
    """One row a point; what went wrong, below."""
    entries = board.entries.values()
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    columns = (*(keys or ["point"]), "state", "round", "of", "accuracy (%)")
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
    percent = None if entry.accuracy is None else round(100 * entry.accuracy, 2)
    return entry.state, entry.round, entry.R, percent


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
    accuracy = "" if entry.accuracy is None else f"{entry.accuracy:.2%}"
    why = f"  {entry.why}" if entry.why else ""
    return f"{entry.label:<{width}}  {entry.state:<8}  {entry.round:>6}/{entry.R:<6}  {accuracy:>7}{why}".rstrip()


def _change(board: SweepStatus, entry: PointStatus) -> str:
    compared = entry.state == "done" and board.count("done") > 1
    best = ", the best so far" if compared and entry is board.find_best() else ""
    counts = _halting(board) if entry.state == "stopped" else counted(board)
    return f"{_place(board)}  {entry.state:<8}  {_told(entry)}{best}  ({counts})"


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
    accuracy = "" if entry.accuracy is None else f" {entry.accuracy:.2%}"
    return f"{entry.label} round {entry.round}/{entry.R}{accuracy}"


def _told(entry: PointStatus) -> str:
    if entry.state == "done" and entry.accuracy is not None:
        return f"{entry.label}  {entry.accuracy:.2%}"
    if entry.round and not entry.why:  # it goes on, or will
        return _so_far(entry)
    return f"{entry.label}: {entry.why}" if entry.why else entry.label
