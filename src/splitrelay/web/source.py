"""What a page shows: a folder of runs, the server of a deployed run, or both.

The folder is read again at most once in `MIN_AGE` seconds, and files that have not changed are not read again. Several
threads of the server may ask at the same time. One of them reads, the others wait for the result.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from splitrelay.errors import InputError, SplitrelayError
from splitrelay.reports.seed_groups import Group, find_differing_keys, group_runs
from splitrelay.runs.records import Run, find_run_directories, run_at

MIN_AGE = 0.5  # seconds for which a reading is used again
UNLABELLED = ("seed", "R", "every", "algorithm")  # keys that are told in another way, or that repeat a setting
SHARE = 10  # a reading that takes t seconds is used for SHARE * t seconds


@dataclass(frozen=True)
class Reading:
    """The runs of a folder at one moment.

    Attributes:
        runs: The runs by id. An id is a hash of the path within the folder, so it survives a restart of the page.
        names: The path within the folder, by id.
        damaged: The error of each run that cannot be read, by id.
    """

    runs: Mapping[str, Run]
    names: Mapping[str, str]
    damaged: Mapping[str, str]

    @cached_property
    def differing_keys(self) -> list[str]:
        """Return the keys of the spec in which the runs differ."""
        return find_differing_keys(run.spec for run in self.runs.values())

    @cached_property
    def label_keys(self) -> list[str]:
        """Return the keys that a label needs beside the algorithm: those that do not follow from it."""
        values: dict[str, dict[str, set[str]]] = {key: {} for key in self.differing_keys if key not in UNLABELLED}
        for run in self.runs.values():
            flat = run.spec.flatten()
            for key, seen in values.items():
                seen.setdefault(run.spec.algorithm, set()).add(repr(flat[key]))
        return [key for key, seen in values.items() if any(len(found) > 1 for found in seen.values())]

    @cached_property
    def lines(self) -> dict[str, Group]:
        """Return the settings with all their seeds, by the id of their first run.

        A run that does not count in a table, such as an unfinished one beside finished ones, is a line of its own.
        """
        seen = [run for run in self.runs.values() if run.rows]
        groups = group_runs(seen)[0] if seen else []
        counted = {run.path for group in groups for run in group.runs}
        groups += [Group((run,)) for run in seen if run.path not in counted]
        found = {group.runs[0].path: group for group in groups}
        return {number: found[run.path] for number, run in self.runs.items() if run.path in found}

    @cached_property
    def line_of(self) -> dict[str, str]:
        """Return the id of the line of each run, by the id of the run."""
        lines = {run.path: number for number, group in self.lines.items() for run in group.runs}
        return {number: lines[run.path] for number, run in self.runs.items() if run.path in lines}

    def get_run(self, number: str) -> Run:
        """Return the run with this id.

        Raises:
            InputError: There is none, or it cannot be read.
        """
        if number in self.runs:
            return self.runs[number]
        what = self.damaged.get(number, "there is no such run")
        raise InputError(what, value=number, hint="Go back to the list of runs.")


@dataclass
class PageSource:
    """The folder and the server that a page shows. Either may be missing.

    Attributes:
        folder: A folder of runs.
        address: HOST:PORT of the server of a deployed run.
        keys: The observer's folder of keys for that server.
        insecure: Whether the server runs without keys.
    """

    folder: Path | None = None
    address: str | None = None
    keys: Path | None = None
    insecure: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _reading: Reading | None = field(default=None, repr=False)
    _until: float = field(default=0.0, repr=False)

    def read(self) -> Reading:
        """Return the runs of the folder."""
        with self._lock:
            if self._reading is None or time.monotonic() > self._until:
                began = time.monotonic()
                self._reading = read_folder(self.folder)
                spent = time.monotonic() - began
                self._until = time.monotonic() + max(MIN_AGE, SHARE * spent)
            return self._reading


def read_folder(folder: Path | None) -> Reading:
    """Read the runs of a folder. A run that cannot be read is listed with its error."""
    runs: dict[str, Run] = {}
    names: dict[str, str] = {}
    damaged: dict[str, str] = {}
    for path in [] if folder is None else sorted(set(find_run_directories(folder))):
        assert folder is not None
        name = path.name if path == folder else path.relative_to(folder).as_posix()
        number = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:10]
        names[number] = name.encode("utf-8", "replace").decode()  # a file name may be no text at all
        try:
            run = run_at(path)
            run.rows  # noqa: B018 - read here, so that a damaged file is found here
            runs[number] = run
        except SplitrelayError as error:
            damaged[number] = str(error)
    return Reading(runs, names, damaged)


def get_lines(reading: Reading, wanted: Collection[str], *, each: bool) -> dict[str, Group]:
    """Return lines by id: all of them if none is wanted, or one for each run if `each` is set."""
    lines = {number: Group((run,)) for number, run in reading.runs.items() if run.rows} if each else reading.lines
    return {number: group for number, group in lines.items() if not wanted or number in wanted}
