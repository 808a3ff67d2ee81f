"""Count the messages of each client, and the bytes that the kernel counted on its TCP connections.

TLS, HTTP/2, handshakes, heartbeats and whatever had to be said twice are in them. They are read where the connection
ends, at the server; a connection that breaks off takes at most its last second with it.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

FOLDER = Path("/proc/self/fd")  # of Linux; elsewhere nothing is measured
COUNTERS = struct.Struct("<128xQ64xQ")  # struct tcp_info up to tcpi_bytes_sent: what was received, what was sent


@dataclass(frozen=True)
class SocketTraffic:
    """So far, over all links of a client; the bytes are None where the system does not count them."""

    messages: int = 0
    up: int | None = None
    down: int | None = None

    def __add__(self, other: SocketTraffic) -> SocketTraffic:
        return SocketTraffic(
            self.messages + other.messages, _add_optional(self.up, other.up), _add_optional(self.down, other.down)
        )


class CountedConnection(Protocol):
    """A link, as far as it is metered."""

    m: int
    peer: str  # as gRPC writes it
    messages: int
    descriptor: int  # of its socket; -1 until it is found
    bytes: tuple[int, int] | None  # from the client, to the client


class SocketCounters:
    """The links of a server, looked at now and then."""

    def __init__(self) -> None:
        self._past: dict[int, SocketTraffic] = {}  # links that are closed, by client

    def look(self, links: Iterable[CountedConnection]) -> None:
        """Read all counters; links whose socket is not known yet are looked up in one pass."""
        known = list(links)
        found = find_sockets() if any(link.descriptor < 0 for link in known) else {}
        for link in known:
            if link.descriptor < 0:
                link.descriptor = found.get(_parse_peer(link.peer), -1)
            _read_counters(link)

    def parted(self, link: CountedConnection) -> None:
        """The link is over; what it carried stays in the account."""
        _read_counters(link)
        self._past[link.m] = self._past.get(link.m, SocketTraffic()) + _get_traffic(link)

    def by_client(self, links: Iterable[CountedConnection]) -> dict[int, SocketTraffic]:
        """Every client that was here."""
        found = dict(self._past)
        for link in links:
            found[link.m] = found.get(link.m, SocketTraffic()) + _get_traffic(link)
        return {m: carried for m, carried in sorted(found.items()) if m >= 0}


def find_sockets() -> dict[str, int]:
    """The TCP connections of this process: {address of the other end: descriptor}."""
    found = {}
    with suppress(OSError):
        for entry in FOLDER.iterdir():
            peer = _get_peer(int(entry.name))
            if peer is not None:
                found[peer] = int(entry.name)
    return found


def _read_counters(link: CountedConnection) -> None:
    """The descriptor may be another connection's by now, so it is asked who is at the other end."""
    with suppress(OSError):
        if link.descriptor >= 0 and _get_peer(link.descriptor) == _parse_peer(link.peer):
            with _borrow_socket(link.descriptor) as line:
                info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, COUNTERS.size)
                link.bytes = COUNTERS.unpack(info) if len(info) == COUNTERS.size else None


@contextmanager
def _borrow_socket(descriptor: int) -> Iterator[socket.socket]:
    """Never a duplicate: while one is open the kernel goes on telling gRPC of a socket that gRPC has closed."""
    line = socket.socket(fileno=descriptor)
    try:
        yield line
    finally:
        line.detach()


def _get_peer(descriptor: int) -> str | None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with _borrow_socket(descriptor) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6) and line.type == socket.SOCK_STREAM:
                    return _format_address(*line.getpeername()[:2])
    return None


def _parse_peer(peer: str) -> str:
    """gRPC writes ipv4:10.0.0.1:555 and ipv6:%5B::1%5D:555."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _format_address(host.strip("[]"), port)


def _format_address(host: str, port: int | str) -> str:
    return f"{host.removeprefix('::ffff:')} {port}"


def _get_traffic(link: CountedConnection) -> SocketTraffic:
    return SocketTraffic(link.messages, *(link.bytes or (None, None)))


def _add_optional(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
