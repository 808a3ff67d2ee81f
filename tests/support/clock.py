"""A clock that a test moves forward, so that a deadline passes when the test says so and at no other time."""

import threading
import time
from types import ModuleType
from typing import Any

import pytest

from tests.support.bare_server import wait_until
from tests.support.deployment import LocalDeployment


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

    def expire_lease(self, stage: LocalDeployment, m: int, times: int = 1) -> None:
        """Let the lease of client m run out so many times, each time as soon as the run waits only for this client."""

        def expire() -> None:
            expired: list[object] = []
            for _ in range(times):
                wait_until(lambda: self._find_only_lease(stage, m) not in (None, *expired))
                expired.append(self._find_only_lease(stage, m))
                self.advance(stage.offer.policy.lease + 1.0)

        threading.Thread(target=expire, daemon=True).start()

    @staticmethod
    def _find_only_lease(stage: LocalDeployment, m: int) -> object | None:
        leases = dict(stage.serving.remote.scheduler.leases) if hasattr(stage.serving, "remote") else {}
        return leases[m] if set(leases) == {m} else None

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
