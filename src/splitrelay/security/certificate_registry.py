"""What an authority has issued: every certificate by its serial number, and which of them are revoked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from splitrelay.errors import UnknownName
from splitrelay.security.certificates import Peer, shown_serial
from splitrelay.structured_text import parse_json


@dataclass(frozen=True)
class Issued:
    """One certificate; if it is revoked, since when, and in which epoch of the sealing secret that was."""

    who: Peer
    revoked_at: datetime | None = None
    revoked_in: int | None = None

    def revoked(self, now: datetime, epoch: int) -> Issued:
        """The same, revoked now unless it was before."""
        return self if self.revoked_at else replace(self, revoked_at=now, revoked_in=epoch)


@dataclass(frozen=True)
class Register:
    """All that was issued, oldest first, and the number of the last revocation list."""

    consortium: str
    list_number: int = 0
    issued: tuple[Issued, ...] = ()

    def newest(self, name: str) -> Issued:
        """The last certificate under this name."""
        found = [one for one in self.issued if one.who.name == name]
        if not found:
            raise UnknownName("name", name, {one.who.name for one in self.issued})
        return found[-1]

    def holders(self, now: datetime) -> list[Issued]:
        """The last certificate of each name, where it is neither revoked nor expired."""
        last = {one.who.name: one for one in self.issued}
        return [one for one in last.values() if not one.revoked_at and one.who.not_after > now]

    def revoked(self) -> list[Issued]:
        """Every certificate that is out."""
        return [one for one in self.issued if one.revoked_at]

    def least_epoch(self) -> int:
        """The first epoch whose secret no revoked certificate came with."""
        return 1 + max((one.revoked_in or 0 for one in self.revoked() if one.who.opens_halves), default=0)

    def adding(self, who: Peer) -> Register:
        """The same with one certificate more."""
        return replace(self, issued=(*self.issued, Issued(who)))

    def revoking(self, name: str, now: datetime, epoch: int) -> Register:
        """The same with every certificate of this name revoked, also those that a renewal has replaced."""
        return replace(
            self, issued=tuple(one.revoked(now, epoch) if one.who.name == name else one for one in self.issued)
        )

    def listing(self) -> Register:
        """The same, about to sign its next revocation list."""
        return replace(self, list_number=self.list_number + 1)


def register_file(register: Register) -> bytes:
    """The register as the authority keeps it."""
    rows = [
        {**written(one.who), "revoked_at": _text(one.revoked_at), "revoked_in": one.revoked_in}
        for one in register.issued
    ]
    content = {"consortium": register.consortium, "list_number": register.list_number, "issued": rows}
    return json.dumps(content, indent=2).encode() + b"\n"


def parsed_register(content: bytes) -> Register:
    """The register from its file."""
    read = parse_json(content)
    return Register(str(read["consortium"]), int(read["list_number"]), tuple(_issued(row) for row in read["issued"]))


def written(who: Peer) -> dict[str, Any]:
    """A certificate's holder as JSON."""
    times = {"not_before": _text(who.not_before), "not_after": _text(who.not_after)}
    return {**asdict(who), "serial": shown_serial(who.serial), **times}


def note_of(who: Peer) -> bytes:
    """identity.json: what the certificate says, for people and scripts."""
    return json.dumps(written(who), indent=2).encode() + b"\n"


def _issued(row: dict[str, Any]) -> Issued:
    at, epoch = row.pop("revoked_at"), row.pop("revoked_in")
    lists = {name: tuple(row[name]) for name in ("roles", "hosts")}
    times = {name: datetime.fromisoformat(row[name]) for name in ("not_before", "not_after")}
    who = Peer(**{**row, **lists, **times, "serial": int(row["serial"], 16)})
    return Issued(who, datetime.fromisoformat(at) if at else None, epoch)


def _text(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
