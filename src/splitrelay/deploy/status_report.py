"""Build the status report of a run: connected clients, current visit, progress and cost of each client."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from splitrelay.deploy.client_usage import Usage, sum_usage
from splitrelay.deploy.server_visit import VisitLease
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.security.certificates import parse_peer

if TYPE_CHECKING:
    from splitrelay.deploy.server_program import ServerProgram

FAULT_FIELDS = ("ago", "event", "client", "round", "why")  # of an event, in the report


class Pace:
    """Measures how fast this program completes rounds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._from: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def record_row(self, r: int, *, afresh: bool) -> None:
        """Record a row; `afresh` if it was written before this program started."""
        self._last = (r, time.monotonic())
        if afresh or self._from is None:
            self._from = self._last

    def left(self, R: int) -> float | None:
        """Estimate the seconds until round R. Return None while there is too little to estimate from."""
        (r, then), (start, began) = self._last, self._from or (0, 0.0)
        if r <= start:
            return None
        return max((then - began) / (r - start) * (R - r) - (time.monotonic() - then), 0.0) if r < R else 0.0


def report(program: ServerProgram) -> str:
    """Return the status of a run as JSON."""
    return json.dumps(status(program))


def status(program: ServerProgram) -> dict[str, Any]:
    """Return the clients, the leases, the progress, the traffic and the estimated time of a run."""
    spec, last, here = program.spec, program.last, program.network.connections.get_clients()
    remote = getattr(program, "remote", None)
    leases = dict(remote.scheduler.leases if remote else {})
    turns = {m: lease.visit.r for m, lease in leases.items()}
    up, down = program.network.count_frame_bytes()
    bills = program.ledger.get_totals()
    left = program.pace.left(spec.R)
    now, after = time.monotonic(), program.config.policy.stalled_after
    contacts, certificates = (
        program.network.connections.get_last_contacts(),
        program.network.connections.get_certificates(),
    )
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
        "evaluator": EVALUATOR_NUMBER in here if program.config.has_evaluator else None,
        "clients": [
            {"client": m, "here": m in here, "turn": m in turns, "samples": program.sizes.get(m)}
            | _conduct(program, m)
            | _describe_contact(program, m, contacts.get(m), certificates.get(m))
            | asdict(bills.get(m, Usage()))
            for m in range(spec.partition.M)
        ],
        "leases": [_describe_lease(lease, now) for _, lease in sorted(leases.items())],
        "faults": [{name: fault.get(name) for name in FAULT_FIELDS} for fault in program.journal.list_faults()],
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


def _describe_lease(lease: VisitLease, now: float) -> dict[str, Any]:
    """Return a visit that was asked for; times are in seconds before now."""
    is_granted = lease.server_visit is not None
    return {
        "client": lease.visit.m,
        "round": lease.visit.r,
        "occurrence": lease.visit.i,
        "fence": lease.fence if is_granted else None,
        "since": round(now - (lease.granted_at if is_granted else lease.since), 1),
        "progress": round(now - lease.progress_ever, 1),
        "failures": len(lease.failures),
    }


def _describe_contact(
    program: ServerProgram, m: int, contact: float | None, certificate: bytes | None
) -> dict[str, Any]:
    """Return when client m last sent something, its newest software, and how long its certificate is valid."""
    record = program.records.get(m)
    return {
        "last_contact": None if contact is None else round(time.monotonic() - contact, 1),
        "software": record.software[-1] if record and record.software else None,
        "certificate_seconds": None if certificate is None else _count_seconds_left(certificate),
    }


def _count_seconds_left(certificate: bytes) -> float:
    return round((parse_peer(certificate).not_after - datetime.now(UTC)).total_seconds())


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
