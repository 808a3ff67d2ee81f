"""The ways to a data set: folders of this machine, the original addresses, and packages that carry it."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from splitrelay.data.archives import Files, Unpack, gunzipped
from splitrelay.data.dataset_formats import OfficialFile
from splitrelay.data.download import Progress, download, host
from splitrelay.data.download_packages import CLIENTS
from splitrelay.errors import WorkError

Fetching = Generator[Progress, None, Files]


class Way(Protocol):
    """One way to the official files; it fails with a WorkError that says why."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    def files(self, wanted: Sequence[OfficialFile], work: Path, /) -> Fetching: ...


@dataclass(frozen=True)
class Folder:
    """A folder that may hold the official files: as they are, each in a .gz, or together in their archive."""

    path: Path
    inside: tuple[str, ...] = ("",)
    archive: str = ""
    unpack: Unpack | None = None
    kind: str = "folder"

    @property
    def label(self) -> str:
        return f"the folder {self.path}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Read them where they are."""
        yield Progress(self.kind, f"reading {self.path}")
        return self.read(wanted)

    def read(self, wanted: Sequence[OfficialFile]) -> Files:
        """The files, checked."""
        if not self.path.is_dir():
            raise WorkError(f"there is no folder {self.path}")
        place = self.place(wanted)
        if place is None:
            raise WorkError(f"{self.path} holds no {wanted[0].name}")
        if self.unpack is not None and place.is_file():
            found = self.unpack(place, wanted)
        else:
            found = {file.name: _read(place, file) for file in wanted}
        return {file.name: file.checked(found[file.name]) for file in wanted}

    def place(self, wanted: Sequence[OfficialFile]) -> Path | None:
        """Where they are: the folder that has the first of them, or their archive."""
        for name in self.inside:
            if _holds(self.path / name, wanted[0]):
                return self.path / name
        packed = self.path / self.archive
        return packed if self.archive and packed.is_file() else None


@dataclass(frozen=True)
class SystemFolder:
    """Where a distribution's package puts a data set: `datasets/NAME` in the system's shared data."""

    name: str
    kind: str = "system"
    label: str = "the system's folder"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """The first folder that is there."""
        shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
        folders = [Path(place) / "datasets" / self.name for place in shared.split(":") if place]
        for folder in folders:
            if folder.is_dir():
                return (yield from Folder(folder, kind=self.kind).files(wanted, work))
        raise WorkError(f"there is no {' or '.join(map(str, folders))}")


@dataclass(frozen=True)
class InstalledPackage:
    """A Python package that carries the files; it is read, not imported."""

    package: str
    inside: str
    kind: str = "system"

    @property
    def label(self) -> str:
        return f"the installed package {self.package}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Find the package without running it."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None or not spec.submodule_search_locations:
            raise WorkError(f"the Python package {self.package} is not installed")
        return (yield from Folder(Path(spec.submodule_search_locations[0]) / self.inside).files(wanted, work))


@dataclass(frozen=True)
class WebFiles:
    """The original addresses of files that are published one by one, each in a .gz."""

    bases: tuple[str, ...]
    kind: str = "web"

    @property
    def label(self) -> str:
        return f"the original addresses ({', '.join(map(host, self.bases))})"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Each file from the first address that serves it whole."""
        found: Files = {}
        for file in wanted:
            found[file.name] = yield from self._file(file, work / f"{file.name}.gz")
        return found

    def _file(self, file: OfficialFile, target: Path) -> Generator[Progress, None, bytes]:
        reasons = []
        for base in self.bases:
            try:
                yield from download(base + target.name, target)
                return file.checked(gunzipped(target, file.size))
            except WorkError as error:
                reasons.append(error.what)
        raise WorkError(", ".join(reasons))


@dataclass(frozen=True)
class WebArchive:
    """The original addresses of one archive with all files."""

    addresses: tuple[str, ...]
    unpack: Unpack
    kind: str = "web"

    @property
    def label(self) -> str:
        return f"the original addresses ({', '.join(map(host, self.addresses))})"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """All files from the first address that serves the archive whole."""
        reasons = []
        for address in self.addresses:
            target = work / address.rpartition("/")[2]
            try:
                yield from download(address, target)
                yield Progress(self.kind, f"unpacking {target.name}")
                found = self.unpack(target, wanted)
                return {file.name: file.checked(found[file.name]) for file in wanted}
            except WorkError as error:
                reasons.append(error.what)
        raise WorkError(", ".join(reasons))


@dataclass(frozen=True)
class Package:
    """A package of npm, apt or pip, brought by its own client under its name."""

    kind: str
    name: str
    size: int
    unpack: Unpack

    @property
    def label(self) -> str:
        return f"the {self.kind} package {self.name}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Fetch, then unpack."""
        folder = work / self.kind
        folder.mkdir()
        archive = yield from CLIENTS[self.kind](self.name, self.size, folder)
        yield Progress(self.kind, f"unpacking {archive.name}")
        return self.unpack(archive, wanted)


def _holds(folder: Path, file: OfficialFile) -> bool:
    return (folder / file.name).is_file() or (folder / f"{file.name}.gz").is_file()


def _read(folder: Path, file: OfficialFile) -> bytes:
    plain, packed = folder / file.name, folder / f"{file.name}.gz"
    if plain.is_file():
        return plain.read_bytes()
    if packed.is_file():
        return gunzipped(packed, file.size)
    raise WorkError(f"{folder} lacks {file.name}")
