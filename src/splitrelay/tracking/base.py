"""What all trackers have in common: the values of a row, and the interface of a tracker."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from splitrelay.errors import InputError, SplitrelayError, WorkError
from splitrelay.runs.packed_records import has_record
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import Row, RunDirectory, get_rows_file, remove_measurements

Values = dict[str, float]  # by name
ENDED = ("finished", "diverged")
LONGEST = 300  # characters of a tracker's own error


@dataclass(frozen=True)
class Point:
    """The values of one round."""

    r: int
    time: float  # seconds since 1970, estimated from the time of the last row
    values: Values


@dataclass(frozen=True)
class Source:
    """A run, as a tracker sees it.

    Attributes:
        name: The path of the run in the folder that is tracked.
    """

    name: str
    run: Run

    @property
    def key(self) -> str:
        """Return a short text that is the same for the same name and spec (R aside)."""
        return hashlib.sha256(f"{self.name}\n{self.run.spec.identity}".encode()).hexdigest()[:16]

    @property
    def state(self) -> str:
        """Return finished, diverged, running or stopped.

        This does not use the rows that `run` keeps: rows that are read after a run has finished are all its rows.
        """
        directory = RunDirectory(self.run.path)
        if directory.is_finished(self.run.spec.R):
            return "finished"
        if has_record(directory.diverged) and not directory.is_locked():
            return "diverged"
        return "running" if directory.is_locked() else "stopped"

    def list_points(self) -> list[Point]:
        """Return the values of all rows so far."""
        rows = self.run.rows
        if not rows:
            return []
        file = get_rows_file(self.run.path)
        end = file.stat().st_mtime if file.exists() else 0.0  # a row in an archive has no time
        start = end - rows[-1]["seconds"]
        return [Point(row["round"], start + row["seconds"], list_values(row)) for row in rows]


def list_values(row: Row) -> Values:
    """Return the numbers of a row by name. Lists give a name for each item; missing values and NaN are left out."""
    values: Values = {}
    for name, value in row.items():
        if name != "round":
            items = enumerate(value) if isinstance(value, list) else [("", value)]
            values.update({f"{name}/{j}" if j != "" else name: number for j, number in items if _is_number(number)})
    return {name: float(value) for name, value in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


@dataclass(frozen=True)
class Written:
    """The last value of one name that a tracker has."""

    r: int
    value: float


class TrackerRun(ABC):
    """One run at a tracker.

    Attributes:
        written: What the tracker has, by name.
    """

    def __init__(self, written: Mapping[str, Written]) -> None:
        self.written = dict(written)

    def update(self, source: Source) -> int:
        """Write all values that the tracker does not have, and return the number of their rounds.

        Raises:
            InputError: The tracker has other values of the same run.
        """
        points = source.list_points()
        self._check_same(source)
        new = [
            Point(point.r, point.time, values)
            for point in points
            if (values := {name: value for name, value in point.values.items() if self._is_new(name, point.r)})
        ]
        if new:
            self.write(new)
        for point in new:
            self.written.update({name: Written(point.r, value) for name, value in point.values.items()})
        return len(new)

    def _is_new(self, name: str, r: int) -> bool:
        return name not in self.written or r > self.written[name].r

    def _check_same(self, source: Source) -> None:
        """Refuse to mix the rows of two runs, for example after `run --from-scratch` with changed code."""
        rows = {row["round"]: list_values(remove_measurements(row)) for row in source.run.rows}
        for name, written in self.written.items():
            value = rows.get(written.r, {}).get(name)
            if value is not None and not math.isclose(value, written.value, rel_tol=1e-6, abs_tol=1e-12):
                hint = "The run was made again with another result. Use another place, or delete the old one there."
                what = f"the tracker has another {name} of {source.name} in round {written.r}"
                raise InputError(what, value=written.value, limit=f"{value:g}", hint=hint)

    @abstractmethod
    def write(self, points: Sequence[Point]) -> None:
        """Write values, and return when the tracker has them."""

    @abstractmethod
    def finish(self, state: str, reason: str) -> None:
        """Mark the run as finished or diverged."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections."""


class Tracker(ABC):
    """A place to which rows are copied."""

    label: str  # as on the command line

    @abstractmethod
    def open_run(self, source: Source) -> TrackerRun:
        """Find the run at the tracker, or create it."""


def import_tracker(module: str, tracker: str) -> Any:
    """Import a module of a tracker. Raise InputError with the install command if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        hint = "pip install 'splitrelay[track]'"
        raise InputError(f"{tracker} needs {module.partition('.')[0]}, which is not installed", hint=hint) from None


@contextmanager
def translate_errors(label: str, *kinds: type[BaseException], hint: str, is_start: bool = False) -> Iterator[None]:
    """Turn errors of a tracker's package into one line.

    Args:
        label: The tracker.
        kinds: The errors of its package.
        hint: What the user can do.
        is_start: Whether nothing was written yet, so that the command line is at fault and not the work.
    """
    try:
        yield
    except SplitrelayError:
        raise
    except kinds as error:
        text = mask_password(" ".join(str(error).split()))[:LONGEST] or type(error).__name__
        if is_start:
            raise InputError(f"{label} cannot be used", value=text, hint=hint) from None
        raise WorkError(f"{label} did not accept the rows", value=text, hint=hint) from None


def mask_password(text: str) -> str:
    """Remove user names and passwords from the addresses in a text."""
    return re.sub(r"//[^/\s@]*@", "//", text)
