"""Handle Ctrl-C and SIGTERM: the first one stops after the current visit, the second one stops at once."""

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
    """Yield an event that the first signal sets. The second signal raises KeyboardInterrupt.

    Args:
        words: The note that is printed at the first signal, if any.
    """
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
