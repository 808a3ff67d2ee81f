"""A sweep: one run directory for every point, and a board that says how far they all are."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import TYPE_CHECKING, Any

from splitrelay.errors import InputError
from splitrelay.experiments.paper.cells import LAST
from splitrelay.experiments.places import ALL, Errand, News, Places, Share
from splitrelay.files import write_text
from splitrelay.records import RunDirectory
from splitrelay.records.directory import LOCK

if TYPE_CHECKING:
    from splitrelay.experiments.points import Point

SETTLED = ("done", "diverged")  # would be the same the next time
ENDED = (*SETTLED, "failed")


@dataclass
class Entry:
    """One point on the board. `work` is what its rounds cost, in steps; `before`, the rounds that it began with."""

    name: str
    label: str
    settings: dict[str, str]
    R: int
    work: float
    state: str = "waiting"
    round: int = 0
    before: int = 0
    accuracy: float | None = None  # of the last round; of the last LAST rounds where it is done
    why: str = ""

    def hear(self, news: News) -> None:
        """What became of it."""
        self.state, self.why = news.state, news.why
        self.round = self.round if news.round is None else news.round
        self.accuracy = self.accuracy if news.accuracy is None else news.accuracy


@dataclass
class Board:
    """All points of a sweep, or of a share of it, kept in its folder as sweep.json."""

    folder: Path
    entries: dict[str, Entry]
    began: float = 0.0  # when the first row came
    share: Share = ALL

    def number(self, *states: str) -> int:
        """How many points are in these states."""
        return sum(entry.state in states for entry in self.entries.values())

    def best(self) -> Entry | None:
        """The finished point with the highest accuracy."""
        done = [entry for entry in self.entries.values() if entry.state == "done" and entry.accuracy is not None]
        return max(done, key=lambda entry: entry.accuracy or 0.0, default=None)

    def left(self) -> float:
        """Seconds until all is done, at the pace so far; NaN before there is one."""
        ran = sum(entry.work * (entry.round - entry.before) for entry in self.entries.values())
        open_ = [entry for entry in self.entries.values() if entry.state not in ENDED]
        todo = sum(entry.work * (entry.R - entry.round) for entry in open_)
        return (time.time() - self.began) * todo / ran if ran > 0 and self.began else math.nan

    def save(self) -> None:
        """For --status, and for whoever comes later."""
        content = {"began": self.began, "points": [asdict(entry) for entry in self.entries.values()]}
        write_text(self.folder / f"sweep{self.share.suffix}.json", json.dumps(content, indent=1) + "\n")


def sweep(
    points: Sequence[Point],
    folder: Path,
    places: Places,
    *,
    checkpoint: int = 10,
    stop: Event | None = None,
    retry: bool = False,
    share: Share = ALL,
) -> Generator[tuple[Board, News | None], None, None]:
    """The board after everything that happens, with what it was.

    Points that are finished are not run again, nor are those that diverged, which they would again: `retry` does.
    """
    stop = stop or Event()
    with RunDirectory(folder).locked(LOCK + share.suffix):
        homes = {home(folder, point): point for point in share.of(points)}
        entries = {path.name: _entry(point, path, retry) for path, point in homes.items()}
        board = Board(folder, entries, share=share)
        board.save()
        yield board, None
        errands = [
            Errand(path.name, point.spec.model_dump(), str(path.absolute()), checkpoint)
            for path, point in homes.items()
            if entries[path.name].state not in SETTLED
        ]
        with closing(places.run(errands, stop)) as happening:
            for news in happening:
                _note(board, news)
                yield board, news
        if stop.is_set() and board.number("waiting", "stopped"):
            raise KeyboardInterrupt


def _note(board: Board, news: News | None) -> None:
    if news is None:
        return
    if news.round is not None and not board.began:
        board.began = time.time()  # what came before is start-up
    entry = board.entries[news.name]
    before = entry.state
    entry.hear(news)
    if news.state == "done":
        entry.accuracy = final_accuracy(RunDirectory(board.folder / entry.name).seen())
    if entry.state != before:
        board.save()


def status(folder: Path) -> Board:
    """The board of a sweep as other processes keep it, all shares together; rounds and accuracies from the rows."""
    try:
        files = sorted(folder.glob("sweep*.json"), key=lambda file: file.stat().st_mtime_ns)
        boards = [_kept(folder, file) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        boards = []
    if not boards:
        raise InputError(f"{folder} is not the folder of a sweep", way_out=_elsewhere(folder))
    entries = {name: entry for board in boards for name, entry in board.entries.items()}  # the newest has the last word
    return Board(folder, entries, min((board.began for board in boards if board.began), default=0.0))


def _elsewhere(folder: Path) -> str:
    """A reproduction keeps its sweeps one folder further down."""
    found = sorted({str(file.parent) for file in folder.glob("*/sweep*.json")})
    return f"Those in it: {', '.join(found)}." if found else "It would hold sweep.json."


def _kept(folder: Path, file: Path) -> Board:
    content = json.loads(file.read_text(encoding="utf-8"))
    alive = RunDirectory(folder).at_work(LOCK + file.stem.removeprefix("sweep"))
    board = Board(folder, {each["name"]: Entry(**each) for each in content["points"]}, content["began"])
    for entry in board.entries.values():
        _looked_up(entry, RunDirectory(folder / entry.name).seen(), alive)
    return board


def final_accuracy(rows: Sequence[dict[str, Any]], column: str = "test_accuracy") -> float | None:
    """The mean over the last rounds, as the paper's tables have it; None where there are none."""
    seen = [row[column] for row in rows if row["round"] > max(0, rows[-1]["round"] - LAST) and column in row]
    return fmean(seen) if seen else None


def _looked_up(entry: Entry, rows: Sequence[dict[str, Any]], alive: bool) -> None:
    if rows:
        entry.round = rows[-1]["round"]
        entry.accuracy = final_accuracy(rows) if entry.state == "done" else rows[-1]["test_accuracy"]
    if entry.state == "running" and not alive:
        entry.state = "stopped"


def _entry(point: Point, home: Path, retry: bool = False) -> Entry:
    spec, directory = point.spec, RunDirectory(home)
    work = spec.K * (spec.S or spec.partition.M)
    entry = Entry(home.name, point.label, dict(point.settings), spec.R, work)
    rows = directory.seen()
    if rows:
        entry.round = entry.before = min(rows[-1]["round"], spec.R)
        entry.state = "done" if directory.finished(spec.R) else "waiting"
        entry.accuracy = final_accuracy(rows) if entry.state == "done" else rows[-1]["test_accuracy"]
    if entry.state != "done" and directory.diverged.exists() and not retry:
        entry.state, entry.why = "diverged", directory.diverged.read_text(encoding="utf-8").strip()
    return entry


def home(folder: Path, point: Point) -> Path:
    """Where the run is or will be: known by its hash, whatever its readable name was when it began."""
    engines = ("fast", "reference") if point.spec.engine == "auto" else (point.spec.engine,)
    hashes = [point.spec.model_copy(update={"engine": engine}).hash for engine in (*engines, point.spec.engine)]
    found = [path for name in hashes for path in sorted(folder.glob(f"*-{name}")) if path.is_dir()]
    return found[0] if found else folder / point.name
