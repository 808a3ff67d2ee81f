"""The directory of one run: locked while a process works on it, its rows cut back to where the run goes on."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitrelay.errors import InputError, OutputError
from splitrelay.files import keep, replacing, write_text
from splitrelay.records.damage import PUBLISHED, UNREADABLE, WRITTEN, unreadable

if TYPE_CHECKING:
    from splitrelay.records.checkpoint import Checkpoints

LOCK = ".lock"


class RunDirectory:
    """spec.toml, environment.json, rounds.jsonl, rounds.csv, checkpoints/, model.safetensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec, self.model = path / "spec.toml", path / "model.safetensors"
        self.rounds = path / WRITTEN
        self.published = path / PUBLISHED  # of records that are handed out without their weights
        self.digest = path / "model.sha256"
        self.diverged = path / "diverged.txt"  # why a run has no end: it would not have one the next time either

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The states that are kept. They need torch, which takes seconds to import: whoever reads rows does without."""
        kept: Checkpoints = import_module("splitrelay.records.checkpoint").Checkpoints(self.path / "checkpoints")
        return kept

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """No second process may write here; the lock ends with the process, also after kill -9."""
        try:
            if not self.path.is_dir():
                keep(self.path, private=True)
            lock = (self.path / name).open("w")
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}", value=error.strerror, way_out="Choose another place."
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                way_out = "Wait for it, or choose another --out."
                raise InputError(f"another process is at work in {self.path}", way_out=way_out) from None
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
            lines = self._text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except UNREADABLE as error:
            raise unreadable(self.path, error) from None

    def _text(self) -> str:
        if self.rounds.exists():
            return self.rounds.read_text(encoding="utf-8")
        return gzip.decompress(self.published.read_bytes()).decode() if self.published.exists() else ""

    def finished(self, R: int) -> bool:
        """Whether all R rounds are there, and the model that they end with, or its checksum in what was published."""
        rows = self.seen()
        ended = self.model.exists() or (self.published.exists() and self.digest.exists())
        return bool(rows) and rows[-1]["round"] == R and ended

    def publish(self, folder: Path) -> None:
        """Spec, environment, rows and the model's checksum into another folder: what others need to check the run.

        A run that diverged has no model; why it did goes instead.
        """
        end = self.digest if self.digest.exists() else self.diverged
        for file in (self.spec, self.path / "environment.json", end):
            write_text(folder / file.name, file.read_text(encoding="utf-8"))
        with replacing(folder / self.published.name) as temporary:
            temporary.write_bytes(gzip.compress(self._text().encode(), mtime=0))

    def cut_back(self, r: int) -> list[dict[str, Any]]:
        """Forget the rows after round r: the run goes on from there and will write them again."""
        rows = [row for row in self.seen() if row["round"] <= r]
        write_text(self.rounds, "".join(_line(row) for row in rows))
        return rows

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
                os.write(descriptor, line)
                if flush:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            way_out = "Make room; the same command goes on from the last checkpoint."
            raise OutputError(f"cannot write {self.rounds}", value=error.strerror, way_out=way_out) from None

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
