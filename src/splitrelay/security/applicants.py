"""Who asks an authority for a certificate: a name, a number and dates that can be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from splitrelay.errors import InputError, OutOfRange
from splitrelay.security.certificate_registry import Register
from splitrelay.security.certificates import NAME, Peer, host_name

DAYS, MOST_DAYS = 365, 36500


def wanted(name: str, roles: tuple[str, ...], m: int | None, hosts: Sequence[str]) -> Peer:
    """A holder to be, without serial number and dates."""
    if not NAME.fullmatch(name):
        raise InputError("a name is 1 to 63 letters, digits, '.', '_' and '-'", value=repr(name))
    if m is not None and not 0 <= m < 10**9:
        raise OutOfRange("a client's number", value=m, limit="0 <= m < 10^9")
    for host in hosts:
        host_name(host)
    return Peer(name, roles, m, tuple(hosts), "", 0, datetime.min, datetime.min)


def refuse_number(register: Register, name: str, m: int | None, now: datetime) -> None:
    """A client's number has one holder."""
    for one in register.holders(now):
        if m is not None and one.who.m == m and one.who.name != name:
            hint = f"Revoke it first: splitrelay keys revoke {one.who.name}"
            raise InputError(f"client {m} is {one.who.name} already", hint=hint)


def end_of(now: datetime, days: int | None, latest: datetime | None) -> datetime:
    """Days from now on, but never past the authority's own end."""
    if days is not None and not 1 <= days <= MOST_DAYS:
        raise OutOfRange("days", value=days, limit=f"1 <= days <= {MOST_DAYS}")
    end = now + timedelta(days=DAYS if days is None else days)
    if latest is None or end <= latest:
        return end
    if days is None and latest > now:
        return latest
    raise OutOfRange("the authority expires before that", value=f"{end:%Y-%m-%d}", limit=f"at most {latest:%Y-%m-%d}")
