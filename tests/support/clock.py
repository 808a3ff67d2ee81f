"""A clock that a test moves forward, so that a deadline passes when the test says so and at no other time."""

import threading
import time
from types import ModuleType
from typing import Any

import pytest

from splitrelay.deploy import (
    evaluation_requests,
    fed_averaging,
    half_disputes,
    remote_clients,
    remote_evaluator,
    visit_scheduler,
)
from tests.support.bare_server import wait_until
from tests.support.deployment import LocalDeployment, watch_events

# The modules that decide how long a server waits for clients, the evaluator, the fed server and witnesses.
WAITING = (evaluation_requests, fed_averaging, half_disputes, remote_clients, remote_evaluator, visit_scheduler)


class Clock:
    """Replace `time` in some modules. It runs like the real clock, plus all that `advance` has added.

    Args:
        monkeypatch: Restores the modules after the test.
        modules: The modules; those in which a server waits, unless given.
        is_stopped: The clock does not run; only `advance` moves it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, is_stopped: bool = False) -> None:
        self._added, self._lock = 0.0, threading.Lock()
        self._stopped_at = time.monotonic() if is_stopped else None
        for module in modules or WAITING:
            monkeypatch.setattr(module, "time", self)

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once."""
        with self._lock:
            self._added += seconds

    def monotonic(self) -> float:
        """Return what time.monotonic would return."""
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) + self._added

    def expire_lease(self, stage: LocalDeployment, m: int, times: int = 1) -> None:
        """Let the lease of client m run out so many times, each time as soon as the run waits only for this client."""

        def expire() -> None:
            expired: list[object] = []
            for _ in range(times):
                wait_until(lambda: self._find_only_lease(stage, m) not in (None, *expired))
                expired.append(self._find_only_lease(stage, m))
                self.advance(stage.offer.policy.lease + 1.0)

        threading.Thread(target=expire, daemon=True).start()

    def expire_inability(self, stage: LocalDeployment, times: int = 1) -> None:
        """Let the lease of each party run out that reports for the first time that it cannot do its part yet."""

        def happened(event: str, facts: dict[str, Any]) -> None:
            if event == "unable":
                self.advance(times * stage.offer.policy.lease + 1.0)

        watch_events(stage, happened)

    @staticmethod
    def _find_only_lease(stage: LocalDeployment, m: int) -> object | None:
        leases = dict(stage.serving.remote.scheduler.leases) if hasattr(stage.serving, "remote") else {}
        return leases[m] if set(leases) == {m} else None

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
