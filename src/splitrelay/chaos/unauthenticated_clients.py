"""Somebody who should not be here: bytes that are no TLS, or a valid certificate and a wrong greeting."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from splitrelay.network.client_session import Link, Refused, channel
from splitrelay.network.codec import VERSION
from splitrelay.network.messages import Accept, Hello, Terms
from splitrelay.randomness import Purpose, rng

CALLS = 8  # connections of one visit
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATIENCE = 10.0  # seconds for an answer


def send_junk(host: str, port: int, seed: int) -> int:
    """Some connections: junk, half a preface, a flood, silence; then they hang up. How many were taken."""
    draw, taken = rng(seed, Purpose.INSTANCES, port), 0
    for number in range(CALLS):
        with suppress(OSError), socket.create_connection((host, port), timeout=1) as line:
            taken += 1
            junk = draw.bytes(int(draw.integers(1, 5000)))
            line.sendall((PREFACE if number % 2 else b"") + junk)
    return taken


def is_name_refused(address: str, credentials: Any, name: int) -> bool:
    """Whether the server refuses who says that it is client `name`, whatever its certificate says."""
    return _refused(address, credentials, name, None)


def is_spec_refused(address: str, credentials: Any, m: int, spec: str, n: int) -> bool:
    """Whether the server refuses client m with its n samples, which insists on another spec."""
    return _refused(address, credentials, m, spec, n)


def _refused(address: str, credentials: Any, m: int, spec: str | None, n: int = 1) -> bool:
    link = Link(channel(address, credentials))
    try:
        link.send(Hello(VERSION, m, "a stranger"))
        terms = link.receive(PATIENCE)
        if spec is not None and isinstance(terms, Terms):
            link.send(Accept(spec, terms.engine, terms.cpu, n))
            link.receive(PATIENCE)
    except Refused as error:
        return error.final
    finally:
        link.close()
    return False
