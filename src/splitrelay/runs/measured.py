"""Which fields of a row are results, and which were measured: clocks, sockets and memory are never twice the same."""

from __future__ import annotations

from typing import Any

MARKS = ("seconds", "socket_", "memory_")  # of fields that a comparison of runs leaves out
TOLD = ("skipped", "skipped_visits")  # which visits a server skipped: a simulation has no such fields


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what was measured."""
    kept = {name: value for name, value in row.items() if name not in TOLD}
    return {name: value for name, value in kept.items() if not any(mark in name for mark in MARKS)}
