"""The rows of a run as they lie on the disk, looked through: what is no row is named by its file and line."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.records import RunDirectory

Row = dict[str, Any]
NEEDED = ("round", "test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds")


def rows_of(path: Path) -> list[Row]:
    """All rows of the run in a directory; none where it has not begun. A half-written last line does not count."""
    try:
        rows = RunDirectory(path).seen()
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise _found(path, error) from None
    for number, row in enumerate(rows, start=1):
        why = _wrong(row, rows[number - 2] if number > 1 else None)
        if why:
            raise damaged(path, f", line {number}: {why}")
    return rows


def damaged(path: Path, where: str) -> InputError:
    """The record in this directory cannot be used; where it is wrong, and how to have it again."""
    directory, file = RunDirectory(path), file_of(path)
    made = f"Remove this file, and the same rows are made again by: {again(path)}"
    way_out = "Get it again from where it was published." if file == directory.published else made
    return InputError(f"{file}{where}", way_out=way_out)


def again(path: Path) -> str:
    """The command that goes on with the run in a directory."""
    return shlex.join(["splitrelay", "run", str(RunDirectory(path).spec), "--out", str(path)])


def file_of(path: Path) -> Path:
    """The file of the rows: as they were written, or as they were published."""
    directory = RunDirectory(path)
    return directory.rounds if directory.rounds.exists() else directory.published


def _found(path: Path, error: Exception) -> InputError:
    """Where reading broke off."""
    file = file_of(path)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return damaged(path, " cannot be unpacked: it is cut off or was changed")
    except OSError as refused:
        return InputError(f"cannot read {file}", value=refused.strerror)
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            json.loads(line)
        except ValueError:
            return damaged(path, f", line {number}: this is no JSON")
    return damaged(path, f" cannot be read: {error}")


def _wrong(row: Any, before: Row | None) -> str:
    """Why this is no row; empty where it is one."""
    if not isinstance(row, dict):
        return "this is no row of a run"
    missing = [name for name in NEEDED if name not in row]
    if missing:
        return f"it has no {missing[0]}"
    if not isinstance(row["round"], int):
        return f"its round is no whole number but {row['round']!r}"
    if before is not None and row["round"] <= before["round"]:
        return f"round {row['round']} comes after round {before['round']}"
    return ""
