"""The directory of one run: locked while a process works on it, its rows cut back to where the run goes on."""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.atomic_files import build_write_error, create_folder, replace_atomically, write_text
from splitrelay.errors import InputError
from splitrelay.runs.client_records import CLIENTS
from splitrelay.runs.damage import (
    PUBLISHED,
    UNREADABLE,
    WRITTEN,
    is_deployed,
    kept_rounds,
    lost_progress,
    read_rounds,
    unreadable,
)
from splitrelay.runs.packed_records import has_record, read_packed, read_record
from splitrelay.structured_text import parse_json

if TYPE_CHECKING:
    from splitrelay.runs.checkpoint import Checkpoints

LOCK = ".lock"
SET_ASIDE = "set-aside"  # the folder of what a restart has replaced


class RunDirectory:
    """spec.toml, environment.json, rounds.jsonl, rounds.csv, checkpoints/, model.safetensors."""

    def __init__(self, path: Path, keep_checkpoints: int = 2) -> None:
        self.path, self.keep_checkpoints = path, keep_checkpoints
        self.spec, self.model = path / "spec.toml", path / "model.safetensors"
        self.rounds = path / WRITTEN
        self.published = path / PUBLISHED  # of records that are handed out without their weights
        self.digest = path / "model.sha256"
        self.diverged = path / "diverged.txt"  # why a run has no end: it would not have one the next time either

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The states that are kept. They need torch, which takes seconds to import: whoever reads rows does without."""
        kept: Checkpoints = import_module("splitrelay.runs.checkpoint").Checkpoints(
            self.path / "checkpoints", self.keep_checkpoints
        )
        return kept

    @property
    def is_deployed(self) -> bool:
        """Whether `splitrelay serve` made this directory: clients on other hosts trained what is in it."""
        return is_deployed(self.path)

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """No second process may write here; the lock ends with the process, also after kill -9."""
        try:
            if not self.path.is_dir():
                create_folder(self.path, private=True)
            lock = (self.path / name).open("w")
        except OSError as error:
            raise build_write_error(self.path, error) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "Wait for it, or choose another --out."
                raise InputError(f"another process is at work in {self.path}", hint=hint) from None
            yield

    def at_work(self, name: str = LOCK) -> bool:
        """Whether a process has the lock."""
        try:
            with (self.path / name).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def seen(self) -> list[dict[str, Any]]:
        """The rows so far; a half-written last line does not count."""
        try:
            lines = read_rounds(self.path).decode().splitlines(keepends=True)
            return [parse_json(line) for line in lines if line.endswith("\n")]
        except UNREADABLE as error:
            raise unreadable(self.path, error) from None

    def finished(self, R: int) -> bool:
        """Whether all R rounds are there, and the model that they end with, or its checksum in what was published."""
        rows = self.seen()
        published = self.published.exists() or read_packed(self.rounds) is not None
        ended = self.model.exists() or (published and has_record(self.digest))
        return bool(rows) and rows[-1]["round"] == R and ended

    def read_published(self) -> dict[str, bytes]:
        """Return the files that others need to check the run: spec, environment, rows, checksum of the model.

        A run that diverged has no model: the reason takes its place. A deployed run has a record of its clients, too,
        and `serve` writes no checksum.
        """
        files = {file.name: read_record(file) for file in (self.spec, self.path / "environment.json")}
        if self.model.exists() and not has_record(self.digest):
            files[self.digest.name] = f"{hashlib.sha256(self.model.read_bytes()).hexdigest()}\n".encode()
        else:
            end = self.digest if has_record(self.digest) else self.diverged
            files[end.name] = read_record(end)
        if has_record(self.path / CLIENTS):
            files[CLIENTS] = read_record(self.path / CLIENTS)
        return {**files, WRITTEN: read_rounds(self.path)}

    def publish(self, folder: Path) -> None:
        """Write these files into another folder, the rows compressed."""
        for name, content in self.read_published().items():
            packed = {PUBLISHED: gzip.compress(content, mtime=0)} if name == WRITTEN else {name: content}
            for file, data in packed.items():
                with replace_atomically(folder / file) as temporary:
                    temporary.write_bytes(data)

    def cut_back(self, r: int) -> list[dict[str, Any]]:
        """Forget the rows after round r: the run goes on from there and will write them again."""
        rows = [row for row in self.seen() if row["round"] <= r]
        write_text(self.rounds, "".join(_line(row) for row in rows))
        return rows

    def readable_rows(self) -> list[dict[str, Any]]:
        """The rows up to the first line that is damaged."""
        rows: list[dict[str, Any]] = []
        with suppress(*UNREADABLE, KeyError, TypeError):
            for line in self.rounds.read_bytes().splitlines(keepends=True):
                row = parse_json(line)
                if not line.endswith(b"\n") or not isinstance(row["round"], int):
                    break
                rows.append(row)
        return rows

    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Replace all rows."""
        write_text(self.rounds, "".join(_line(row) for row in rows))

    def check_progress(self, found: int | None) -> None:
        """Raise InputError where a start from `found`, the round of the newest whole checkpoint, would lose rounds.

        Rows are on the disk before the checkpoint of their round, and `serve` keeps one for every row: where one of
        them is missing, a file was removed or damaged, and the run must not begin at round 0 as if it were new.
        """
        rows = {row["round"] for row in self.seen()}
        if found is not None and found in rows:
            return
        kept = [r for r in kept_rounds(self.path) if r > 0]
        if found is not None and found > 0:
            raise lost_progress(self.path, f"{self.rounds} has no row of round {found}, which has a checkpoint")
        if found is None and kept:
            raise lost_progress(self.path, f"no checkpoint in {self.path / 'checkpoints'} can be read")
        if self.is_deployed and max(rows, default=0) > 0:
            raise lost_progress(self.path, f"{self.path / 'checkpoints'} has no checkpoint of the rows that are there")

    def set_aside(self, reason: str, files: Iterable[Path], copies: Iterable[Path] = ()) -> Path | None:
        """Move files of this run into a new folder under set-aside/, and copy some there, so that nothing is lost.

        Returns the folder, or None where there was nothing to move.
        """
        present = [file for file in files if file.exists()]
        copied = [file for file in copies if file.exists()]
        if not present and not copied:
            return None
        number = 1 + max((int(old.name[:4]) for old in (self.path / SET_ASIDE).glob("[0-9]" * 4 + "-*")), default=0)
        folder = self.path / SET_ASIDE / f"{number:04d}-{reason}"
        try:
            for file in present:
                target = folder / file.relative_to(self.path)
                create_folder(target.parent)
                file.replace(target)
            for file in copied:
                create_folder(folder)
                shutil.copyfile(file, folder / file.relative_to(self.path))
        except OSError as error:
            raise build_write_error(folder, error) from None
        return folder

    def append(self, row: dict[str, Any], *, flush: bool = True) -> None:
        """One row more, on the disk before we go on; without `flush` a power cut may lose it, though no kill does."""
        self._write(_line(row).encode(), flush)

    def flush(self) -> None:
        """All rows so far are on the disk before we go on."""
        self._write(b"", flush=True)

    def _write(self, line: bytes, flush: bool) -> None:
        try:
            descriptor = os.open(self.rounds, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, line) < len(line):  # what a full disk took of it
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if flush:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise build_write_error(self.rounds, error) from None

    def table(self) -> None:
        """rounds.csv: the rows once more, for spreadsheets."""
        rows = self.seen()
        text = io.StringIO()
        names = dict.fromkeys(name for row in rows for name in row)  # a run may go on with more than it began with
        writer = csv.DictWriter(text, list(names) or ["round"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        write_text(self.path / "rounds.csv", text.getvalue())


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
