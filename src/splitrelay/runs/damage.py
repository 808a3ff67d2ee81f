"""Records that cannot be read: which file, which line, and how to have it again."""

from __future__ import annotations

import gzip
import shlex
import zlib
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.runs.packed_records import read_packed
from splitrelay.structured_text import parse_json

WRITTEN, PUBLISHED = "rounds.jsonl", "rounds.jsonl.gz"
UNREADABLE = (ValueError, EOFError, OSError, zlib.error)


def damaged(path: Path, where: str) -> InputError:
    """The record in this directory cannot be used; where it is wrong, and how to have it again."""
    file = file_of(path)
    hint = "Get it again from where it was published." if file.name == PUBLISHED else start_again(path)
    return InputError(f"{file}{where}", hint=hint)


def lost_progress(path: Path, what: str) -> InputError:
    """The run cannot go on where it stopped, and must not begin again by itself."""
    return InputError(what, hint=start_again(path))


def start_again(path: Path) -> str:
    """What to do about a record that is damaged: a deployed run is never made again by a simulation."""
    if not is_deployed(path):
        return f"The same rows are made again by: {again(path)} --from-scratch"
    rounds = kept_rounds(path)
    back = f"go back to a checkpoint with --back-to ROUND (there is {', '.join(map(str, rounds))})" if rounds else ""
    choice = f"{back}, or begin again with --from-scratch" if rounds else "begin again with --from-scratch"
    return f"Bring the file back from a copy, {choice}: {again(path)}"


def again(path: Path) -> str:
    """The command that goes on with the run in a directory; `serve` also needs the options that it had."""
    command = "serve" if is_deployed(path) else "run"
    return shlex.join(["splitrelay", command, str(path / "spec.toml"), "--out", str(path)])


def is_deployed(path: Path) -> bool:
    """Whether `splitrelay serve` made this directory."""
    return (path / "relay").is_dir()


def kept_rounds(path: Path) -> list[int]:
    """The rounds of which there is a checkpoint, whole or not, in order."""
    return sorted(int(file.stem) for file in (path / "checkpoints").glob("[0-9]*.json"))


def file_of(path: Path) -> Path:
    """The file of the rows: as they were written, or as they were published."""
    return path / WRITTEN if (path / WRITTEN).exists() else path / PUBLISHED


def read_rounds(path: Path) -> bytes:
    """Return the rows of the run in a directory as they were written; nothing where it has none yet."""
    file = file_of(path)
    if file.exists():
        return gzip.decompress(file.read_bytes()) if file.name == PUBLISHED else file.read_bytes()
    return read_packed(path / WRITTEN) or b""


def unreadable(path: Path, error: Exception) -> InputError:
    """Where reading broke off."""
    file = file_of(path)
    try:
        content = read_rounds(path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return damaged(path, " cannot be unpacked: it is cut off or was changed")
    except OSError as refused:
        return InputError(f"cannot read {file}", value=refused.strerror)
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            parse_json(line)
        except ValueError:
            return damaged(path, f", line {number}: this is no JSON")
    return damaged(path, f" cannot be read: {error}")
