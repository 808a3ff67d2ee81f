"""The server's event loop, turned by whoever has nothing else to do.

The thread that trains turns it while it waits for a word: so the word, and its answer, pass from thread to thread less
often, which costs more than all that is done with them. While that thread computes the loop stands still for a moment;
where it takes longer a stand-in turns it, so that heartbeats, handshakes and questions are answered all the same.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from splitrelay.network import limits

Result = TypeVar("Result")


class Wheel:
    """One loop, and the two threads that may turn it, never both at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._turning = threading.Lock()  # held by whoever turns it, or does what only it may do
        self._wanted = False  # whether somebody other than the stand-in asks for it
        self._waiting = 0  # which thread turns it and waits for a word; 0: none
        self._left = -math.inf  # when it was last let go
        self._over = threading.Event()
        self._stand_in = threading.Thread(target=self._standing_in, name="wire", daemon=True)

    def start(self) -> None:
        """From here on it is turned."""
        self._stand_in.start()

    @property
    def turned(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._stand_in.is_alive()

    def __enter__(self) -> None:
        """The stand-in, if it is at it, lets go, and does not come back before us."""
        self._wanted = True
        if not self._turning.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._turning.acquire()
        self._wanted = False

    def __exit__(self, *_: object) -> None:
        self._left = time.monotonic()
        self._turning.release()

    def wait(self, seconds: float | None) -> None:
        """Turn it until somebody rings, or for so long; by whoever holds it."""
        timer = None if seconds is None else self._loop.call_later(seconds, self._loop.stop)
        self._waiting = threading.get_ident()
        try:
            self._loop.run_forever()
        finally:
            self._waiting = 0
            if timer is not None:
                timer.cancel()

    @property
    def waiting(self) -> bool:
        """Whether this very thread waits for a word: what is done now, it does between two turns."""
        return self._waiting == threading.get_ident()

    def ring(self) -> None:
        """Whoever waits may look: said on the loop."""
        if self._waiting:
            self._loop.stop()

    def call(self, do: Callable[..., None], *given: Any) -> None:
        """Have this done where the loop is turned; here, with whatever it wakes, where nobody is at it."""
        if self.waiting:  # this thread is on the loop: what it has done later must not overtake this
            do(*given)
            return
        if not self._turning.acquire(blocking=False):
            self._loop.call_soon_threadsafe(do, *given)
            return
        try:
            do(*given)
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        finally:
            self._turning.release()

    def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """All of it, before anything else."""
        with self:
            return self._loop.run_until_complete(work)

    def stop(self) -> None:
        """Nobody turns it any more."""
        self._over.set()
        if self.turned:
            with self:
                pass
            self._stand_in.join()
        self._loop.close()

    def _standing_in(self) -> None:
        while not self._over.is_set():
            still = time.monotonic() - self._left
            if still > limits.STANDSTILL and not self._wanted and self._turning.acquire(blocking=False):
                try:
                    if not self._over.is_set():
                        self._loop.run_forever()
                finally:
                    self._turning.release()
            self._over.wait(limits.STANDSTILL)
