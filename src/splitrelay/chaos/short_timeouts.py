"""Short heartbeat, silence and back-off, for rehearsals with faults."""

from __future__ import annotations

from splitrelay.network.limits import Timeouts

SHORT_TIMEOUTS = Timeouts(heartbeat=0.5, silence=4.0, first_retry=0.05, longest_retry=0.4)
