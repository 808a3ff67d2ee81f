"""Control messages to protobuf and back; every length and range is checked before a value is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from google.protobuf.message import DecodeError

from splitrelay.errors import WorkError, escape_unprintable
from splitrelay.network import control_pb2, limits
from splitrelay.network.messages import CONTROL, Message

PB: Any = control_pb2
BY_EVENT = {kind.__name__.lower(): kind for kind in CONTROL}
SHA256 = 32  # bytes


class BadMessage(WorkError):
    """What a peer sent is not what the protocol knows; the peer is refused."""


def to_bytes(message: Message) -> bytes:
    """A control message, as it travels."""
    kind = type(message)
    content = {field.name: getattr(message, field.name) for field in fields(message)}  # type: ignore[arg-type]
    wrapped: bytes = PB.Control(**{message.event: getattr(PB, kind.__name__)(**content)}).SerializeToString()
    if len(wrapped) > limits.CONTROL:
        raise WorkError(f"{message.event} is too long to be sent", value=len(wrapped), limit=f"<= {limits.CONTROL}")
    return wrapped


def from_bytes(payload: bytes | memoryview) -> Message:
    """The message in these bytes; BadMessage where there is none, or one outside its limits."""
    if len(payload) > limits.CONTROL:
        raise BadMessage("control message too long", value=len(payload), limit=f"<= {limits.CONTROL} bytes")
    try:
        wrapped = PB.Control.FromString(bytes(payload))
    except (DecodeError, UnicodeDecodeError):
        raise BadMessage("control message cannot be read") from None
    event = wrapped.WhichOneof("message")
    if event is None:
        raise BadMessage("control message is empty")
    content = getattr(wrapped, event)
    values = {field.name: _plain(getattr(content, field.name)) for field in fields(BY_EVENT[event])}  # type: ignore[arg-type]
    _check(event, values)
    for name in SHOWN & values.keys():
        values[name] = escape_unprintable(values[name])[: limits.TEXT]
    return BY_EVENT[event](**values)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | bytes) else tuple(value)


# Texts that reach terminals and logs lose their control characters. The others are parsed or compared as they are.
SHOWN = {"why", "note", "software", "engine", "cpu", "address", "heir", "spec_hash"}
LIMITS: dict[str, Callable[[Any], bool]] = {
    "why": lambda v: len(v) <= limits.TEXT,
    "note": lambda v: len(v) <= limits.TEXT,
    "software": lambda v: len(v) <= limits.TEXT,
    "engine": lambda v: len(v) <= limits.TEXT,
    "cpu": lambda v: len(v) <= limits.TEXT,
    "recipe": lambda v: len(v) <= limits.CONTROL,
    "address": lambda v: len(v) <= limits.TEXT,
    "heir": lambda v: len(v) <= limits.TEXT,
    "spec_hash": lambda v: len(v) <= limits.TEXT,
    "client": lambda v: v <= limits.CLIENTS + 1,  # two more than clients: the evaluator and the fed server
    "classes": lambda v: len(v) <= limits.CLASSES and all(len(name) <= limits.TEXT for name in v),
    "shape": lambda v: len(v) == 3 and all(1 <= side <= 2**16 for side in v) and math.prod(v) <= limits.PIXELS,
    "mean": lambda v: all(abs(number) <= limits.LEVEL for number in v),  # NaN is not
    "std": lambda v: all(1 / limits.LEVEL <= number <= limits.LEVEL for number in v),
    "peak": lambda v: 1 <= v <= 255,
    "pad": lambda v: v <= limits.PADDING,
    "n": lambda v: v <= limits.SAMPLES,
    "K": lambda v: 1 <= v <= limits.STEPS,
    "losses": lambda v: len(v) <= limits.STEPS,
    "bytes": lambda v: v <= limits.HALF,
    "top_bytes": lambda v: v <= limits.HALF,
    "sha256": lambda v: len(v) in (0, SHA256),
    "salt": lambda v: len(v) in (0, SHA256),
    "data_digest": lambda v: len(v) in (0, SHA256),
    "heartbeat": lambda v: limits.SHORTEST_HEARTBEAT <= v <= 3600,
    "waiting": lambda v: 0 <= v <= limits.SECONDS,  # NaN is neither
    "computing": lambda v: 0 <= v <= limits.SECONDS,
    "memory": lambda v: v <= limits.MEMORY,
}


def _check(event: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in LIMITS and not LIMITS[name](value):
            shown = value if isinstance(value, int | float) else f"{len(value)} long"
            raise BadMessage(f"{name} of {event} is outside its limits", value=shown)
