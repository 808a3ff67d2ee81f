"""Runs as they lie on the disk, for everything that reads records: tables, figures, reports, comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.runs.rows import load_rows
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, spec_of

KEPT = 4096  # runs whose records are remembered
NAMED = 3  # runs that an error names


@dataclass(frozen=True)
class Run:
    """One run directory: its spec and its rows so far."""

    path: Path
    spec: Spec

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One for every evaluated round; not to be written to, as others share them."""
        directory = RunDirectory(self.path)
        return _rows(self.path, *map(_stamp, (directory.rounds, directory.published)))

    @property
    def finished(self) -> bool:
        """Whether all R rounds are there."""
        return bool(self.rows) and RunDirectory(self.path).finished(self.spec.R)

    def column(self, name: str) -> list[Any]:
        """One field of every row; None where a row has no such field."""
        return [row.get(name) for row in self.rows]


def is_run(path: Path) -> bool:
    """Whether a folder is the directory of a run."""
    directory = RunDirectory(path)
    return directory.spec.is_file() and (directory.rounds.is_file() or directory.published.is_file())


def run_at(path: Path) -> Run:
    """The run in that directory."""
    if not is_run(path):
        inside = [str(inner) for inner in sorted(path.glob("*")) if inner.is_dir() and is_run(inner)]
        named = f"Runs in it: {', '.join(inside[:NAMED])}{', ...' if len(inside) > NAMED else '.'}"
        hint = named if inside else "It would hold spec.toml and rounds.jsonl; splitrelay run makes one."
        raise InputError(f"{path} is not the directory of a run", hint=hint)
    return Run(path, _spec(path / "spec.toml", _stamp(path / "spec.toml")))


# A page of many tables reads the same records for each: a file is read again only once it has changed.
Stamp = tuple[int, int] | None


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(KEPT)
def _rows(path: Path, *stamps: Stamp) -> list[dict[str, Any]]:
    return load_rows(path)


@lru_cache(KEPT)
def _spec(path: Path, stamp: Stamp) -> Spec:
    return spec_of(path)


def runs_under(folder: Path) -> list[Run]:
    """All runs in a folder, at any depth, by path; the folder itself may be one."""
    if not folder.is_dir():
        what = f"{folder} is a file, not a folder of runs" if folder.exists() else f"there is no folder {folder}"
        raise InputError(what, hint="splitrelay run and sweep keep theirs in results/.")
    found = [run_at(path) for path in _directories(folder)]
    if not found:
        raise InputError(f"there are no runs in {folder}", hint="splitrelay run and sweep keep theirs in results/.")
    return found


def _directories(folder: Path) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _directories(inner)


def publish(source: Path, target: Path) -> tuple[int, int]:
    """All runs of a folder that have ended, or diverged, into another, without weights: (runs, bytes)."""
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{target} is in {source}, whose runs it would be taken for", hint="Choose another --to.")
    found = [run for run in runs_under(source) if run.finished or RunDirectory(run.path).diverged.exists()]
    if not found:
        raise InputError(f"no run in {source} is finished", hint="splitrelay show says how far they are.")
    for run in found:
        RunDirectory(run.path).publish(target / run.path.relative_to(source))
    return len(found), sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
