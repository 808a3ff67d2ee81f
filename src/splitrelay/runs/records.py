"""Read runs from the disk, for tables, figures, reports and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.runs.packed_records import (
    SUFFIX,
    Stamp,
    find_packed_runs,
    get_stamp,
    has_record,
    pack_records,
    read_packed,
    read_record,
    stamp_packed,
)
from splitrelay.runs.run_directory import LAST, RunDirectory, compute_final_accuracy, load_rows, select_final_rows
from splitrelay.runs.spec import Spec, load_spec

KEPT = 4096  # runs in the cache
NAMED = 3  # runs that an error names


@dataclass(frozen=True)
class Run:
    """One run directory: its spec and its rows so far."""

    path: Path
    spec: Spec

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every evaluated round. Do not change them: they are shared."""
        directory = RunDirectory(self.path)
        return _rows(self.path, *map(get_stamp, (directory.rounds, directory.published)), stamp_packed(self.path))

    @property
    def finished(self) -> bool:
        """Return whether all R rounds are done."""
        return bool(self.rows) and RunDirectory(self.path).is_finished(self.spec.R)

    @property
    def has_diverged(self) -> bool:
        """Return whether the run ended before its last round because it diverged. This is a result, and final."""
        is_short = bool(self.rows) and self.rows[-1]["round"] < self.spec.R
        return is_short and has_record(RunDirectory(self.path).diverged)

    @property
    def reason(self) -> str:
        """Return why the run diverged; empty if it did not."""
        file = RunDirectory(self.path).diverged
        return read_record(file).decode("utf-8", "replace").strip() if has_record(file) else ""

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy: the mean over the last rounds, or the last evaluation of a run that diverged."""
        return compute_final_accuracy(self.rows, has_diverged=self.has_diverged)

    def select_final_rows(self, last: int = LAST) -> list[dict[str, Any]]:
        """Return the evaluations that make the final values: of the last rounds, or the last one if it diverged."""
        return select_final_rows(self.rows, last, has_diverged=self.has_diverged)

    def column(self, name: str) -> list[Any]:
        """Return one field of every row, None if a row does not have it."""
        return [row.get(name) for row in self.rows]


def is_run(path: Path) -> bool:
    """Return whether a path is the directory of a run, on the disk or in an archive."""
    directory = RunDirectory(path)
    if directory.spec.is_file():
        return directory.rounds.is_file() or directory.published.is_file()
    return read_packed(directory.spec) is not None


def run_at(path: Path) -> Run:
    """Return the run in a directory.

    Raises:
        InputError: It is not the directory of a run.
    """
    if not is_run(path):
        inside = [str(inner) for inner in find_run_directories(path)]
        named = f"Runs in it: {', '.join(inside[:NAMED])}{', ...' if len(inside) > NAMED else '.'}"
        hint = named if inside else "It would hold spec.toml and rounds.jsonl; splitrelay run makes one."
        raise InputError(f"{path} is not the directory of a run", hint=hint)
    spec = path / "spec.toml"
    return Run(path, _spec(spec, get_stamp(spec) or stamp_packed(spec)))


# Pages with many tables read the same records several times, so files are cached until they change.
def _rows(path: Path, *stamps: Stamp) -> list[dict[str, Any]]:
    """Return the rows of a run. Only the newest are kept: those of all moments of a long run would fill the memory."""
    kept = _keep_rows(path)
    rows = kept.get(stamps)
    if rows is None:
        rows = load_rows(path)
        kept.clear()
        kept[stamps] = rows
    return rows


@lru_cache(KEPT)
def _keep_rows(path: Path) -> dict[tuple[Stamp, ...], list[dict[str, Any]]]:
    return {}


@lru_cache(KEPT)
def _spec(path: Path, stamp: Stamp) -> Spec:
    return load_spec(path)


def runs_under(folder: Path) -> list[Run]:
    """Return all runs in a folder, at any depth, sorted by path. The folder itself may be a run.

    Raises:
        InputError: There are no runs.
    """
    check_folder(folder)
    found = [run_at(path) for path in sorted(set(find_run_directories(folder)))]
    if not found:
        raise InputError(f"there are no runs in {folder}", hint="splitrelay run and sweep keep theirs in results/.")
    return found


def check_folder(folder: Path) -> None:
    """Raise InputError if a path is neither a folder nor an archive with runs. The folder may have none yet."""
    if not folder.is_dir() and not has_runs(folder):
        what = f"{folder} is a file, not a folder of runs" if folder.exists() else f"there is no folder {folder}"
        raise InputError(what, hint="splitrelay run and sweep keep theirs in results/.")


def read_runs(folder: Path) -> tuple[dict[Path, Run], dict[Path, InputError]]:
    """Read all runs in a folder by path, and return the error of each one that cannot be read."""
    runs, errors = dict[Path, Run](), dict[Path, InputError]()
    for path in sorted(set(find_run_directories(folder))):
        try:
            run = run_at(path)
            run.rows  # noqa: B018 - read here, so that a damaged file is found here
            runs[path] = run
        except InputError as error:
            errors[path] = error
    return runs, errors


def find_run_directories(folder: Path) -> Iterator[Path]:
    """Yield the runs at or below a path, on the disk and in archives. One that is in both may come twice."""
    if is_run(folder):
        yield folder
        return
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() or path.name.endswith(SUFFIX):
                yield from find_run_directories(path.with_name(path.name.removesuffix(SUFFIX)))
    yield from find_packed_runs(folder)


def has_runs(folder: Path) -> bool:
    """Return whether a folder or an archive holds a run, at any depth."""
    return next(find_run_directories(folder), None) is not None


def publish(source: Path, target: Path) -> tuple[int, int]:
    """Copy all runs of a folder that have ended or diverged, without weights.

    Args:
        source: A folder of runs, or records that were published before.
        target: Another folder, or a file that ends in .tar.xz: then all records go into this one archive.

    Returns:
        The number of runs and of the bytes that they take now.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{target} is in {source}, whose runs it would be taken for", hint="Choose another --to.")
    found = [run for run in runs_under(source) if run.finished or has_record(RunDirectory(run.path).diverged)]
    if not found:
        raise InputError(f"no run in {source} is finished", hint="splitrelay show says how far they are.")
    if target.name.endswith(SUFFIX):
        pack_records(
            (
                ((run.path.relative_to(source) / name).as_posix(), content)
                for run in found
                for name, content in RunDirectory(run.path).read_published().items()
            ),
            target,
        )
        return len(found), target.stat().st_size
    for run in found:
        RunDirectory(run.path).publish(target / run.path.relative_to(source))
    return len(found), sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
