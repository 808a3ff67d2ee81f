"""Build messages that are wrong in one way, from correct ones: of a faulty client, or of a malicious server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from splitrelay.deploy.handshake import compute_digest, read_spec
from splitrelay.network.codec import decode, encode
from splitrelay.network.messages import Floats, Lease, Reply, Step, Terms

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
    """Return the frame with one bit in its middle flipped."""
    body = bytearray(frame)
    body[len(body) // 2] ^= 1
    return bytes(body)


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
