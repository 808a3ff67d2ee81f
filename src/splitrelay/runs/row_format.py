"""The rows of a run as they lie on the disk, looked through: what is no row is named by its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitrelay.runs.damage import damaged
from splitrelay.runs.run_directory import RunDirectory

Row = dict[str, Any]
NEEDED = ("round", "test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds")


def rows_of(path: Path) -> list[Row]:
    """All rows of the run in a directory; none where it has not begun. A half-written last line does not count."""
    rows = RunDirectory(path).seen()
    for number, row in enumerate(rows, start=1):
        why = _wrong(row, rows[number - 2] if number > 1 else None)
        if why:
            raise damaged(path, f", line {number}: {why}")
    return rows


def _wrong(row: Any, before: Row | None) -> str:
    """Why this is no row; empty where it is one."""
    if not isinstance(row, dict):
        return "this is no row of a run"
    missing = [name for name in NEEDED if name not in row]
    if missing:
        return f"it has no {missing[0]}"
    if not isinstance(row["round"], int):
        return f"its round is no whole number but {row['round']!r}"
    if before is not None and row["round"] <= before["round"]:
        return f"round {row['round']} comes after round {before['round']}"
    return ""
