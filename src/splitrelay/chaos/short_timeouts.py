"""Shorten heartbeat, silence and back-off for rehearsals with faults; must be imported before other modules."""

from __future__ import annotations

from splitrelay.network import limits

limits.HEARTBEAT = 0.5
limits.SILENCE = 4.0
limits.BACKOFF = (0.05, 0.4)
