"""The registry of an authority: all certificates that it has issued, and which of them are revoked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from splitrelay.errors import UnknownName
from splitrelay.security.certificates import Peer, format_serial
from splitrelay.structured_text import parse_json


@dataclass(frozen=True)
class IssuedCertificate:
    """One certificate of the registry.

    Attributes:
        peer: Its holder.
        revoked_at: When it was revoked, or None.
        revoked_in: The key epoch in which it was revoked, or None.
    """

    peer: Peer
    revoked_at: datetime | None = None
    revoked_in: int | None = None


@dataclass(frozen=True)
class CertificateRegistry:
    """All issued certificates, oldest first, and the number of the last revocation list.

    The registry is immutable. Methods that change something return a new registry.
    """

    consortium: str
    list_number: int = 0
    certificates: tuple[IssuedCertificate, ...] = ()

    def get_newest(self, name: str) -> IssuedCertificate:
        """Return the last certificate with this name.

        Raises:
            UnknownName: No certificate has this name.
        """
        matches = [one for one in self.certificates if one.peer.name == name]
        if not matches:
            raise UnknownName("name", name, {one.peer.name for one in self.certificates})
        return matches[-1]

    def list_valid(self, now: datetime) -> list[Peer]:
        """Return the holder of the last certificate of each name, if it is neither revoked nor expired."""
        last = {one.peer.name: one for one in self.certificates}
        return [one.peer for one in last.values() if not one.revoked_at and one.peer.not_after > now]

    def list_revoked(self) -> list[IssuedCertificate]:
        """Return all revoked certificates."""
        return [one for one in self.certificates if one.revoked_at]

    def get_min_epoch(self) -> int:
        """Return the first key epoch whose secret no revoked holder has received."""
        epochs = (one.revoked_in or 0 for one in self.list_revoked() if one.peer.can_open_halves)
        return 1 + max(epochs, default=0)

    def add(self, peer: Peer) -> CertificateRegistry:
        """Add a certificate."""
        return replace(self, certificates=(*self.certificates, IssuedCertificate(peer)))

    def revoke(self, name: str, now: datetime, epoch: int) -> CertificateRegistry:
        """Revoke all certificates with this name, including those that were replaced by a renewal."""
        certificates = tuple(
            replace(one, revoked_at=now, revoked_in=epoch) if one.peer.name == name and not one.revoked_at else one
            for one in self.certificates
        )
        return replace(self, certificates=certificates)

    def increment_list_number(self) -> CertificateRegistry:
        """Advance to the number of the next revocation list."""
        return replace(self, list_number=self.list_number + 1)


def format_registry(registry: CertificateRegistry) -> bytes:
    """Return the content of the registry file."""
    rows = [
        {**_encode_peer(one.peer), "revoked_at": _format_time(one.revoked_at), "revoked_in": one.revoked_in}
        for one in registry.certificates
    ]
    content = {"consortium": registry.consortium, "list_number": registry.list_number, "issued": rows}
    return json.dumps(content, indent=2).encode() + b"\n"


def parse_registry(content: bytes) -> CertificateRegistry:
    """Parse the registry file."""
    table = parse_json(content)
    certificates = tuple(_decode_certificate(row) for row in table["issued"])
    return CertificateRegistry(str(table["consortium"]), int(table["list_number"]), certificates)


def format_identity(peer: Peer) -> bytes:
    """Return the content of identity.json, which repeats the certificate for people and scripts."""
    return json.dumps(_encode_peer(peer), indent=2).encode() + b"\n"


def _encode_peer(peer: Peer) -> dict[str, Any]:
    times = {"not_before": _format_time(peer.not_before), "not_after": _format_time(peer.not_after)}
    return {**asdict(peer), "serial": format_serial(peer.serial), **times}


def _decode_certificate(row: dict[str, Any]) -> IssuedCertificate:
    at, epoch = row.pop("revoked_at"), row.pop("revoked_in")
    lists = {name: tuple(row[name]) for name in ("roles", "hosts")}
    times = {name: datetime.fromisoformat(row[name]) for name in ("not_before", "not_after")}
    peer = Peer(**{**row, **lists, **times, "serial": int(row["serial"], 16)})
    return IssuedCertificate(peer, datetime.fromisoformat(at) if at else None, epoch)


def _format_time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
