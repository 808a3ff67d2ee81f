"""Published records of a whole study in one file: `evidence/cells.tar.xz` instead of the folder `evidence/cells`.

A path such as `evidence/cells/NAME/spec.toml` names a file on the disk or, if there is none, a member of the archive
`evidence/cells.tar.xz` (`evidence/cells.tar.xz/NAME/spec.toml` works too). An archive is read into memory once and
never unpacked to the disk. It holds the files that `splitrelay publish` copies, the rows as plain `rounds.jsonl`:
compressing all runs together takes half the space of compressing each alone. `tar -tf` lists it.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from splitrelay.atomic_files import replace_atomically
from splitrelay.errors import InputError

SUFFIX = ".tar.xz"
MAX_BYTES = 2**30  # content of one archive, so that a small file cannot fill the memory
PRESET = 9 | lzma.PRESET_EXTREME

Stamp = tuple[int, int] | None


def has_record(path: Path) -> bool:
    """Return whether a file of a run is on the disk or in an archive."""
    return path.is_file() or read_packed(path) is not None


def read_record(path: Path) -> bytes:
    """Return a file of a run from the disk or from an archive. Raises OSError if it is in neither."""
    packed = None if path.exists() else read_packed(path)
    return path.read_bytes() if packed is None else packed


def read_packed(path: Path) -> bytes | None:
    """Return a member of an archive by its path; None if no archive contains it."""
    archive = _find_archive(path)
    if archive is None:
        return None
    file, folder = archive
    return _load(file, get_stamp(file)).get(path.relative_to(folder).as_posix())


def find_packed_runs(folder: Path) -> Iterator[Path]:
    """Yield the directories of all runs that an archive holds at or below a path, in order."""
    archive = _find_archive(folder)
    if archive is not None:
        file, top = archive
        specs = [top / name for name in _load(file, get_stamp(file)) if PurePosixPath(name).name == "spec.toml"]
        yield from sorted(spec.parent for spec in specs if spec.parent.is_relative_to(folder))


def stamp_packed(path: Path) -> Stamp:
    """Return what changes when the archive of a path changes; None if there is no archive."""
    archive = _find_archive(path)
    return None if archive is None else get_stamp(archive[0])


def get_stamp(path: Path) -> Stamp:
    """Return the time of the last change and the size of a file; None if there is no file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size


def pack_records(records: Iterable[tuple[str, bytes]], target: Path) -> None:
    """Write (name, content) pairs as an archive. The same records make the same bytes.

    Files of one kind stand together because they resemble each other, which halves the size.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in sorted(records, key=lambda record: (PurePosixPath(record[0]).name, record[0])):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with replace_atomically(target) as temporary:
        temporary.write_bytes(lzma.compress(content.getvalue(), preset=PRESET))


def _find_archive(path: Path) -> tuple[Path, Path] | None:
    """Return the archive that a path leads into, and the folder that stands for it."""
    for folder in (path, *path.parents):
        if folder.name.endswith(SUFFIX) and folder.is_file():
            return folder, folder
        beside = folder.with_name(folder.name + SUFFIX) if folder.name else folder
        if folder.name and beside.is_file():
            return beside, folder
    return None


@lru_cache(32)
def _load(file: Path, stamp: Stamp) -> Mapping[str, bytes]:
    """Read all members. Names that lead out of the archive are refused, as `publish` makes paths of them."""
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    try:
        with tarfile.open(file, "r:xz") as archive:
            for member in archive:
                left -= member.size
                parts = PurePosixPath(member.name).parts
                if left < 0:
                    raise InputError(f"{file} is too large", limit=f"at most {MAX_BYTES} bytes of content")
                if member.name.startswith("/") or ".." in parts:
                    raise InputError(f"{file} has a name that leads out of it", value=member.name)
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    found[member.name] = content.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        hint = "Get it again from where it was published."
        raise InputError(
            f"{file} cannot be unpacked: it is cut off or was changed", value=str(error), hint=hint
        ) from None
    return found
