"""Clients of a deployed run: who took part, with which software, processor and data, and which visits were skipped.

`clients.json` in a run directory is made from the rows and from what clients told when they arrived. Text that comes
from other hosts is made printable before it is kept, because it ends on a terminal or in a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.structured_text import parse_json

CLIENTS = "clients.json"
DISTINCT = 8  # versions, or CPU levels, of one client that are kept
PREFIX = 12  # hexadecimal digits of a digest that are shown
TEXT = 120  # characters of a reason, or of a version

Skip = tuple[int, int, int]  # round, client, occurrence


@dataclass(frozen=True)
class ClientRecord:
    """What is known of one client, or of the evaluator or the fed server."""

    client: int
    samples: int = 0
    digest: str = ""  # of its data, salted; see docs/security.md
    software: tuple[str, ...] = ()  # every version that was seen, in this order
    cpu: tuple[str, ...] = ()
    arrivals: int = 0
    first_arrival: str = ""  # by the server's clock
    last_arrival: str = ""
    visits: int = 0  # visits that were made
    skipped: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # why visits were skipped, and how often

    def add_arrival(self, samples: int, digest: str, software: str, cpu: str, now: str) -> ClientRecord:
        """Return the record after one more arrival; software and CPU levels of earlier ones stay."""
        return replace(
            self,
            samples=samples,
            digest=digest,
            software=_add(self.software, software),
            cpu=_add(self.cpu, cpu),
            arrivals=self.arrivals + 1,
            first_arrival=self.first_arrival or now,
            last_arrival=now,
        )


@dataclass(frozen=True)
class RunClients:
    """The content of `clients.json`."""

    round: int  # up to which visits are counted
    server: Mapping[str, str]  # its software and its CPU level
    clients: tuple[ClientRecord, ...]
    others: tuple[ClientRecord, ...] = ()  # the evaluator and the fed server, where they are programs of their own

    @property
    def skipped(self) -> int:
        """Visits that were skipped, of all clients."""
        return sum(one.skipped for one in self.clients)

    def find_absent(self, M: int) -> frozenset[int]:
        """Return the clients, of M, that were left out when the run began: they have no data and were never asked."""
        present = {one.client for one in self.clients if one.samples or one.visits or one.skipped}
        return frozenset(range(M)) - present

    def unlike(self) -> dict[str, tuple[str, str]]:
        """Return clients with other software or another CPU level than the server: (theirs, the server's)."""
        found = {}
        for name in ("software", "cpu"):
            here = self.server.get(name, "")
            others = {one.client: [value for value in getattr(one, name) if value != here] for one in self.clients}
            for m, values in others.items():
                if values:
                    found[f"{name} of client {m}"] = (", ".join(values), here)
        return found


def make_printable(text: str, limit: int = TEXT) -> str:
    """Return the text without control characters, on one line, of at most `limit` characters."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def parse_record(client: int, content: Any) -> ClientRecord:
    """Return the record in a JSON value; ValueError where it is none. A number alone is a count of samples."""
    if isinstance(content, int):
        content = {"samples": content}
    kinds = {"samples": int, "arrivals": int, "visits": int, "skipped": int, "software": list, "cpu": list}
    kinds |= {"digest": str, "first_arrival": str, "last_arrival": str, "reasons": dict, "client": int}
    if not isinstance(content, dict) or any(not isinstance(v, kinds.get(k, ())) for k, v in content.items()):
        raise ValueError
    lists = {name: tuple(map(str, content[name])) for name in ("software", "cpu") if name in content}
    return ClientRecord(**{**content, **lists, "client": client})


def read_clients(run: Path) -> RunClients | None:
    """Return the clients of a deployed run; None where the directory has no such record.

    Raises InputError where the file is damaged.
    """
    file = run / CLIENTS
    if not has_record(file):
        return None
    try:
        found = parse_json(read_record(file))
        groups = [tuple(parse_record(one["client"], one) for one in found[name]) for name in ("clients", "others")]
        return RunClients(int(found["round"]), dict(found["server"]), *groups)
    except (ValueError, KeyError, TypeError):
        hint = "Remove it; serve writes it again when the run goes on."
        raise InputError(f"{file} is damaged", hint=hint) from None


def format_clients(found: RunClients) -> str:
    """Return the content of `clients.json`."""
    content = {field.name: getattr(found, field.name) for field in fields(found)}
    for name in ("clients", "others"):
        content[name] = [asdict(one) for one in content[name]]
    return json.dumps(content, indent=1) + "\n"


def find_skips(rows: Iterable[Mapping[str, Any]]) -> frozenset[Skip]:
    """Return the visits (round, client, occurrence) that the rows of a deployed run call skipped."""
    return frozenset((r, m, i) for row in rows for r, m, i, *_ in row.get("skipped_visits", ()))


def load_skips(run: Path, rows: Iterable[Mapping[str, Any]]) -> frozenset[Skip]:
    """Return the skipped visits of a run; a deployed run of an earlier version has them only in its events."""
    known, events = list(rows), run / "relay" / "events.jsonl"
    if any("skipped" in row for row in known) or not events.exists():
        return find_skips(known)
    found = set()
    for line in events.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            event = parse_json(line)
            if event["event"] == "skipped":
                found.add((int(event["round"]), int(event["client"]), int(event["occurrence"])))
    return frozenset(found)


def _add(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    clean = make_printable(value)
    return values if clean in values or len(values) >= DISTINCT else (*values, clean)
