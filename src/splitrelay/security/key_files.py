"""Keys on disk: nobody else may read them, and a folder of them is there whole or not at all."""

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
CA_KEY, REGISTER = "ca-key.pem", "register.json"
PRIVATE = {KEY, SEALING, CA_KEY, REGISTER}
LARGEST = 16_000_000  # bytes of any of these files; a revocation list of 10^5 certificates takes 5 MB


def check_folder(folder: Path) -> None:
    """Refuse a folder of keys in which others can put or replace files."""
    _check_own(folder, folder.stat().st_mode)


def _check_own(path: Path, mode: int) -> None:
    if mode & 0o022:
        hint = f"Run: chmod go-w {path}; if others could change it, replace the keys."
        value = f"{stat.S_IMODE(mode):04o}"
        raise InputError(f"others can write to {path}", value=value, limit="a mode without 022", hint=hint)


def read_public(path: Path) -> bytes:
    """A file that anybody may read, and nobody else may write, else it is refused."""
    with _reading(path) as descriptor:
        _check_own(path, os.fstat(descriptor).st_mode)
        return _content(path, descriptor)


def read_private(path: Path) -> bytes:
    """A file that nobody else may read, else it is refused."""
    with _reading(path) as descriptor:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            hint = f"Run: chmod 600 {path}; if others could read it, replace it."
            raise InputError(f"{path} is open to others", value=f"{mode:04o}", limit="mode 0600", hint=hint)
        return _content(path, descriptor)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with these files, by one rename; where there is one, its files are replaced one by one."""
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _workshop(folder) as work:
            for name, content in files.items():
                _write(work / name, content)
            if folder.exists():  # whatever else lies in it stays
                for name in files:
                    (work / name).replace(folder / name)
                _flush(folder)
            else:
                _flush(work)
                work.rename(folder)
        _flush(folder.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system drops the lock with the process, however that ends."""
    with _writing(folder):
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is refused, not waited for
    except OSError as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        hint = "Give the whole folder as splitrelay keys issue wrote it."
        raise InputError(f"{path} {problem}", hint=hint) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(path: Path, descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InputError(f"{path} is not a file")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InputError(f"{path} is too large", limit=f"at most {LARGEST} bytes")
    return content


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A folder of our own beside the one to be written; what a killed process left there is removed first."""
    prefix = f".splitrelay-{folder.name}-"
    for left in folder.parent.glob(f"{escape(prefix)}*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))  # mode 0700
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    mode = 0o600 if path.name in PRIVATE else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {folder}", value=error.strerror, hint="Choose another place.") from None
