"""Write files atomically: after a crash or a power failure a file is complete or absent, never partial."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splitrelay.errors import OutputError, StorageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STORAGE = (*DISK_FULL, errno.EIO)  # errors of the disk; another path on it would not help


def build_write_error(path: Path, error: OSError, hint: str = "Choose another place.") -> OutputError | StorageError:
    """Return the error for a file that could not be written.

    A full or broken disk gives a StorageError (exit code 1). All other reasons, such as a missing permission, give an
    OutputError with the given hint (exit code 2), because the user chose a wrong path.
    """
    if error.errno not in STORAGE:
        return OutputError(f"cannot write {path}", value=error.strerror, hint=hint)
    if error.errno in DISK_FULL:
        hint = "Free disk space, then give the same command again."
    else:
        hint = "Check the disk, then give the same command again."
    return StorageError(f"cannot write {path}", value=error.strerror, hint=hint)


@contextmanager
def replace_atomically(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder. On exit, flush that file to the disk and rename it to `path`.

    Args:
        path: The file to create or replace.
        private: Make the file, and a folder created for it, accessible to its owner only. Use this for weights and
            for information about clients.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not path.parent.is_dir():
            _create_folder(path.parent, private)
        if private:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        temporary.chmod(0o600 if private else 0o666 & ~_get_umask())  # some libraries write private files
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise build_write_error(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write a text file atomically. `private` has the same meaning as in replace_atomically."""
    with replace_atomically(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise OutputError if a file cannot be created at this path. The free space is not checked."""
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK) or path.is_dir():
        raise OutputError(f"cannot write {path}", hint="Choose another place, or make its folder.")


def create_folder(folder: Path, *, private: bool = False) -> None:
    """Create the folder and its parents if they do not exist, and flush them to the disk.

    A new private folder has mode 0700.
    """
    try:
        _create_folder(folder, private)
    except OSError as error:
        raise build_write_error(folder, error) from None


def _create_folder(folder: Path, private: bool) -> None:
    missing = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(0o700 if private else 0o777, exist_ok=True)
    for new in (folder, *missing):
        _flush(new.parent)  # the parent contains the name of the new folder


def _get_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
