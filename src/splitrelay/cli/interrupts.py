"""Ctrl-C once: stop after the visit that is running. Twice: stop at once. A SIGTERM is a Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

from splitrelay.cli.console import note


@contextmanager
def stopping() -> Iterator[Event]:
    """An event that the first signal sets; the second one is a KeyboardInterrupt wherever the program is."""
    stop = Event()

    def first(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        note("finishing this visit; once more stops at once.")

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
