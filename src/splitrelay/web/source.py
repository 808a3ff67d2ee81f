"""What a page shows: a folder of runs, the server of a deployed run, or both.

The folder is read again at most once in `MIN_AGE` seconds, and files that have not changed are not read again. Several
threads of the server may ask at the same time. One of them reads, the others wait for the result.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.reports.seed_groups import Group, find_differing_keys, find_label_keys, find_state, group_all_runs
from splitrelay.runs.records import Run, read_runs
from splitrelay.sweeps.sweep import find_failures

MIN_AGE = 0.5  # seconds for which a reading is used again
SHARE = 10  # a reading that takes t seconds is used for SHARE * t seconds


@dataclass(frozen=True)
class Reading:
    """The runs of a folder at one moment.

    Attributes:
        runs: The runs by id. An id is a hash of the path within the folder, so it survives a restart of the page.
        names: The path within the folder, by id.
        damaged: The error of each run that cannot be read, by id.
        failures: Why points of sweeps failed, by the path of their run.
    """

    runs: Mapping[str, Run]
    names: Mapping[str, str]
    damaged: Mapping[str, str]
    failures: Mapping[Path, str]

    @cached_property
    def differing_keys(self) -> list[str]:
        """Return the keys of the spec in which the runs differ, without the seed."""
        return find_differing_keys((run.spec for run in self.runs.values()), leaving=("seed",))

    @cached_property
    def label_keys(self) -> list[str]:
        """Return the keys that a label needs beside the algorithm."""
        return find_label_keys(run.spec for run in self.runs.values())

    @cached_property
    def lines(self) -> dict[str, Group]:
        """Return the settings with all their seeds, by the id of their first run."""
        found = {group.runs[0].path: group for group in group_all_runs(list(self.runs.values()))}
        return {number: found[run.path] for number, run in self.runs.items() if run.path in found}

    @cached_property
    def line_of(self) -> dict[Path, str]:
        """Return the id of the line of each run, by the path of the run."""
        return {run.path: number for number, group in self.lines.items() for run in group.runs}

    def describe_state(self, run: Run) -> tuple[str, str]:
        """Return finished, diverged, failed, running or stopped, and the reason if there is one."""
        state = find_state(run)
        if state == "stopped" and run.path in self.failures:
            return "failed", self.failures[run.path]
        return state, run.reason if state == "diverged" else ""

    def get_run(self, number: str) -> Run:
        """Return the run with this id.

        Raises:
            InputError: There is none, or it cannot be read.
        """
        if number in self.runs:
            return self.runs[number]
        if number in self.damaged:
            raise InputError(self.damaged[number])
        raise InputError("there is no such run", value=number, hint="Go back to the list of runs.")


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
                self._until = time.monotonic() + max(MIN_AGE, SHARE * (time.monotonic() - began))
            return self._reading


class ChangeLog:
    """Numbers the rows of all runs in the order in which they are read, so that a stream can be resumed after each.

    A new state of a run, and runs that come or go, have a number, too.
    """

    def __init__(self, source: PageSource) -> None:
        self.source, self.last, self.listed = source, 0, 0  # listed: when runs came or went
        self.numbers: dict[str, int] = {}  # of the newest row of each run
        self._progress: dict[str, tuple[int, str]] = {}  # rows and state of each run
        self._lock = threading.Lock()

    def read(self) -> int:
        """Read the folder, and return the number of the newest row."""
        with self._lock:
            reading, before = self.source.read(), self._progress
            self._progress = dict.fromkeys(reading.damaged, (0, "damaged"))
            for number, run in reading.runs.items():
                now = self._progress[number] = len(run.rows), reading.describe_state(run)[0]
                known = before.get(number, (0, ""))
                if now != known:
                    self.last += max(now[0] - known[0], 1)
                    self.numbers[number] = self.last
            if before.keys() != self._progress.keys():
                self.last += 1
                self.listed = self.last
            return self.last


def get_status(source: PageSource, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the report of the deployed run, asked over mutual TLS as an observer; none without an address."""
    if source.address is None:
        return {"address": None}
    client = import_module("splitrelay.deploy.status_client")  # it needs gRPC, which a page of runs does not need
    return {"address": source.address, "report": client.ask_status(source.address, source.keys, source.insecure)}


def read_folder(folder: Path | None) -> Reading:
    """Read the runs of a folder. A run that cannot be read is listed with its error."""
    if folder is None:
        return Reading({}, {}, {}, {})
    found, errors = read_runs(folder)
    names = {path: path.name if path == folder else path.relative_to(folder).as_posix() for path in [*found, *errors]}
    ids = {path: hashlib.sha256(os.fsencode(name)).hexdigest()[:10] for path, name in names.items()}
    return Reading(
        runs={ids[path]: run for path, run in found.items()},
        names={ids[path]: os.fsencode(names[path]).decode("utf-8", "replace") for path in sorted(ids)},
        damaged={ids[path]: str(error) for path, error in errors.items()},
        failures=find_failures(folder),
    )
