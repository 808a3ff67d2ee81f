"""Messages that are wrong in one way each, made from a true one: of a client, or of a malicious server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from splitrelay.deploy.handshake import compute_digest, spec_in
from splitrelay.network.codec import decode, encode
from splitrelay.network.messages import Floats, Lease, Reply, Step, Terms

Change = Callable[[Step], Step]
BEYOND = 2**31 - 1  # a label that is no class of any run


def _nan(step: Step) -> Step:
    h = step.h.copy()
    h.flat[0] = np.nan
    return replace(step, h=h)


def _labels(step: Step) -> Step:
    labels = step.labels.copy()
    labels[-1] = BEYOND
    return replace(step, labels=labels)


def _shape(step: Step) -> Step:
    shorter: Floats = step.h[..., :-1].copy()
    return replace(step, h=shorter)


CHANGES: dict[str, Change] = {
    "nan": _nan,
    "labels": _labels,
    "shape": _shape,
    "leap": lambda step: replace(step, k=step.k + 1),
    "wrong-fence": lambda step: replace(step, fence=step.fence + 10**6),
}


def changed(kind: str, frame: bytes) -> bytes:
    """The step, wrong in the way that the kind names, under a checksum that fits."""
    step = decode(frame)
    assert isinstance(step, Step)  # these kinds happen at a step
    return encode(CHANGES[kind](step))


def falsify_lease(kind: str, frame: bytes) -> bytes:
    """Return the lease of a malicious server, made from a true one."""
    lease = decode(frame)
    assert isinstance(lease, Lease)  # these kinds happen at a lease
    changes: dict[str, dict[str, Any]] = {
        "false-steps": {"K": lease.K + 999},
        "false-rate": {"eta": 2 * lease.eta},
        "false-round": {"r": 10**6},
    }
    return encode(replace(lease, **changes[kind]))


def falsify_terms(frame: bytes) -> bytes:
    """Return terms that name another K, under a digest that fits."""
    terms = decode(frame)
    assert isinstance(terms, Terms)
    spec = spec_in(terms)
    other = spec.model_copy(update={"K": spec.K + 999})
    changed_terms = replace(terms, spec=other.to_toml())
    return encode(replace(changed_terms, spec_hash=compute_digest(changed_terms, other)))


def falsify_gradient(frame: bytes) -> bytes:
    """Return a reply whose gradient is for one sample more."""
    reply = decode(frame)
    assert isinstance(reply, Reply)
    return encode(replace(reply, gradient=np.concatenate([reply.gradient, reply.gradient[:1]])))


def flipped(frame: bytes) -> bytes:
    """One bit in the middle is another."""
    body = bytearray(frame)
    body[len(body) // 2] ^= 1
    return bytes(body)


def one_more(frame: bytes) -> bytes:
    """The step after this one, with the same data."""
    return changed("leap", frame)
