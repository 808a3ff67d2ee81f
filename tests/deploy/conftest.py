"""Fixtures of all tests with servers and clients."""

import pytest

from splitrelay.deploy import evaluation_requests, remote_clients, server_program
from splitrelay.network import limits


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between two attempts, and between two checks of a deadline. No deadline is shortened."""
    monkeypatch.setattr(limits, "BACKOFF", (0.02, 0.1))
    for module in (remote_clients, evaluation_requests, server_program):
        monkeypatch.setattr(module, "TICK", 0.05)
