"""Which fields of a row are results, and which were measured: clocks, sockets and memory are never twice the same."""

from __future__ import annotations

from typing import Any

MARKS = ("seconds", "socket_", "memory_")  # of fields that a comparison of runs leaves out


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what was measured."""
    return {name: value for name, value in row.items() if not any(mark in name for mark in MARKS)}
