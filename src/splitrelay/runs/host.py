"""The machine a record was made on."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"
