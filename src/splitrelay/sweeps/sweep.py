"""A sweep: one run directory for every point, and a file that says how far each point is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import TYPE_CHECKING

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.runs.run_directory import LOCK, Row, RunDirectory, compute_final_accuracy, load_rows
from splitrelay.structured_text import parse_json
from splitrelay.sweeps.jobs import ALL, Job, JobRunner, JobStatus, Shard

if TYPE_CHECKING:
    from splitrelay.sweeps.points import Point

SETTLED = ("done", "diverged")  # a repetition would have the same result
ENDED = (*SETTLED, "failed")


@dataclass
class PointStatus:
    """How far one point is. The fields are those of sweep.json."""

    name: str
    label: str
    settings: dict[str, str]
    R: int
    work: float  # steps per round
    state: str = "waiting"
    round: int = 0
    accuracy: float | None = None  # the mean over the last rounds; the last value if it diverged
    last_evaluation: float | None = None  # the test accuracy of `round`
    why: str = ""
    before: int = 0  # the round from which this process continues
    spent: float = 0.0  # seconds that earlier processes needed up to there
    began: float = 0.0  # when this process reached that round
    ended: float = 0.0  # when the job ended; 0 if it has not

    def update(self, status: JobStatus) -> None:
        """Apply a status. A run that continues reports its old rows again; these are ignored."""
        if status.round is not None and status.round < self.before:
            return
        self.state, self.why = status.state, status.why
        if status.last_evaluation is not None:
            self.last_evaluation = status.last_evaluation
        if status.round is not None:
            self.round = status.round
            self.began = self.began or time.time()  # the time before the first row is start-up
        self.ended = 0.0 if status.state == "running" else time.time()

    def measure(self) -> tuple[float, float]:
        """Return the seconds and the steps of this process."""
        if not self.began:
            return 0.0, 0.0
        return (self.ended or time.time()) - self.began, self.work * (self.round - self.before)

    def count_steps_left(self) -> float:
        """Return the number of steps until the last round."""
        return self.work * (self.R - self.round)


@dataclass(frozen=True)
class SettingStatus:
    """The points of one setting, one for each seed."""

    label: str
    points: list[PointStatus]

    @property
    def accuracy(self) -> float | None:
        """Return the mean accuracy of the seeds, or None unless all of them have finished."""
        values = [entry.accuracy for entry in self.points if entry.state == "done" and entry.accuracy is not None]
        return fmean(values) if len(values) == len(self.points) else None


@dataclass
class SweepStatus:
    """How far all points of a sweep, or of a shard of it, are."""

    folder: Path
    entries: dict[str, PointStatus]
    shard: Shard = ALL
    most_running: int = field(default=0, compare=False)  # the largest number of points that ran at a time

    def count(self, *states: str) -> int:
        """Return how many points are in these states."""
        return len(self.select(*states))

    def select(self, *states: str) -> list[PointStatus]:
        """Return the points in these states, in order."""
        return [entry for entry in self.entries.values() if entry.state in states]

    def list_settings(self) -> list[SettingStatus]:
        """Return the points grouped by setting: points that differ in their seed only belong together."""
        groups: dict[tuple[tuple[str, str], ...], list[PointStatus]] = {}
        for entry in self.entries.values():
            setting = tuple((name, text) for name, text in entry.settings.items() if name != "seed")
            groups.setdefault(setting, []).append(entry)
        labels = [" ".join(f"{name}={text}" for name, text in setting) for setting in groups]
        return [SettingStatus(label or of[0].label, of) for label, of in zip(labels, groups.values(), strict=True)]

    def find_best(self) -> SettingStatus | None:
        """Return the setting with the highest mean accuracy over its seeds, of those whose seeds have all finished.

        A setting with a seed that diverged or failed is never the best: the mean of its other seeds would be a mean of
        the lucky ones.
        """
        complete = [setting for setting in self.list_settings() if setting.accuracy is not None]
        return max(complete, key=lambda setting: setting.accuracy or 0.0, default=None)

    def estimate_step_seconds(self) -> float:
        """Return the seconds of a step on one core, from this process or else from earlier ones; NaN if unknown."""
        here = [entry.measure() for entry in self.entries.values()]
        earlier = [(entry.spent, entry.work * entry.before) for entry in self.entries.values()]
        totals = ([sum(column) for column in zip(*pairs, strict=True)] for pairs in (here, earlier) if pairs)
        return next((seconds / steps for seconds, steps in totals if steps > 0), math.nan)

    def estimate_seconds_left(self) -> float:
        """Return the seconds until all points are done if as many run at a time as before; NaN if none runs."""
        running = self.select("running")
        if not running:
            return math.nan
        cores = [entry.count_steps_left() for entry in running] + [0.0] * (self.most_running - len(running))
        heapify(cores)
        for entry in self.select("waiting"):  # each goes to the core that is free first
            heapreplace(cores, cores[0] + entry.count_steps_left())
        return self.estimate_step_seconds() * max(cores)

    def save(self) -> None:
        """Write sweep.json, for --status and for later processes."""
        content = {"points": [asdict(entry) for entry in self.entries.values()]}
        write_text(self.folder / f"sweep{self.shard.suffix}.json", json.dumps(content, indent=1) + "\n")


def run_sweep(
    points: Sequence[Point],
    folder: Path,
    runner: JobRunner,
    *,
    checkpoint: int = 10,
    device: str = "cpu",
    stop: Event | None = None,
    retry: bool = False,
    shard: Shard = ALL,
) -> Generator[tuple[SweepStatus, JobStatus | None], None, None]:
    """Run all points that are not finished, and yield the status of the sweep after every event.

    Args:
        points: The points.
        folder: The folder of the run directories.
        runner: Where points are run.
        checkpoint: Evaluations between two checkpoints.
        device: The torch device of every point.
        stop: Once set, running points end after their current visit, with KeyboardInterrupt.
        retry: Run points that diverged again.
        shard: The part of the points to run.

    Yields:
        The status of the sweep, and the event: the status of a job, or None.
    """
    stop = stop or Event()
    with RunDirectory(folder).locked(LOCK + shard.suffix):
        folders = {find_run_folder(folder, point): point for point in shard.select(points)}
        entries = {path.name: _build_entry(point, path, retry) for path, point in folders.items()}
        sweep = SweepStatus(folder, entries, shard=shard)
        sweep.save()
        yield sweep, None
        jobs = [
            Job(path.name, point.spec.model_dump(), str(path.absolute()), checkpoint, device)
            for path, point in folders.items()
            if entries[path.name].state not in ENDED
        ]
        with closing(runner.run(jobs, stop)) as events:
            for event in events:
                if event is not None:
                    _apply(sweep, event)
                yield sweep, event
        if stop.is_set() and sweep.count("waiting", "stopped"):
            raise KeyboardInterrupt


def _apply(sweep: SweepStatus, event: JobStatus) -> None:
    entry = sweep.entries[event.name]
    before = entry.state, entry.began
    entry.update(event)
    sweep.most_running = max(sweep.most_running, sweep.count("running"))
    if event.state in SETTLED:
        entry.accuracy = _compute_accuracy(entry, _load_rows(entry, sweep.folder / entry.name))
    if (entry.state, entry.began) != before:
        sweep.save()


def load_status(folder: Path) -> SweepStatus:
    """Return the status of a sweep that other processes run, all shards together.

    Raises:
        InputError: The folder has no sweep.
    """
    try:
        files = sorted(folder.glob("sweep*.json"), key=lambda file: file.stat().st_mtime_ns)
        sweeps = [_read_status(folder, file) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        sweeps = []
    if not sweeps:
        inner = ", ".join(map(str, find_sweeps(folder)))
        hint = f"Sweeps in it: {inner}." if inner else "A sweep has a file sweep.json."
        raise InputError(f"{folder} is not the folder of a sweep", hint=hint)
    entries = {name: entry for sweep in sweeps for name, entry in sweep.entries.items()}  # the newest file wins
    return SweepStatus(folder, entries)


def find_sweeps(folder: Path) -> list[Path]:
    """Return the folder itself if it has a sweep, else the sweeps one or two folders below."""
    here, inner, deeper = (folder.glob(f"{way}sweep*.json") for way in ("", "*/", "*/*/"))
    return sorted({file.parent for file in here} or {file.parent for file in (*inner, *deeper)})


def find_failures(folder: Path) -> dict[Path, str]:
    """Return why the failed points of the sweeps in a folder failed, by the path of their run."""
    found: dict[Path, str] = {}
    for sweep in find_sweeps(folder):
        with suppress(InputError):  # a damaged sweep.json does not hide the others
            found |= {sweep / entry.name: entry.why for entry in load_status(sweep).select("failed")}
    return found


def _read_status(folder: Path, file: Path) -> SweepStatus:
    content = parse_json(file.read_text(encoding="utf-8"))
    is_running = RunDirectory(folder).is_locked(LOCK + file.stem.removeprefix("sweep"))
    sweep = SweepStatus(folder, {each["name"]: PointStatus(**each) for each in content["points"]})
    for entry in sweep.entries.values():
        rows = _load_rows(entry, folder / entry.name)
        if rows:
            entry.round, entry.last_evaluation = rows[-1]["round"], rows[-1]["test_accuracy"]
            entry.accuracy = _compute_accuracy(entry, rows)
        if entry.state == "running" and not is_running:
            entry.state, entry.began = "stopped", 0.0
    return sweep


def _compute_accuracy(entry: PointStatus, rows: Sequence[Row]) -> float | None:
    """Return the accuracy of a point that has finished or diverged, None for all others."""
    is_settled = entry.state in SETTLED
    return compute_final_accuracy(rows, has_diverged=entry.state == "diverged") if is_settled else None


def _load_rows(entry: PointStatus, path: Path) -> list[Row]:
    """Return the rows of a point. A damaged file makes the point fail."""
    try:
        return load_rows(path)
    except InputError as error:
        entry.state, entry.why = "failed", str(error)
        return []


def _build_entry(point: Point, path: Path, retry: bool = False) -> PointStatus:
    spec, directory = point.spec, RunDirectory(path)
    work = spec.mean_K * (spec.S or spec.partition.M)
    entry = PointStatus(path.name, point.label, dict(point.settings), spec.R, work)
    rows = _load_rows(entry, path)
    if rows:
        entry.round = min(rows[-1]["round"], spec.R)
        is_done = directory.is_finished(spec.R)
        entry.state = "done" if is_done else "waiting"
        entry.last_evaluation = rows[-1]["test_accuracy"]
        start = rows[-1]
        if not is_done:  # it continues from its newest checkpoint, or from the first row without one
            newest = max(directory.checkpoints.list_rounds(), default=0)
            start = next((row for row in rows if row["round"] == newest), rows[0])
        entry.before, entry.spent = min(start["round"], spec.R), start["seconds"]
    if entry.state == "waiting" and directory.diverged.exists() and not retry:
        entry.state, entry.why = "diverged", directory.diverged.read_text(encoding="utf-8").strip()
    entry.accuracy = _compute_accuracy(entry, rows)
    return entry


def find_run_folder(folder: Path, point: Point) -> Path:
    """Return the run directory of a point. It is found by its hash, because its readable name may have changed.

    If the user's code or data have changed since, the point is a new one and gets a directory of its own.
    """
    engines = ("fast", "reference") if point.spec.engine == "auto" else (point.spec.engine,)
    hashes = [point.spec.model_copy(update={"engine": engine}).hash for engine in (*engines, point.spec.engine)]
    paths = [path for name in hashes for path in sorted(folder.glob(f"*-{name}")) if path.is_dir()]
    # numpy and pydantic are imported only here: the status of a sweep is shown without them
    from splitrelay.runs.sources import (  # noqa: PLC0415
        compute_sources,
        find_changes,
        get_sources_digest,
        read_sources,
    )

    sources = compute_sources(point.spec)
    same = [path for path in paths if not find_changes(read_sources(path)[0], sources)]
    if same or not paths:
        return same[0] if same else folder / point.name
    stem, _, name = point.name.rpartition("-")
    return folder / f"{stem}-sources{get_sources_digest(sources)}-{name}"
