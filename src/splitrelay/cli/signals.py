"""Ctrl-C once: come to an end that can be gone on from. Twice: stop at once. A SIGTERM is a Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

from splitrelay.cli.console import note

FINISHING = "finishing this visit; once more stops at once."


@contextmanager
def stopping(words: str | None = FINISHING) -> Iterator[Event]:
    """An event that the first signal sets, with these words; the second one is a KeyboardInterrupt wherever we are."""
    stop = Event()

    def first(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if words is not None:
            note(words)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
