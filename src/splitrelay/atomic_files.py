"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splitrelay.errors import OutputError, StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STORAGE = (*NO_ROOM, errno.EIO)  # the disk's fault, whichever place the user names


def write_error(path: Path, error: OSError, hint: str = "Choose another place.") -> OutputError | StorageError:
    """Make the error for a file that could not be written: StorageError (exit code 1) where the disk is full or broken.

    Any other reason, such as a missing permission, is an OutputError (exit code 2): the user chose a wrong place.
    """
    if error.errno not in STORAGE:
        return OutputError(f"cannot write {path}", value=error.strerror, hint=hint)
    if error.errno in NO_ROOM:
        hint = "Make room, then give the same command again."
    else:
        hint = "Check the disk, then give the same command again."
    return StorageError(f"cannot write {path}", value=error.strerror, hint=hint)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary name beside the file; when all is written it is flushed to the disk and takes the file's place.

    A `private` file, and the folder that is made for it, are for nobody else: weights, and what is known of clients.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not path.parent.is_dir():
            _keep(path.parent, private)
        if private:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        temporary.chmod(0o600 if private else 0o666 & ~_umask())  # some writers keep their files to themselves
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise write_error(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """A text file, whole or not at all; `private` as in replacing."""
    with replacing(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def refuse_unwritable(path: Path) -> None:
    """Whether there will be room for a file is not known; whether it may be written here is."""
    place = path.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK) or path.is_dir():
        raise OutputError(f"cannot write {path}", hint="Choose another place, or make its folder.")


def keep(folder: Path, *, private: bool = False) -> None:
    """The folder, made where it is missing, is there also after a power cut; a new `private` one has mode 0700."""
    try:
        _keep(folder, private)
    except OSError as error:
        raise write_error(folder, error) from None


def _keep(folder: Path, private: bool = False) -> None:
    missing = [one for one in folder.parents if not one.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(0o700 if private else 0o777, exist_ok=True)
    for one in (folder, *missing):
        _flush(one.parent)  # which has its name


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
