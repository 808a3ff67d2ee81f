"""The directory of one run: its files, its lock, its rows, and the errors for files that cannot be read."""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import hashlib
import io
import json
import math
import os
import shlex
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from splitrelay.atomic_files import build_write_error, create_folder, replace_atomically, write_text
from splitrelay.errors import InputError
from splitrelay.runs.client_records import CLIENTS
from splitrelay.runs.packed_records import has_record, read_packed, read_record
from splitrelay.structured_text import parse_json

if TYPE_CHECKING:
    from splitrelay.evaluation import Score
    from splitrelay.runs.checkpoint import Checkpoints
    from splitrelay.runs.trainer import EvaluationRow


WRITTEN, PUBLISHED = "rounds.jsonl", "rounds.jsonl.gz"
LOCK = ".lock"
SET_ASIDE = "set-aside"  # folder of the files that a restart has replaced
FOLDERS = ("checkpoints", "relay", "relay/visits")  # the folders of a run; what is in them are files
OTHER_FILES = ("environment.json", "rounds.csv", "report.html", "partition.npz")
UNREADABLE = (ValueError, EOFError, OSError, zlib.error)


class RunDirectory:
    """The files spec.toml, environment.json, rounds.jsonl, rounds.csv, checkpoints/ and model.safetensors of a run."""

    def __init__(self, path: Path, keep_checkpoints: int = 2) -> None:
        self.path, self.keep_checkpoints = path, keep_checkpoints
        self.spec, self.model = path / "spec.toml", path / "model.safetensors"
        self.rounds = path / WRITTEN
        self.published = path / PUBLISHED  # rows of a record that was published without weights
        self.digest = path / "model.sha256"
        self.diverged = path / "diverged.txt"  # why the run ended early; it would diverge again

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the run. Imported here because torch takes seconds to import and rows do not need it."""
        checkpoint = import_module("splitrelay.runs.checkpoint")
        checkpoints: Checkpoints = checkpoint.Checkpoints(self.path / "checkpoints", self.keep_checkpoints)
        return checkpoints

    @property
    def is_deployed(self) -> bool:
        """Whether `splitrelay serve` made this directory, so that clients on other hosts trained its model."""
        return _is_deployed(self.path)

    def check_kinds(self) -> None:
        """Check that every file of the run is a regular file, so that no read waits for another program.

        Raises:
            InputError: There is a FIFO, a socket or a device in the directory, or a directory in the place of a file.
        """
        files = (self.spec, self.model, self.rounds, self.published, self.digest, self.diverged)
        names = {*(file.name for file in files), LOCK, CLIENTS, *OTHER_FILES}
        for folder in ("", *FOLDERS):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                for path in (self.path / folder).iterdir():
                    is_top = not folder and path.name not in names  # a folder of the user, or the file of an editor
                    name = f"{folder}/{path.name}".lstrip("/")
                    if name in FOLDERS:
                        _check_kind(path, is_right=path.is_dir(), limit="a directory")
                    elif path.exists():
                        _check_kind(path, is_right=path.is_file() or (is_top and path.is_dir()), limit="a regular file")

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """Hold the lock of the directory. It ends with the process, also after kill -9.

        Raises:
            InputError: Another process has the lock, or a file is of a wrong kind (see check_kinds).
        """
        self.check_kinds()
        is_new = not self.path.is_dir()
        try:
            if is_new:
                create_folder(self.path, private=True)
            lock = (self.path / name).open("w")
        except OSError as error:
            raise build_write_error(self.path, error) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "Wait until it ends, or choose another --out."
                raise InputError(f"another process works in {self.path}", hint=hint) from None
            try:
                yield
            finally:
                if is_new and [path.name for path in self.path.iterdir()] == [name]:  # refused before anything began
                    (self.path / name).unlink()
                    self.path.rmdir()

    def is_locked(self, name: str = LOCK) -> bool:
        """Return whether a process works in the directory."""
        try:
            with (self.path / name).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read_rows(self) -> list[dict[str, Any]]:
        """Return the rows so far, without an incomplete last line.

        Raises:
            InputError: The file cannot be read.
        """
        try:
            lines = read_rounds(self.path).decode().splitlines(keepends=True)
            return [parse_json(line) for line in lines if line.endswith("\n")]
        except UNREADABLE as error:
            raise _make_read_error(self.path, error) from None

    def is_finished(self, R: int) -> bool:
        """Return whether all R rounds and the final model exist, or for a published record the model's checksum."""
        rows = load_rows(self.path)
        is_published = self.published.exists() or read_packed(self.rounds) is not None
        has_end = self.model.exists() or (is_published and has_record(self.digest))
        return bool(rows) and rows[-1]["round"] == R and has_end

    def read_published(self) -> dict[str, bytes]:
        """Return the files that others need to verify the run: spec, environment, rows, checksum of the model.

        A run that diverged has no model. Its diverged.txt takes the place of the checksum. A deployed run also has a
        record of its clients, and no checksum yet because `serve` does not write it.
        """
        files = {file.name: _read_own_file(file) for file in (self.spec, self.path / "environment.json")}
        if self.model.exists() and not has_record(self.digest):
            files[self.digest.name] = f"{hashlib.sha256(self.model.read_bytes()).hexdigest()}\n".encode()
        else:
            end = self.digest if has_record(self.digest) else self.diverged
            files[end.name] = _read_own_file(end)
        if has_record(self.path / CLIENTS):
            files[CLIENTS] = _read_own_file(self.path / CLIENTS)
        return {**files, WRITTEN: read_rounds(self.path)}

    def publish(self, folder: Path) -> None:
        """Write these files to another folder, with compressed rows."""
        for name, content in self.read_published().items():
            is_rows = name == WRITTEN
            with replace_atomically(folder / (PUBLISHED if is_rows else name)) as temporary:
                temporary.write_bytes(gzip.compress(content, mtime=0) if is_rows else content)

    def truncate_rows(self, r: int) -> list[dict[str, Any]]:
        """Remove the rows after round r, and return the others. The run will write the removed rows again."""
        rows = [row for row in self.read_rows() if row["round"] <= r]
        self.write_rows(rows)
        return rows

    def read_intact_rows(self) -> list[dict[str, Any]]:
        """Return the rows before the first damaged line."""
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
        write_text(self.rounds, "".join(json.dumps(row) + "\n" for row in rows))

    def append_row(self, row: dict[str, Any], *, flush: bool = True) -> None:
        """Append a row. Without `flush`, a power cut may lose it, but a kill does not."""
        self._append(json.dumps(row).encode() + b"\n", flush)

    def flush_rows(self) -> None:
        """Wait until all rows are on the disk."""
        self._append(b"", flush=True)

    def _append(self, line: bytes, flush: bool) -> None:
        try:
            descriptor = os.open(self.rounds, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, line) < len(line):  # the disk is full and has taken a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if flush:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise build_write_error(self.rounds, error) from None

    def write_csv(self) -> None:
        """Write all rows to rounds.csv, for spreadsheets."""
        rows = self.read_rows()
        text = io.StringIO()
        names = dict.fromkeys(name for row in rows for name in row)  # later rows may have more fields
        writer = csv.DictWriter(text, list(names) or ["round"], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            flat = {n: " ".join(map(str, value)) if isinstance(value, list) else value for n, value in row.items()}
            writer.writerow(flat)
        write_text(self.path / "rounds.csv", text.getvalue())

    def check_progress(self, found: int | None) -> None:
        """Check that a start from the newest complete checkpoint loses no rounds.

        Rows are on the disk before the checkpoint of their round, and `serve` writes a checkpoint for every row. If one
        of them is missing, a file was removed or damaged, and the run must not start at round 0 as if it were new.

        Args:
            found: The round of the newest complete checkpoint.

        Raises:
            InputError: Rounds would be lost.
        """
        rows = {row["round"] for row in self.read_rows()}
        if found is not None and found in rows:
            return
        folder, problem = self.path / "checkpoints", ""
        if found is not None and found > 0:
            problem = f"{self.rounds} has no row of round {found}, which has a checkpoint"
        elif found is None and any(r > 0 for r in _list_checkpoint_rounds(self.path)):
            problem = f"no checkpoint in {folder} can be read"
        elif self.is_deployed and max(rows, default=0) > 0:
            problem = f"{folder} has no checkpoint for the rows in {self.rounds}"
        if problem:
            raise InputError(problem, hint=_format_restart_hint(self.path))

    def set_aside(self, reason: str, files: Iterable[Path], copies: Iterable[Path] = ()) -> Path | None:
        """Move files of this run into a new folder under set-aside/, and copy others there.

        Returns:
            The folder, or None if none of the files exists.
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


def format_resume_command(path: Path) -> str:
    """Return the command that continues the run in a directory. `serve` also needs the options that it had."""
    command = "serve" if _is_deployed(path) else "run"
    return shlex.join(["splitrelay", command, str(path / "spec.toml"), "--out", str(path)])


def get_rows_file(path: Path) -> Path:
    """Return the file with the rows of a run: rounds.jsonl, or rounds.jsonl.gz of a published record."""
    return path / WRITTEN if (path / WRITTEN).exists() else path / PUBLISHED


def read_rounds(path: Path) -> bytes:
    """Return the content of rounds.jsonl, from the disk or from an archive; empty if there are no rows yet."""
    file = get_rows_file(path)
    if file.exists():
        return gzip.decompress(file.read_bytes()) if file.name == PUBLISHED else file.read_bytes()
    return read_packed(path / WRITTEN) or b""


def make_damage_error(path: Path, problem: str) -> InputError:
    """Return the error for a damaged file of rows, with a hint how to get the rows again."""
    file = get_rows_file(path)
    hint = "Get it again from where it was published." if file.name == PUBLISHED else _format_restart_hint(path)
    return InputError(f"{file}{problem}", hint=hint)


def _make_read_error(path: Path, error: Exception) -> InputError:
    file = get_rows_file(path)
    try:
        content = read_rounds(path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return make_damage_error(path, " cannot be unpacked: it is incomplete or was changed")
    except OSError as refusal:
        return InputError(f"cannot read {file}", value=refusal.strerror)
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            parse_json(line)
        except ValueError:
            return make_damage_error(path, f", line {number}: this is not JSON")
    return make_damage_error(path, f" cannot be read: {error}")


def _format_restart_hint(path: Path) -> str:
    """Return how to get the rows again. A simulation must not replace what the clients of a deployed run trained."""
    command = format_resume_command(path)
    if not _is_deployed(path):
        return f"This command computes the same rows again: {command} --from-scratch"
    rounds = ", ".join(map(str, _list_checkpoint_rounds(path)))
    back = f"go back to a checkpoint with --back-to ROUND (available: {rounds}), or " if rounds else ""
    return f"Restore the file from a copy, {back}start again with --from-scratch: {command}"


def _read_own_file(path: Path) -> bytes:
    """Return a file of a run. Raise InputError if it is missing, or is a link, which may lead to any other file."""
    if path.is_symlink() or not has_record(path):
        hint = "Remove the link, and put the file itself there." if path.is_symlink() else "Restore it from a copy."
        raise InputError("a file of the run cannot be published", value=str(path), limit="a regular file", hint=hint)
    return read_record(path)


def _check_kind(path: Path, *, is_right: bool, limit: str) -> None:
    if not is_right:
        hint = "Move it away. If it took the place of a file of the run, restore that file from a copy."
        raise InputError("a file of the run is of another kind", value=str(path), limit=limit, hint=hint)


def _is_deployed(path: Path) -> bool:
    return (path / "relay").is_dir()


def _list_checkpoint_rounds(path: Path) -> list[int]:
    """Return the rounds with a checkpoint, complete or not. Works without torch."""
    files = (path / "checkpoints").glob("[0-9]*.json")
    return sorted(int(file.stem) for file in files if file.stem.isdecimal())


Row = dict[str, Any]
LAST = 20  # rounds at the end of a run over which accuracies are averaged, at most
SHARE = 5  # and never over more than one SHARE-th of the run
LARGEST = 2**63 - 1  # whole number in a row
REQUIRED = ("round", "test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds")
MEASURED = ("seconds", "socket_", "memory_")  # parts of the names of fields that differ between two equal runs
SKIP_FIELDS = ("skipped", "skipped_visits")  # written by servers only: a simulation has no such fields


def build_row(evaluation: EvaluationRow, seconds_before: float = 0.0) -> Row:
    """Return a row of rounds.jsonl. Only `seconds` depends on time, machine or interruptions.

    Args:
        evaluation: The results after a round.
        seconds_before: The time that earlier processes needed up to the checkpoint from which this one continued.
    """
    validation, score = evaluation.validation, evaluation.score
    return {
        "round": evaluation.r,
        "test_accuracy": score.accuracy,
        "test_loss": score.loss,
        "test_per_class": [None if math.isnan(share) else share for share in score.per_class],
        **_build_metric_fields("test", score),
        **_build_validation_fields(validation),
        "train_loss": None if evaluation.r == 0 else evaluation.train_loss,
        **({} if evaluation.gradient_norm is None else {"gradient_norm": evaluation.gradient_norm}),
        "bytes_up": evaluation.up,
        "bytes_down": evaluation.down,
        "seconds": seconds_before + evaluation.seconds,
    }


def _build_validation_fields(score: Score | None) -> Row:
    if score is None:
        return {}
    means = {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
    return {**means, **_build_metric_fields("validation", score)}


def _build_metric_fields(part: str, score: Score) -> Row:
    """Return one field for each metric, except the accuracy, which the row has already. An infinite value is None."""
    values = {f"{part}_{name}": value for name, value in score.metrics.items() if name != "accuracy"}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def load_rows(path: Path) -> list[Row]:
    """Return all rows of the run in a directory, or an empty list before its first row.

    An incomplete last line does not count.

    Raises:
        InputError: A line is not a valid row. The error names the file and the line.
    """
    rows = RunDirectory(path).read_rows()
    for number, row in enumerate(rows, start=1):
        problem = _find_problem(row, rows[number - 2] if number > 1 else None)
        if problem:
            raise make_damage_error(path, f", line {number}: {problem}")
    return rows


def _find_problem(row: Any, before: Row | None) -> str:
    """Return why `row` is not a valid row after the row `before`, or an empty string."""
    if not isinstance(row, dict):
        return "this is not a row of a run"
    missing = [name for name in REQUIRED if name not in row]
    if missing:
        return f"the field {missing[0]} is missing"
    if not isinstance(row["round"], int):
        return f"its round is not a whole number but {row['round']!r}"
    if before is not None and row["round"] <= before["round"]:
        return f"round {row['round']} comes after round {before['round']}"
    for name in REQUIRED:
        if not isinstance(row[name], int | float) and (name != "train_loss" or row[name] is not None):
            return f"its {name} is not a number but {str(row[name])[:40]!r}"
    for name, value in row.items():
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, int) and abs(number) > LARGEST:
                return f"its {name} is too large"
    return ""


def list_metrics(row: Row) -> list[str]:
    """Return the fields of a row that are metrics of the test set beside accuracy and loss."""
    known = ("test_accuracy", "test_loss", "test_per_class")
    return [name for name in row if name.startswith("test_") and name not in known]


def has_accuracy(row: Row) -> bool:
    """Return whether the targets of a run have an accuracy. It is NaN for real numbers."""
    return not math.isnan(row["test_accuracy"]) or bool(row["test_per_class"])


def remove_measurements(row: Row) -> Row:
    """Return the fields of a row that are equal in every repetition: no times, no socket bytes, no memory sizes."""
    kept = {name: value for name, value in row.items() if name not in SKIP_FIELDS}
    return {name: value for name, value in kept.items() if not any(part in name for part in MEASURED)}


def count_final_rounds(end: int, last: int = LAST) -> int:
    """Return the number of rounds over which the accuracy of a run is averaged.

    Args:
        end: The number of rounds of the run so far.
        last: The largest number of rounds. A fifth of the run is a second limit.
    """
    return max(1, min(last, end // SHARE))


def select_final_rows(rows: Sequence[Row], last: int = LAST, *, has_diverged: bool = False) -> list[Row]:
    """Return the evaluations of the last rounds. The evaluation before the first round does not count.

    A run that diverged counts with its last evaluation, whichever that is: the rounds before do not show its result.
    """
    if has_diverged:
        return list(rows[-1:])
    end = rows[-1]["round"] if rows else 0
    return [row for row in rows if row["round"] > max(0, end - count_final_rounds(end, last))]


def compute_final_accuracy(
    rows: Sequence[Row], column: str = "test_accuracy", last: int = LAST, *, has_diverged: bool = False
) -> float | None:
    """Return the accuracy of a run: the mean over the last rounds, or None if no row has the column.

    This is what all commands call the accuracy of a run. The last row is called the last evaluation. It is also the
    accuracy of a run that diverged.
    """
    values = [row[column] for row in select_final_rows(rows, last, has_diverged=has_diverged) if column in row]
    return fmean(values) if values else None


def describe_final_rounds(ends: Iterable[int], last: int = LAST) -> str:
    """Return the rounds over which accuracies are averaged, for example 'last 20 rounds', by the rounds of each run."""
    windows = sorted({count_final_rounds(end, last) for end in ends}) or [last]
    if windows == [1]:
        return "last round"
    return f"last {windows[0]}{f' to {windows[-1]}' * (len(windows) > 1)} rounds"


def name_final_accuracy(ends: Iterable[int], last: int = LAST) -> str:
    """Return the heading of a column of accuracies, for example 'accuracy (%), last 20 rounds'."""
    return f"accuracy (%), {describe_final_rounds(ends, last)}"
