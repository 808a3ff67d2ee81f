"""A visit that is asked for, as the server keeps it, and its patience with whoever is to make it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from splitrelay.algorithms.base import Visit
from splitrelay.deploy.turns import Turn
from splitrelay.wire import limits


@dataclass(frozen=True)
class Policy:
    """What happens when a client stays away: `wait` for it, `retry` a few leases and then stop, or `skip` its visit."""

    away: str = "wait"
    lease: float = limits.LEASE  # seconds that a client may be away before its visit is taken back
    step: float = limits.STEP  # seconds that a client may take for one step
    retries: int = 3  # also the failures of one visit after which the run stops, or the visit is skipped


@dataclass
class Pending:
    """A visit that is asked for: at first nobody has it, then it is leased."""

    index: int
    visit: Visit[Any]
    since: float  # when the client was last missed
    turn: Turn | None = None
    fence: int = 0
    link: int | None = None
    heard: float = 0.0
    tries: int = 0
    failures: list[str] = field(default_factory=list)
