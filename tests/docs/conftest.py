"""Fixtures of the tests of the documentation."""

from pathlib import Path

import pytest

from splitrelay.paper import budget
from tests.support.command_line import Invoke, invoke


@pytest.fixture
def splitrelay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Every test has its own empty folder, no data sets, eighty columns, no colours, and short estimates of costs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITRELAY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(budget, "PROBE", 2)
    monkeypatch.setattr(budget, "PROBED", 50)
    return invoke
