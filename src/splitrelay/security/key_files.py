"""Read and write folders of keys.

Private files must not be readable by other users, and no file may be writable by them. A new folder appears complete or
not at all, because it is written under another name and then renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from splitrelay.errors import InputError, OutputError

CA, CERTIFICATE, KEY, IDENTITY = "ca.pem", "cert.pem", "key.pem", "identity.json"
REVOKED, SEALING = "crl.pem", "sealing.json"
CA_KEY, REGISTRY = "ca-key.pem", "register.json"
PRIVATE = {KEY, SEALING, CA_KEY, REGISTRY}
MAX_BYTES = 16_000_000  # of any of these files; a revocation list of 10^5 certificates takes 5 MB


def check_folder(folder: Path) -> None:
    """Raise an InputError if other users can add or replace files in a folder of keys."""
    _check_not_writable(folder, folder.stat().st_mode)


def read_public(path: Path) -> bytes:
    """Read a file.

    Raises:
        InputError: It is missing, too large or not a file, or other users can write to it.
    """
    with _open_file(path) as descriptor:
        _check_not_writable(path, os.fstat(descriptor).st_mode)
        return _read_content(path, descriptor)


def read_private(path: Path) -> bytes:
    """Read a private file.

    Raises:
        InputError: It is missing, too large or not a file, or other users can read or write it.
    """
    with _open_file(path) as descriptor:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            hint = f"Run: chmod 600 {path}; if other users could read it, replace it."
            raise InputError(f"other users can access {path}", value=f"{mode:04o}", limit="mode 0600", hint=hint)
        return _read_content(path, descriptor)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder: create a new folder with one rename, or replace files of an existing one.

    Raises:
        OutputError: The folder cannot be written.
    """
    with _convert_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _create_temporary_folder(folder) as temporary:
            for name, content in files.items():
                _write_file(temporary / name, content)
            if folder.exists():  # its other files stay
                for name in files:
                    (temporary / name).replace(folder / name)
                _flush_folder(folder)
            else:
                _flush_folder(temporary)
                temporary.rename(folder)
        _flush_folder(folder.parent)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time change a folder. The system releases the lock when the process ends."""
    with _convert_errors(folder):
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _check_not_writable(path: Path, mode: int) -> None:
    if mode & 0o022:
        hint = f"Run: chmod go-w {path}; if other users could change it, replace the keys."
        value = f"{stat.S_IMODE(mode):04o}"
        raise InputError(f"other users can write to {path}", value=value, limit="a mode without 022", hint=hint)


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not wait for the writer of a pipe
    except OSError as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        hint = "Give the whole folder as splitrelay keys issue wrote it."
        raise InputError(f"{path} {problem}", hint=hint) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_content(path: Path, descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InputError(f"{path} is not a file")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"{path} is too large", limit=f"at most {MAX_BYTES} bytes")
    return content


@contextmanager
def _create_temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a folder next to the one to be written; remove those of killed processes."""
    prefix = f".splitrelay-{folder.name}-"
    for old in folder.parent.glob(f"{escape(prefix)}*"):
        shutil.rmtree(old, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))  # mode 0700
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_file(path: Path, content: bytes) -> None:
    mode = 0o600 if path.name in PRIVATE else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # independent of the umask
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _convert_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {folder}", value=error.strerror, hint="Choose another place.") from None
