"""Waiting for a word that comes at once, on a core that does not fall asleep meanwhile.

Where steps follow each other within moments, waking up costs more than all that passes between two programs: a core
that slept computes slowly at first. So whoever has waited briefly several times has a program turn round and round at
the lowest priority while it waits on. On a longer line waiting costs nothing, as ever.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from splitrelay.wire import vigil

NEAR = 0.005  # seconds within which a word has come at once
OFTEN, MOST = 8, 32  # short waits after which the next one is taken to be short; and so many are remembered


class Awake:
    """One who waits, again and again."""

    def __init__(self) -> None:
        self._began = 0.0
        self._near = 0  # how often it was short, lately

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if self._near >= OFTEN:
            watch().until(self._began + NEAR)

    def __exit__(self, *_: object) -> None:
        if self._near >= OFTEN:
            watch().until(0.0)
        short = time.monotonic() - self._began < NEAR
        self._near = min(self._near + 1, MOST) if short else self._near // 2


class Watch:
    """The program that stays awake for all who wait in this one."""

    def __init__(self) -> None:
        memory = os.memfd_create("awake")
        os.ftruncate(memory, mmap.PAGESIZE)
        self._page = mmap.mmap(memory, mmap.PAGESIZE)
        ear, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)  # who does not read is not waited for
        doors = [(os.POSIX_SPAWN_DUP2, ear, 0), (os.POSIX_SPAWN_DUP2, memory, 3)]
        words = [sys.executable, "-I", "-S", str(Path(vigil.__file__))]
        self.pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=doors, setpgroup=0)
        os.close(ear)
        os.close(memory)

    def until(self, moment: float) -> None:
        """Stay awake until then, by the monotonic clock."""
        struct.pack_into("q", self._page, 0, int(1e9 * moment))
        if moment and vigil.WORDS.unpack_from(self._page)[1]:
            with suppress(OSError):  # somebody has killed or stopped it: then we sleep as everybody does
                os.write(self._pipe, b".")


class Nobody:
    """Where there is no such program."""

    def until(self, moment: float) -> None:
        """Sleep, as everybody does."""


@cache
def watch() -> Watch | Nobody:
    """One for this program, started when it is first wanted; Linux only."""
    try:
        return Watch() if sys.platform == "linux" and sys.executable else Nobody()
    except OSError:
        return Nobody()
