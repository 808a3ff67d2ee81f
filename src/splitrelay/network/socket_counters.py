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
    """Traffic of all connections of a client so far; the bytes are None if the system does not count them."""

    messages: int = 0
    up: int | None = None
    down: int | None = None

    def __add__(self, other: SocketTraffic) -> SocketTraffic:
        return SocketTraffic(
            self.messages + other.messages, _add_optional(self.up, other.up), _add_optional(self.down, other.down)
        )


class CountedConnection(Protocol):
    """A connection whose traffic is counted."""

    m: int
    peer: str  # as gRPC writes it
    messages: int
    descriptor: int  # of its socket; -1 until it is found
    bytes: tuple[int, int] | None  # from the client, to the client


class SocketCounters:
    """Count the traffic of the connections of a server."""

    def __init__(self) -> None:
        self._past: dict[int, SocketTraffic] = {}  # closed connections, by client

    def read(self, connections: Iterable[CountedConnection]) -> None:
        """Read all counters. Look up unknown sockets of connections in one pass."""
        known = list(connections)
        found = find_sockets() if any(connection.descriptor < 0 for connection in known) else {}
        for connection in known:
            if connection.descriptor < 0:
                connection.descriptor = found.get(_parse_peer(connection.peer), -1)
            _read_counters(connection)

    def add_ended(self, connection: CountedConnection) -> None:
        """Add the traffic of a connection that has ended to the total of its client."""
        _read_counters(connection)
        self._past[connection.m] = self._past.get(connection.m, SocketTraffic()) + _get_traffic(connection)

    def sum_by_client(self, connections: Iterable[CountedConnection]) -> dict[int, SocketTraffic]:
        """Every client that was here."""
        found = dict(self._past)
        for connection in connections:
            found[connection.m] = found.get(connection.m, SocketTraffic()) + _get_traffic(connection)
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


def _read_counters(connection: CountedConnection) -> None:
    """The descriptor may be another connection's by now, so it is asked who is at the other end."""
    with suppress(OSError):
        if connection.descriptor >= 0 and _get_peer(connection.descriptor) == _parse_peer(connection.peer):
            with _borrow_socket(connection.descriptor) as line:
                info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, COUNTERS.size)
                connection.bytes = COUNTERS.unpack(info) if len(info) == COUNTERS.size else None


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


def _get_traffic(connection: CountedConnection) -> SocketTraffic:
    return SocketTraffic(connection.messages, *(connection.bytes or (None, None)))


def _add_optional(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
