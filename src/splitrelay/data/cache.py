"""Where data sets are kept: a folder of .npy files per set, mapped into memory, so that processes share their pages."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.data.dataset_formats import PARTS, Arrays, OfficialFile
from splitrelay.data.datasets import KnownSet
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.errors import InputError, OutputError, StorageError, WorkError

if sys.platform != "win32":
    import fcntl

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ELSEWHERE = "Free some space, or keep data elsewhere: SPLITRELAY_DATA=FOLDER."


def data_folder() -> Path:
    """$SPLITRELAY_DATA, else splitrelay in $XDG_CACHE_HOME, else in ~/.cache."""
    own = os.environ.get("SPLITRELAY_DATA")
    if own:
        return Path(own).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if cache.is_absolute():  # the XDG rules: a relative path is no answer
        return cache / "splitrelay"
    try:
        return Path.home() / ".cache" / "splitrelay"
    except RuntimeError:
        raise InputError("there is no home folder to keep data in", hint="Set SPLITRELAY_DATA=FOLDER.") from None


def place(known: KnownSet, root: Path) -> Path:
    """The folder of one set."""
    return root / known.name


def is_here(known: KnownSet, root: Path) -> bool:
    """Whether the set is in this folder (its shapes, not its checksums)."""
    try:
        mapped(known, root)
    except WorkError:
        return False
    return True


def mapped(known: KnownSet, root: Path) -> Arrays:
    """The arrays of a set, as pages of its files."""
    try:
        arrays = {part: map_array(place(known, root) / f"{part}.npy") for part in PARTS}
    except WorkError as error:
        raise WorkError(error.what, hint=_again(known)) from None
    for part, array in arrays.items():
        if array.shape != known.shape_of(part) or array.dtype != (np.uint8 if part.endswith("x") else np.int64):
            found = f"{array.dtype} {array.shape}"
            raise WorkError(f"{place(known, root) / part}.npy is damaged", value=found, hint=_again(known))
    return arrays


def map_array(path: Path) -> npt.NDArray[Any]:
    """One .npy file as memory. Copy on write: processes share the pages, and torch takes the array as it is."""
    try:
        return np.load(path, mmap_mode="c").view(np.ndarray)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise WorkError(f"{path} cannot be read ({' '.join(str(error).split())})") from None


def data_set(known: KnownSet, arrays: Arrays) -> DataSet:
    """Arrays with the name, classes and normalisation of their set."""
    train, test = (
        ImageSet(arrays[f"{part}-x"], arrays[f"{part}-y"], known.classes, known.mean, known.std, known.peak)
        for part in ("train", "test")
    )
    return DataSet(known.name, train, test, known.augmentation)


@dataclass(frozen=True)
class Verdict:
    """One official file, made again from the cache: right, or what is wrong with it."""

    file: str
    wrong: str = ""


def verdicts(known: KnownSet, root: Path) -> list[Verdict]:
    """The checksums of what is cached: the official files are made again from the arrays, byte for byte."""
    try:
        made = known.format.encode(mapped(known, root))
    except WorkError as error:
        return [Verdict(file.name, error.what) for file in known.files]
    official = {file.name: file for file in known.files}
    return [Verdict(name, _wrong(official[name], payload)) for name, payload in made]


def save_arrays(arrays: Arrays, about: dict[str, Any], folder: Path) -> None:
    """Arrays and a few words about them as a folder that appears whole or not at all, replacing an older one."""
    with writing(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
        ready = Path(work) / "ready"
        ready.mkdir()  # with the user's own permissions: a shared cache stays readable
        for part in PARTS:
            _write_array(ready / f"{part}.npy", arrays[part])
        (ready / "about.json").write_text(json.dumps(about, indent=2) + "\n")
        with suppress(FileNotFoundError):
            folder.rename(Path(work) / "old")
        ready.rename(folder)


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Make the folder; a full disk or a forbidden folder is said in one line."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageError(f"the disk of {root} is full ({error.strerror})", hint=ELSEWHERE) from None
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or error.errno == errno.EROFS:
            raise OutputError(f"cannot write to {root} ({error.strerror})", hint=ELSEWHERE) from None
        raise


@contextmanager
def turn(known: KnownSet, root: Path) -> Iterator[Turn]:
    """One fetcher of a set at a time. The system drops the lock with the process, however that ends."""
    # Opened for reading only, so that a colleague's lock file in a shared cache will do.
    handle = os.open(root / f".{known.name}.lock", os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        yield Turn(handle)
    finally:
        os.close(handle)


class Lock(Enum):
    """What became of an attempt to take the turn."""

    MINE = "nobody else fetches this set"
    BUSY = "another process fetches it"
    NONE = "files cannot be locked here: unique names and renames keep fetchers from harming each other"


@dataclass(frozen=True)
class Turn:
    """A place in the queue of one set's fetchers."""

    handle: int

    def take(self) -> Lock:
        """Take the turn if nobody has it."""
        if sys.platform == "win32":
            return Lock.NONE
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Lock.BUSY
        except OSError:  # some network disks
            return Lock.NONE
        return Lock.MINE

    def wait(self) -> None:
        """Until the process that has the turn is done, or gone."""
        if sys.platform != "win32":
            fcntl.flock(self.handle, fcntl.LOCK_EX)


def sweep(known: KnownSet, root: Path) -> None:
    """Remove what killed fetchers of this set left behind; only for whoever has the turn."""
    for left in root.glob(f".{known.name}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    # Not np.save: it reports a full disk without saying so.
    with path.open("wb") as file:
        whole = np.ascontiguousarray(array)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
        file.write(whole.data)
        file.flush()
        os.fsync(file.fileno())


def _again(known: KnownSet) -> str:
    return f"Fetch it again: splitrelay data get {known.name}"


def _wrong(file: OfficialFile, payload: bytes) -> str:
    try:
        file.checked(payload)
    except WorkError as error:
        return error.what
    return ""
