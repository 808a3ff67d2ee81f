"""A sweep: one run directory for every point, and a board that says how far they all are."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from heapq import heapify, heapreplace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.runs.rows import Row, compute_final_accuracy, load_rows
from splitrelay.runs.run_directory import LOCK, RunDirectory
from splitrelay.structured_text import parse_json
from splitrelay.sweeps.jobs import ALL, Errand, News, Places, Share

if TYPE_CHECKING:
    from splitrelay.sweeps.points import Point

SETTLED = ("done", "diverged")  # would be the same the next time
ENDED = (*SETTLED, "failed")


@dataclass
class Entry:
    """One point on the board: what it is, how far it is, and when this sitting began with it."""

    name: str
    label: str
    settings: dict[str, str]
    R: int
    work: float  # what a round costs, in steps
    state: str = "waiting"
    round: int = 0
    accuracy: float | None = None  # of the last round; of the last LAST rounds where it is done
    why: str = ""
    before: int = 0  # the round from which this sitting goes on
    spent: float = 0.0  # seconds that earlier sittings took up to there
    began: float = 0.0  # when this one was there, and
    ended: float = 0.0  # when it ended; 0 where it has not

    def hear(self, news: News) -> None:
        """What became of it; a run that goes on tells its old rows again, which says nothing new."""
        if news.round is not None and news.round < self.before:
            return
        self.state, self.why = news.state, news.why
        self.accuracy = self.accuracy if news.accuracy is None else news.accuracy
        if news.round is not None:
            self.round = news.round
            self.began = self.began or time.time()  # what came before is start-up
        self.ended = 0.0 if news.state == "running" else time.time()

    def sitting(self) -> tuple[float, float]:
        """(seconds, steps) of this sitting."""
        if not self.began:
            return 0.0, 0.0
        return (self.ended or time.time()) - self.began, self.work * (self.round - self.before)

    def left(self) -> float:
        """Steps that are still to be made."""
        return self.work * (self.R - self.round)


@dataclass
class Board:
    """All points of a sweep, or of a share of it, kept in its folder as sweep.json."""

    folder: Path
    entries: dict[str, Entry]
    share: Share = ALL
    room: int = field(default=0, compare=False)  # the most that ran at once, as far as was seen

    def number(self, *states: str) -> int:
        """How many points are in these states."""
        return len(self.those(*states))

    def those(self, *states: str) -> list[Entry]:
        """The points in these states, in order."""
        return [entry for entry in self.entries.values() if entry.state in states]

    def best(self) -> Entry | None:
        """The finished point with the highest accuracy."""
        done = [entry for entry in self.those("done") if entry.accuracy is not None]
        return max(done, key=lambda entry: entry.accuracy or 0.0, default=None)

    def pace(self) -> float:
        """Seconds of a step on one core: in this sitting, else in earlier ones; NaN before there is any."""
        here = [entry.sitting() for entry in self.entries.values()]
        earlier = [(entry.spent, entry.work * entry.before) for entry in self.entries.values()]
        totals = ([sum(column) for column in zip(*pairs, strict=True)] for pairs in (here, earlier) if pairs)
        return next((seconds / steps for seconds, steps in totals if steps > 0), math.nan)

    def left(self) -> float:
        """Seconds until all is done if as many run at once as before, each waiting point where there is room first."""
        running = self.those("running")
        if not running:
            return math.nan
        cores = [entry.left() for entry in running] + [0.0] * (self.room - len(running))
        heapify(cores)
        for entry in self.those("waiting"):
            heapreplace(cores, cores[0] + entry.left())
        return self.pace() * max(cores)

    def save(self) -> None:
        """For --status, and for whoever comes later."""
        content = {"points": [asdict(entry) for entry in self.entries.values()]}
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
            if entries[path.name].state not in ENDED
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
    entry = board.entries[news.name]
    before = entry.state, entry.began
    entry.hear(news)
    board.room = max(board.room, board.number("running"))
    if news.state == "done":
        entry.accuracy = compute_final_accuracy(_rows(entry, board.folder / entry.name))
    if (entry.state, entry.began) != before:
        board.save()


def status(folder: Path) -> Board:
    """The board of a sweep as other processes keep it, all shares together; rounds and accuracies from the rows."""
    try:
        files = sorted(folder.glob("sweep*.json"), key=lambda file: file.stat().st_mtime_ns)
        boards = [_read(folder, file) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        boards = []
    if not boards:
        raise InputError(f"{folder} is not the folder of a sweep", hint=_elsewhere(folder))
    entries = {name: entry for board in boards for name, entry in board.entries.items()}  # the newest has the last word
    return Board(folder, entries)


def sweeps_in(folder: Path) -> list[Path]:
    """The folders of sweeps: this one, or those that a reproduction keeps in it, one or two folders further down."""
    here, inner, deeper = (folder.glob(f"{way}sweep*.json") for way in ("", "*/", "*/*/"))
    return sorted({file.parent for file in here} or {file.parent for file in (*inner, *deeper)})


def _elsewhere(folder: Path) -> str:
    found = [str(path) for path in sweeps_in(folder)]
    return f"Those in it: {', '.join(found)}." if found else "It would hold sweep.json."


def _read(folder: Path, file: Path) -> Board:
    content = parse_json(file.read_text(encoding="utf-8"))
    alive = RunDirectory(folder).is_locked(LOCK + file.stem.removeprefix("sweep"))
    board = Board(folder, {each["name"]: Entry(**each) for each in content["points"]})
    for entry in board.entries.values():
        _looked_up(entry, _rows(entry, folder / entry.name), alive)
    return board


def _rows(entry: Entry, path: Path) -> list[Row]:
    """Of a record that is damaged, none: it cannot be gone on with."""
    try:
        return load_rows(path)
    except InputError as error:
        entry.state, entry.why = "failed", str(error)
        return []


def _looked_up(entry: Entry, rows: Sequence[Row], alive: bool) -> None:
    if rows:
        entry.round = rows[-1]["round"]
        entry.accuracy = compute_final_accuracy(rows) if entry.state == "done" else rows[-1]["test_accuracy"]
    if entry.state == "running" and not alive:
        entry.state, entry.began = "stopped", 0.0  # nobody knows when


def _entry(point: Point, home: Path, retry: bool = False) -> Entry:
    spec, directory = point.spec, RunDirectory(home)
    work = spec.K * (spec.S or spec.partition.M)
    entry = Entry(home.name, point.label, dict(point.settings), spec.R, work)
    rows = _rows(entry, home)
    if rows:
        entry.round = min(rows[-1]["round"], spec.R)
        entry.state = "done" if directory.is_finished(spec.R) else "waiting"
        entry.accuracy = compute_final_accuracy(rows) if entry.state == "done" else rows[-1]["test_accuracy"]
        kept = rows[-1] if entry.state == "done" else _kept(rows, home)
        entry.before, entry.spent = min(kept["round"], spec.R), kept["seconds"]
    if entry.state == "waiting" and directory.diverged.exists() and not retry:
        entry.state, entry.why = "diverged", directory.diverged.read_text(encoding="utf-8").strip()
    return entry


def _kept(rows: Sequence[Row], home: Path) -> Row:
    """The row at the newest checkpoint, from which the run goes on; without one it begins again."""
    newest = max(RunDirectory(home).checkpoints.list_rounds(), default=0)
    return next((row for row in rows if row["round"] == newest), rows[0])


def home(folder: Path, point: Point) -> Path:
    """Where the run is or will be: known by its hash, whatever its readable name was when it began."""
    engines = ("fast", "reference") if point.spec.engine == "auto" else (point.spec.engine,)
    hashes = [point.spec.model_copy(update={"engine": engine}).hash for engine in (*engines, point.spec.engine)]
    found = [path for name in hashes for path in sorted(folder.glob(f"*-{name}")) if path.is_dir()]
    return found[0] if found else folder / point.name
