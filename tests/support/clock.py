"""A clock that a test moves forward, so that a deadline passes when the test says so and at no other time."""

import threading
import time
from types import ModuleType
from typing import Any

import pytest


class Clock:
    """Replace `time` in some modules. It runs like the real clock, plus all that `advance` has added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self._added, self._lock = 0.0, threading.Lock()
        for module in modules:
            monkeypatch.setattr(module, "time", self)

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once."""
        with self._lock:
            self._added += seconds

    def monotonic(self) -> float:
        """Return what time.monotonic would return."""
        return time.monotonic() + self._added

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
