"""Build messages that are wrong in one way, and peers that a server must refuse."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from splitrelay.deploy.handshake import compute_digest, read_spec
from splitrelay.network.client_session import Connection
from splitrelay.network.codec import VERSION, decode, encode
from splitrelay.network.grpc_channel import ServerRefused, open_channel
from splitrelay.network.messages import Accept, Floats, Hello, Lease, Reply, Step, Terms
from splitrelay.randomness import Purpose, rng

INVALID_LABEL = 2**31 - 1  # larger than the number of classes of any run


def _insert_nan(step: Step) -> Step:
    h = step.h.copy()
    h.flat[0] = np.nan
    return replace(step, h=h)


def _change_label(step: Step) -> Step:
    labels = step.labels.copy()
    labels[-1] = INVALID_LABEL
    return replace(step, labels=labels)


def _change_shape(step: Step) -> Step:
    shorter: Floats = step.h[..., :-1].copy()
    return replace(step, h=shorter)


STEP_CHANGES: dict[str, Callable[[Step], Step]] = {
    "nan": _insert_nan,
    "labels": _change_label,
    "shape": _change_shape,
    "leap": lambda step: replace(step, k=step.k + 1),
    "wrong-fence": lambda step: replace(step, fence=step.fence + 10**6),
}


def change_step(kind: str, frame: bytes) -> bytes:
    """Return the frame of a step, changed as the kind of fault says, with a correct checksum."""
    step = decode(frame)
    assert isinstance(step, Step)  # these kinds happen at a step
    return encode(STEP_CHANGES[kind](step))


def build_next_step(frame: bytes) -> bytes:
    """Return the frame of the step after the given one, with the same data."""
    return change_step("leap", frame)


def flip_bit(frame: bytes) -> bytes:
    """Return the frame with one bit flipped, behind the header: only the checksum finds it."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


def falsify_lease(kind: str, frame: bytes) -> bytes:
    """Return the lease of a malicious server, made from a correct one."""
    lease = decode(frame)
    assert isinstance(lease, Lease)  # these kinds happen at a lease
    changes: dict[str, dict[str, Any]] = {
        "false-steps": {"K": lease.K + 999},
        "false-rate": {"eta": 2 * lease.eta},
        "false-round": {"r": 10**6},
    }
    return encode(replace(lease, **changes[kind]))


def falsify_terms(frame: bytes) -> bytes:
    """Return terms that name another K, with a digest that fits."""
    terms = decode(frame)
    assert isinstance(terms, Terms)
    spec = read_spec(terms)
    other = spec.model_copy(update={"K": spec.K + 999})
    changed_terms = replace(terms, spec=other.to_toml())
    return encode(replace(changed_terms, spec_hash=compute_digest(changed_terms, other)))


def falsify_gradient(frame: bytes) -> bytes:
    """Return a reply whose gradient has one sample too many."""
    reply = decode(frame)
    assert isinstance(reply, Reply)
    return encode(replace(reply, gradient=np.concatenate([reply.gradient, reply.gradient[:1]])))


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
    """Greet the server as client m with a certificate of another client; return whether it refuses permanently."""
    return _is_refused(address, credentials, m, None)


def is_spec_refused(address: str, credentials: Any, m: int, spec_hash: str, n: int) -> bool:
    """Join as client m with n samples and another spec; return whether the server refuses permanently."""
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
