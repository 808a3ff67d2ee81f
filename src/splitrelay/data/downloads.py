"""The sources of data sets: folders of this machine, the original web addresses, and packages that contain them."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from splitrelay import __version__
from splitrelay.data.archives import Files, Unpack, read_gzip
from splitrelay.data.dataset_formats import OfficialFile
from splitrelay.data.download_packages import CLIENTS, Progress
from splitrelay.errors import WorkError

Fetching = Generator[Progress, None, Files]

CHUNK = 1 << 18
DEADLINE = 20.0  # seconds without an answer, at any point
HEADERS = {"User-Agent": f"splitrelay/{__version__}"}  # some hosts reject programs without a name


class Source(Protocol):
    """One source of the official files. It raises a WorkError with the reason if it fails."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    def files(self, wanted: Sequence[OfficialFile], work: Path, /) -> Fetching: ...


@dataclass(frozen=True)
class Folder:
    """A folder with the official files: plain, each as .gz, or together in their archive.

    Attributes:
        inside: Subfolders in which other programs store the files.
        archive: The name of the archive.
        unpack: Reads the files from the archive.
    """

    path: Path
    inside: tuple[str, ...] = ("",)
    archive: str = ""
    unpack: Unpack | None = None
    kind: str = "folder"

    @property
    def label(self) -> str:
        return f"the folder {self.path}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Read the files and report one progress message."""
        yield Progress(self.kind, f"reading {self.path}")
        return self.read(wanted)

    def read(self, wanted: Sequence[OfficialFile]) -> Files:
        """Read and check the files."""
        if not self.path.is_dir():
            raise WorkError(f"there is no folder {self.path}")
        place = self.find(wanted)
        if place is None:
            raise WorkError(f"{self.path} holds no {wanted[0].name}")
        if self.unpack is not None and place.is_file():
            payloads = self.unpack(place, wanted)
        else:
            payloads = {file.name: _read_plain_or_gzip(place, file) for file in wanted}
        return {file.name: file.check(payloads[file.name]) for file in wanted}

    def find(self, wanted: Sequence[OfficialFile]) -> Path | None:
        """Return the folder that contains the first file, or the archive, or None."""
        first = wanted[0].name
        for folder in (self.path / name for name in self.inside):
            if (folder / first).is_file() or (folder / f"{first}.gz").is_file():
                return folder
        archive = self.path / self.archive
        return archive if self.archive and archive.is_file() else None


@dataclass(frozen=True)
class SystemFolder:
    """The folder `datasets/NAME` in the shared data of the system, where packages of a distribution put data sets."""

    name: str
    kind: str = "system"
    label: str = "the system's folder"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Read the files from the first folder that exists."""
        shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
        folders = [Path(place) / "datasets" / self.name for place in shared.split(":") if place]
        for folder in folders:
            if folder.is_dir():
                return (yield from Folder(folder, kind=self.kind).files(wanted, work))
        raise WorkError(f"there is no {' or '.join(map(str, folders))}")


@dataclass(frozen=True)
class InstalledPackage:
    """An installed Python package that contains the files. The package is not imported."""

    package: str
    inside: str
    kind: str = "system"

    @property
    def label(self) -> str:
        return f"the installed package {self.package}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Find the package without running it, and read the files."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None or not spec.submodule_search_locations:
            raise WorkError(f"the Python package {self.package} is not installed")
        return (yield from Folder(Path(spec.submodule_search_locations[0]) / self.inside).files(wanted, work))


@dataclass(frozen=True)
class WebFiles:
    """The original addresses of files that are published one by one, each as .gz."""

    bases: tuple[str, ...]
    kind: str = "web"

    @property
    def label(self) -> str:
        return f"the original addresses ({', '.join(map(get_host, self.bases))})"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Download each file from the first address that provides it completely."""
        payloads: Files = {}
        for file in wanted:
            target = work / f"{file.name}.gz"
            reasons = []
            for base in self.bases:
                try:
                    yield from download(base + target.name, target)
                    payloads[file.name] = file.check(read_gzip(target, file.size))
                    break
                except WorkError as error:
                    reasons.append(error.what)
            else:
                raise WorkError(", ".join(reasons))
        return payloads


@dataclass(frozen=True)
class WebArchive:
    """The original addresses of one archive with all files."""

    addresses: tuple[str, ...]
    unpack: Unpack
    kind: str = "web"

    @property
    def label(self) -> str:
        return f"the original addresses ({', '.join(map(get_host, self.addresses))})"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Download all files from the first address that provides the archive completely."""
        reasons = []
        for address in self.addresses:
            target = work / address.rpartition("/")[2]
            try:
                yield from download(address, target)
                yield Progress(self.kind, f"unpacking {target.name}")
                payloads = self.unpack(target, wanted)
                return {file.name: file.check(payloads[file.name]) for file in wanted}
            except WorkError as error:
                reasons.append(error.what)
        raise WorkError(", ".join(reasons))


@dataclass(frozen=True)
class Package:
    """A package of npm, apt or pip that contains the files."""

    kind: str
    name: str
    size: int
    unpack: Unpack

    @property
    def label(self) -> str:
        return f"the {self.kind} package {self.name}"

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> Fetching:
        """Download the package with its own client, and unpack it."""
        folder = work / self.kind
        folder.mkdir()
        archive = yield from CLIENTS[self.kind](self.name, self.size, folder)
        yield Progress(self.kind, f"unpacking {archive.name}")
        return self.unpack(archive, wanted)


def download(address: str, target: Path, deadline: float = DEADLINE) -> Generator[Progress, None, None]:
    """Download an address to a file and yield the progress. Raise WorkError if the download is not complete."""
    try:
        request = urllib.request.Request(address, headers=HEADERS)
        with urllib.request.urlopen(request, timeout=deadline) as answer, target.open("wb") as file:
            announced = answer.headers.get("Content-Length")
            total = int(announced) if announced and announced.isdigit() else None
            done = 0
            while chunk := _read_chunk(answer, target.name, done):
                file.write(chunk)  # an OSError of the disk is not an error of the address; do not convert it
                done += len(chunk)
                yield Progress("web", target.name, done, total)
            if total is not None and done != total:
                raise WorkError(f"the download of {target.name} was cut after {done} of {total} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        raise WorkError(f"{get_host(address)} answers HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise WorkError(f"{get_host(address)} cannot be reached ({_shorten(error.reason)})") from None
    except http.client.HTTPException as error:
        raise WorkError(f"{get_host(address)} gives an invalid answer ({_shorten(error)})") from None
    except TimeoutError:
        raise WorkError(f"{get_host(address)} does not answer within {deadline:g} s") from None


def get_host(address: str) -> str:
    """Return the host of an address for messages."""
    return urlsplit(address).netloc or "the local disk"


def _read_chunk(answer: http.client.HTTPResponse, name: str, done: int) -> bytes:
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise WorkError(f"the download of {name} was cut after {done} bytes ({_shorten(error)})") from None


def _shorten(reason: object) -> str:
    text = getattr(reason, "strerror", None) or reason  # without the number of the error
    return " ".join(str(text).split())[:120] or type(reason).__name__


def _read_plain_or_gzip(folder: Path, file: OfficialFile) -> bytes:
    plain, packed = folder / file.name, folder / f"{file.name}.gz"
    if plain.is_file():
        return plain.read_bytes()
    if packed.is_file():
        return read_gzip(packed, file.size)
    raise WorkError(f"{folder} lacks {file.name}")
