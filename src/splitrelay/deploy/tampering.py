"""Messages that are wrong in one way each, made from a true one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from splitrelay.wire.frames import decode, encode
from splitrelay.wire.messages import Floats, Step

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


def flipped(frame: bytes) -> bytes:
    """One bit in the middle is another."""
    body = bytearray(frame)
    body[len(body) // 2] ^= 1
    return bytes(body)


def one_more(frame: bytes) -> bytes:
    """The step after this one, with the same data."""
    return changed("leap", frame)
