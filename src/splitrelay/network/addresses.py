"""HOST:PORT, as people write it; gRPC takes a port past the last one for another, and a missing one for 443."""

from __future__ import annotations

from splitrelay.errors import InputError

PORTS = 65_535


def refuse_no_address(address: str, *, listen: bool = False) -> None:
    """HOST:PORT, with a port that there is; 0 only to listen, on any that is free."""
    host, colon, port = address.rpartition(":")
    if not host or not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise InputError("not an address", value=address, limit="HOST:PORT", hint="Write [::1]:7443 for IPv6.")
    first = 0 if listen else 1
    if not (port.isascii() and port.isdigit() and first <= int(port) <= PORTS):
        raise InputError(f"port of {address}", value=port, limit=f"{first} to {PORTS}")
