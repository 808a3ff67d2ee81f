"""The cache of data sets: a folder of .npy files for each set.

The files are mapped into memory, so all processes share their pages. `save` writes any data set in the same form.
"""

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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from splitrelay.data.augment import Augmentation
from splitrelay.data.dataset_formats import PARTS, Arrays
from splitrelay.data.images import DataSet, ImageSet, get_images
from splitrelay.errors import InputError, OutputError, StorageError, WorkError
from splitrelay.structured_text import parse_json

if TYPE_CHECKING:
    from splitrelay.data.datasets import KnownSet

if sys.platform != "win32":
    import fcntl

ABOUT = "about.json"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ELSEWHERE = "Free some space, or keep data elsewhere: SPLITRELAY_DATA=FOLDER."


def get_data_folder() -> Path:
    """Return $SPLITRELAY_DATA, else $XDG_CACHE_HOME/splitrelay, else ~/.cache/splitrelay."""
    chosen = os.environ.get("SPLITRELAY_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if cache.is_absolute():  # the XDG specification ignores relative paths
        return cache / "splitrelay"
    try:
        return Path.home() / ".cache" / "splitrelay"
    except RuntimeError:
        raise InputError("there is no home folder to keep data in", hint="Set SPLITRELAY_DATA=FOLDER.") from None


def get_cache_folder(known: KnownSet, root: Path) -> Path:
    """Return the folder of one set."""
    return root / known.name


def is_cached(known: KnownSet, root: Path) -> bool:
    """Return whether the set is in the cache. This checks the shapes, not the checksums."""
    try:
        map_arrays(known, root)
    except WorkError:
        return False
    return True


def map_arrays(known: KnownSet, root: Path) -> Arrays:
    """Map the arrays of a set into memory."""
    folder, hint = get_cache_folder(known, root), f"Fetch it again: splitrelay data get {known.name}"
    try:
        arrays = {part: _map_array(folder / f"{part}.npy") for part in PARTS}
    except WorkError as error:
        raise WorkError(error.what, hint=hint) from None
    for part, array in arrays.items():
        if array.shape != known.compute_shape(part) or array.dtype != (np.uint8 if part.endswith("x") else np.int64):
            raise WorkError(f"{folder / part}.npy is damaged", value=f"{array.dtype} {array.shape}", hint=hint)
    return arrays


def _map_array(path: Path) -> npt.NDArray[Any]:
    """Map one .npy file, copy on write: processes share the pages, and torch accepts the array without a copy."""
    try:
        return np.load(path, mmap_mode="c").view(np.ndarray)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise WorkError(f"{path} cannot be read ({' '.join(str(error).split())})") from None


def build_dataset(known: KnownSet, arrays: Arrays) -> DataSet:
    """Return the arrays as a data set with the name, classes and normalization of the known set."""
    train, test = (
        ImageSet(arrays[f"{part}-x"], arrays[f"{part}-y"], known.classes, known.mean, known.std, known.peak)
        for part in ("train", "test")
    )
    return DataSet(known.name, train, test, known.augmentation)


@dataclass(frozen=True)
class FileCheck:
    """The result for one official file: `wrong` is empty or says what is wrong."""

    file: str
    wrong: str = ""


def check_files(known: KnownSet, root: Path) -> list[FileCheck]:
    """Encode the official files again from the cached arrays and compare their checksums."""
    try:
        files = known.format.encode(map_arrays(known, root))
    except WorkError as error:
        return [FileCheck(file.name, error.what) for file in known.files]
    official = {file.name: file for file in known.files}
    results = []
    for name, payload in files:
        try:
            official[name].check(payload)
            results.append(FileCheck(name))
        except WorkError as error:
            results.append(FileCheck(name, error.what))
    return results


def save(data: DataSet, folder: str | Path, served_by: str | None = None) -> Path:
    """Write a data set as a folder. `splitrelay.data.load` opens it again.

    The folder appears only when it is complete. It replaces an older folder.

    Args:
        data: The data set.
        folder: The folder to write.
        served_by: The source of the data, for the file about.json.
    """
    path = Path(folder).expanduser().absolute()
    train, test = (get_images(part, "a folder of a data set") for part in (data.train, data.test))
    augmentation = data.augmentation
    arrays: Arrays = {"train-x": train.x, "train-y": train.y, "test-x": test.x, "test-y": test.y}
    about = {
        "name": data.name,
        "classes": train.classes,
        "mean": train.mean,
        "std": train.std,
        "peak": train.peak,
        "augmentation": None if augmentation is None else {"pad": augmentation.pad, "flip": augmentation.flip},
        "served by": served_by,
    }
    with create_root(path.parent), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as work:
        ready = Path(work) / "ready"
        ready.mkdir()  # with the default permissions, so that others can read a shared cache
        for part in PARTS:
            _write_array(ready / f"{part}.npy", arrays[part])
        (ready / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        with suppress(FileNotFoundError):
            path.rename(Path(work) / "old")
        ready.rename(path)
    return path


def is_dataset_folder(path: Path) -> bool:
    """Return whether a folder was written by `save`."""
    return (path / ABOUT).is_file() and (path / "train-x.npy").is_file()


def open_dataset(path: Path) -> DataSet:
    """Open a folder that `save` wrote."""
    try:
        about: dict[str, Any] = parse_json((path / ABOUT).read_text())
        missing = {"name", "classes", "mean", "std", "peak", "augmentation"} - set(about)
    except (OSError, ValueError) as error:
        raise InputError(f"{path / ABOUT} cannot be read ({error})") from None
    if missing:
        raise InputError(f"{path / ABOUT} lacks {', '.join(sorted(missing))}")
    try:
        arrays = {part: _map_array(path / f"{part}.npy") for part in PARTS}
    except WorkError as error:
        raise InputError(error.what, hint="Save it again.") from None
    classes, mean, std = (tuple(about[key]) for key in ("classes", "mean", "std"))
    train, test = (
        ImageSet(arrays[f"{part}-x"], arrays[f"{part}-y"], classes, mean, std, about["peak"])
        for part in ("train", "test")
    )
    augmentation = about["augmentation"]
    return DataSet(about["name"], train, test, None if augmentation is None else Augmentation(**augmentation))


@contextmanager
def create_root(root: Path) -> Iterator[None]:
    """Create the folder, and report a full disk or a missing permission as one of our errors."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StorageError(f"the disk of {root} is full ({error.strerror})", hint=ELSEWHERE) from None
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or error.errno == errno.EROFS:
            raise OutputError(f"cannot write to {root} ({error.strerror})", hint=ELSEWHERE) from None
        raise


class LockState(Enum):
    """The result of an attempt to acquire the lock."""

    ACQUIRED = "no other process fetches this set"
    BUSY = "another process fetches it"
    UNSUPPORTED = "files cannot be locked here; unique names and renames keep fetchers from harming each other"


@dataclass(frozen=True)
class FetchLock:
    """A lock that lets one process at a time fetch a set. The system releases it when the process ends."""

    handle: int

    def try_acquire(self) -> LockState:
        """Acquire the lock without waiting."""
        if sys.platform == "win32":
            return LockState.UNSUPPORTED
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return LockState.BUSY
        except OSError:  # some network disks
            return LockState.UNSUPPORTED
        return LockState.ACQUIRED

    def wait(self) -> None:
        """Wait until the other process has released the lock, and acquire it."""
        if sys.platform != "win32":
            fcntl.flock(self.handle, fcntl.LOCK_EX)


@contextmanager
def open_lock(known: KnownSet, root: Path) -> Iterator[FetchLock]:
    """Open the lock file of a set."""
    # Opened for reading only, so that the lock file of another user in a shared cache can be used.
    handle = os.open(root / f".{known.name}.lock", os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        yield FetchLock(handle)
    finally:
        os.close(handle)


def remove_leftovers(known: KnownSet, root: Path) -> None:
    """Remove the temporary folders of killed processes. The caller must have the lock."""
    for folder in root.glob(f".{known.name}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    # np.save does not report a full disk.
    with path.open("wb") as file:
        contiguous = np.ascontiguousarray(array)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(contiguous))
        file.write(contiguous.data)
        file.flush()
        os.fsync(file.fileno())
