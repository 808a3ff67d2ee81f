"""Whose keys lie in a folder, for people: also what is expired, revoked or open to others is shown, not refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.security.authority import open_authority
from splitrelay.security.certificate_registry import Issued, Register
from splitrelay.security.certificates import Peer, instant, peer_identity, shown_serial
from splitrelay.security.key_files import CA, CA_KEY, CERTIFICATE, REVOKED, SEALING, read_public
from splitrelay.security.revocation import read_list
from splitrelay.security.sealing_keys import load_epochs


@dataclass(frozen=True)
class Holder:
    """One certificate as `keys show` shows it."""

    who: Peer
    state: str  # valid, expired, revoked, replaced, not valid yet
    days_left: int
    epochs: tuple[int, ...] = ()  # of the sealing secret in its folder
    revoked: bool | None = None  # None: there is no list to ask

    @property
    def serial(self) -> str:
        """The serial number in hexadecimal."""
        return shown_serial(self.who.serial)

    @property
    def roles(self) -> str:
        """All it may be."""
        return ", ".join(self.who.roles)


def holders(folder: Path, now: datetime | None = None) -> list[Holder]:
    """All that an authority has issued, or the one holder of a folder."""
    if (folder / CA_KEY).exists():
        authority = open_authority(folder)
        register = authority.register()
        return [_issued(one, register, instant(now)) for one in register.issued]
    if not (folder / CERTIFICATE).exists():
        hint = "Make keys: splitrelay keys authority, then splitrelay keys issue NAME."
        raise InputError(f"no keys in {folder}", hint=hint)
    return [_alone(folder, instant(now))]


def _issued(one: Issued, register: Register, now: datetime) -> Holder:
    revoked = one.revoked_at is not None
    replaced = register.newest(one.who.name) != one
    return Holder(one.who, _state(one.who, now, revoked, replaced), one.who.days_left(now), revoked=revoked)


def _alone(folder: Path, now: datetime) -> Holder:
    who = peer_identity(read_public(folder / CERTIFICATE))
    revoked = None
    if (folder / REVOKED).exists():
        revoked = who.serial in read_list(folder / REVOKED, read_public(folder / CA)).serials
    epochs = tuple(sorted(load_epochs(folder).secrets)) if (folder / SEALING).exists() else ()
    return Holder(who, _state(who, now, bool(revoked), False), who.days_left(now), epochs, revoked)


def _state(who: Peer, now: datetime, revoked: bool, replaced: bool) -> str:
    if revoked:
        return "revoked"
    if now > who.not_after:
        return "expired"
    if now < who.not_before:
        return "not valid yet"
    return "replaced" if replaced else "valid"
