"""Records that cannot be read: which file, which line, and how to have it again."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from pathlib import Path

from splitrelay.errors import InputError

WRITTEN, PUBLISHED = "rounds.jsonl", "rounds.jsonl.gz"
UNREADABLE = (ValueError, EOFError, OSError, zlib.error)


def damaged(path: Path, where: str) -> InputError:
    """The record in this directory cannot be used; where it is wrong, and how to have it again."""
    file = file_of(path)
    made = f"Remove this file, and the same rows are made again by: {again(path)}"
    way_out = "Get it again from where it was published." if file.name == PUBLISHED else made
    return InputError(f"{file}{where}", way_out=way_out)


def again(path: Path) -> str:
    """The command that goes on with the run in a directory."""
    return shlex.join(["splitrelay", "run", str(path / "spec.toml"), "--out", str(path)])


def file_of(path: Path) -> Path:
    """The file of the rows: as they were written, or as they were published."""
    return path / WRITTEN if (path / WRITTEN).exists() else path / PUBLISHED


def unreadable(path: Path, error: Exception) -> InputError:
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
