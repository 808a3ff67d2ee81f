"""A program that keeps a core from falling asleep: python vigil.py, with a page of memory as 3 and a pipe as 0.

A core that sleeps for half a millisecond wakes up late and computes slowly for a while. This one has the lowest
priority there is, so whoever has something to do does it first. It needs nothing but Python, and ends with its parent.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress

WORDS = struct.Struct("qq")  # until when, by the monotonic clock in ns; whether the program sleeps


def keep(page: mmap.mmap, pipe: int) -> None:
    """Turn round and round until then; sleep until told of another time."""
    while True:
        while time.monotonic_ns() < WORDS.unpack_from(page)[0]:
            pass
        struct.pack_into("q", page, 8, 1)
        if not os.read(pipe, 1 << 16):
            return
        struct.pack_into("q", page, 8, 0)


if __name__ == "__main__":
    with suppress(OSError):  # who may not give way does not stand in the way
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        keep(mmap.mmap(3, mmap.PAGESIZE), 0)
