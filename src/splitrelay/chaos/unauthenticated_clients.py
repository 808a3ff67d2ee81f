"""Peers that must be refused: bytes that are not TLS, and valid certificates with a wrong greeting."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from splitrelay.network.client_session import Connection, ServerRefused
from splitrelay.network.codec import VERSION
from splitrelay.network.grpc_channel import open_channel
from splitrelay.network.messages import Accept, Hello, Terms
from splitrelay.randomness import Purpose, rng

CONNECTIONS = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TIMEOUT = 10.0  # seconds for an answer


def send_junk(host: str, port: int, seed: int) -> int:
    """Open connections, send random bytes (half of them after an HTTP/2 preface), and close them.

    Returns:
        The number of connections that were accepted.
    """
    generator, accepted = rng(seed, Purpose.INSTANCES, port), 0
    for number in range(CONNECTIONS):
        with suppress(OSError), socket.create_connection((host, port), timeout=1) as connection:
            accepted += 1
            junk = generator.bytes(int(generator.integers(1, 5000)))
            connection.sendall((PREFACE if number % 2 else b"") + junk)
    return accepted


def is_name_refused(address: str, credentials: Any, m: int) -> bool:
    """Greet the server as client m with a certificate of another client; return whether it refuses for good."""
    return _is_refused(address, credentials, m, None)


def is_spec_refused(address: str, credentials: Any, m: int, spec_hash: str, n: int) -> bool:
    """Join as client m with n samples and another spec; return whether the server refuses for good."""
    return _is_refused(address, credentials, m, spec_hash, n)


def _is_refused(address: str, credentials: Any, m: int, spec_hash: str | None, n: int = 1) -> bool:
    connection = Connection(open_channel(address, credentials))
    try:
        connection.send(Hello(VERSION, m, "a stranger"))
        terms = connection.receive(TIMEOUT)
        if spec_hash is not None and isinstance(terms, Terms):
            connection.send(Accept(spec_hash, terms.engine, terms.cpu, n))
            connection.receive(TIMEOUT)
    except ServerRefused as error:
        return error.final
    finally:
        connection.close()
    return False
