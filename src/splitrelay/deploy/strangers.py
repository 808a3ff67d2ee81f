"""Somebody who should not be here: bytes that are no TLS, no HTTP, no gRPC, or too many of them."""

from __future__ import annotations

import socket
from contextlib import suppress

from splitrelay.randomness import Purpose, rng

CALLS = 8  # connections of one visit
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def pester(port: int, seed: int) -> None:
    """Some connections: junk, half a preface, a flood, silence; then they hang up."""
    draw = rng(seed, Purpose.INSTANCES, port)
    for number in range(CALLS):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            junk = draw.bytes(int(draw.integers(1, 5000)))
            line.sendall((PREFACE if number % 2 else b"") + junk)
