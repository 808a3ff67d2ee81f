"""Build the status report of a run: connected clients, current visit, progress and cost of each client."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from splitrelay.deploy.client_usage import Usage, sum_usage
from splitrelay.network.connection_handler import EVALUATOR_NUMBER

if TYPE_CHECKING:
    from splitrelay.deploy.server_program import ServerProgram


class Pace:
    """How fast rounds go by, since this program has been at them."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._from: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def look(self, r: int, *, afresh: bool) -> None:
        """A row is there; `afresh` where it was there before this program."""
        self._last = (r, time.monotonic())
        if afresh or self._from is None:
            self._from = self._last

    def left(self, R: int) -> float | None:
        """Seconds until round R, if they go on like this; None before there is anything to judge by."""
        (r, then), (start, began) = self._last, self._from or (0, 0.0)
        if r <= start:
            return None
        return max((then - began) / (r - start) * (R - r) - (time.monotonic() - then), 0.0) if r < R else 0.0


def report(program: ServerProgram) -> str:
    """The status of a run, as JSON."""
    return json.dumps(status(program))


def status(program: ServerProgram) -> dict[str, Any]:
    """Who is here, whose turn it is, how far the run is, what it has sent, how long it will take."""
    spec, last, here = program.spec, program.last, program.hub.get_clients()
    remote = getattr(program, "remote", None)
    turns = {m: lease.visit.r for m, lease in dict(remote.scheduler.leases if remote else {}).items()}
    up, down = program.hub.count_frame_bytes()
    bills = program.ledger.bills()
    left = program.pace.left(spec.R)
    now, after = time.monotonic(), program.config.policy.stalled_after
    waits = [wait.document(now, after) for wait in program.list_waits(now)]
    return {
        "spec": spec.hash,
        "algorithm": spec.algorithm,
        "route": spec.route,
        "phase": program.phase,
        "round": last.get("round", 0),
        "rounds": spec.R,
        "turn": sorted(turns),
        "awaited": program.missing_clients if program.phase == "waiting" else 0,
        "stalled": any(wait["stalled"] for wait in waits),
        "waiting_for": waits,
        "evaluator": EVALUATOR_NUMBER in here if program.config.judge else None,
        "clients": [
            {"client": m, "here": m in here, "turn": m in turns, "samples": program.sizes.get(m)}
            | _conduct(program, m)
            | asdict(bills.get(m, Usage()))
            for m in range(spec.partition.M)
        ],
        "test_accuracy": last.get("test_accuracy"),
        "test_loss": last.get("test_loss"),
        "train_loss": last.get("train_loss"),
        "bytes_up": last.get("bytes_up", 0),
        "bytes_down": last.get("bytes_down", 0),
        "frame_bytes_up": up,
        "frame_bytes_down": down,
        **sum_usage(bills.values()),
        "seconds": round(time.monotonic() - program.pace.began, 1),
        "seconds_left": None if left is None else round(left, 1),
    }


def _conduct(program: ServerProgram, m: int) -> dict[str, Any]:
    """Return the strikes of client m, and its quarantine if it is in one; times are in seconds from now."""
    conduct = program.quarantine.clients.get(m)
    if conduct is None:
        return {"strikes": 0, "quarantine": None}
    now, confined = time.time(), None
    if conduct.is_confined:
        probation = max(round(conduct.until - now, 1), 0.0)
        confined = {"since": round(now - conduct.since, 1), "probation_in": probation, "why": conduct.why}
    return {"strikes": conduct.strikes, "quarantine": confined}
