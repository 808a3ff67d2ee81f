"""The codec: a message is a 64-byte header and a buffer, little-endian. The README of the format is docs/protocol.md.

header   magic 4s, version kind dtype axes u8, fence u64, k count u32, shape 4 u32, length u64, shape 2 u32 (sides 5
         and 6), checksum u64: XXH3 of all bytes but its own
step     h, then `count` labels as int32 (real numbers and several labels: float32), then norm2 as float64
reply    gradient, then `count` squared norms as float64, then the loss as float64
finish   norm2 as float64
chunk    bytes; predict and output: one array; control: protobuf
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from xxhash import xxh3_64

from splitrelay import __version__
from splitrelay.errors import InputError, WorkError, escape_unprintable
from splitrelay.network import control_pb2, limits
from splitrelay.network.messages import (
    CONTROL_MESSAGES,
    Chunk,
    Finish,
    Floats,
    Hello,
    Message,
    Output,
    Predict,
    Refuse,
    Reply,
    Step,
)

MAGIC, VERSION = b"SRLY", 3
HEADER = struct.Struct("<4s4BQII4IQ2IQ")  # 64 bytes
COVERED = HEADER.size - 8  # bytes of the header before the checksum
DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
NAMES = {code: dtype.name for code, dtype in DTYPES.items()}  # asking a dtype takes longer than all the rest
CODES = {dtype: code for code, dtype in DTYPES.items()}
KINDS: dict[type[Message], int] = {Step: 1, Reply: 2, Finish: 3, Chunk: 4, Predict: 5, Output: 6}
CONTROL = 7
NUMBER, LABEL, ANY_LABEL, REAL_LABEL = np.dtype("<f8"), np.dtype("<i4"), np.dtype("<u4"), np.dtype("<f4")
LAST, CHECKSUM = struct.Struct("<d"), struct.Struct("<Q")
SMALL = 8192  # numbers that BLAS adds up in one thread
NO_SIDES = (0,) * limits.AXES
PB: Any = control_pb2
BY_EVENT = {kind.event: kind for kind in CONTROL_MESSAGES}
SHA256 = 32  # bytes


class BadMessage(WorkError):
    """What a peer sent is not what the protocol knows; the peer is refused."""


class OutsideLimits(BadMessage):
    """A value of a control message is outside its limits. If the terms have such a value, no client can join."""

    exit_code = InputError.exit_code


class OtherVersion(BadMessage):
    """The peer speaks another version of the protocol; another attempt does not change that."""

    exit_code = InputError.exit_code

    def __init__(self, version: int, said: Message | None = None) -> None:
        super().__init__(
            "the peer speaks another version of the protocol",
            value=f"version {version}{_describe_software(said)}",
            limit=f"version {VERSION} (splitrelay {__version__} here)",
            hint=f"Install the same splitrelay on both hosts: {__version__} there, or the peer's version here.",
        )
        self.version = version
        self.said = said  # the message, if it can be read all the same


def _describe_software(said: Message | None) -> str:
    """What the peer says of its own software, if anything."""
    if isinstance(said, Hello) and said.software:
        return f" ({said.software})"
    return f" ({said.why})" if isinstance(said, Refuse) else ""


@dataclass(frozen=True)
class LabelForm:
    """The labels of one sample in a step: `width` numbers of 4 bytes each, int32 or float32.

    Attributes:
        width: The numbers of one sample, or None for one number without an axis of its own.
        is_real: Whether they are float32 instead of int32.
        least: The smallest integer that is allowed beside 0 and above; tokens that do not count have a negative one.
    """

    width: int | None = None
    is_real: bool = False
    least: int = 0


@dataclass(frozen=True)
class Bounds:
    """What the receiver expects of buffers; whatever is outside is refused before memory is taken for it."""

    batch: int = limits.BATCH
    h: tuple[int, ...] | None = None  # of one sample
    out: int | None = None  # outputs of one sample
    dtype: str | None = None
    classes: int = 2**31 - 1
    labels: LabelForm = LabelForm()
    norms: int = limits.NORMS
    look: int = limits.BATCH  # samples of one slice of a test set


ANY = Bounds()


class Header(NamedTuple):
    """The fields of a message's 64-byte header."""

    kind: int
    dtype: int
    axes: int
    fence: int
    k: int
    count: int  # type: ignore[assignment]  # of tuple: nobody counts headers
    shape: tuple[int, ...]
    length: int
    checksum: int


def encode(message: Message) -> bytes:
    """The message as it travels."""
    if isinstance(message, Step):
        dtype = REAL_LABEL if message.labels.dtype.kind == "f" else LABEL
        tail = message.labels.astype(dtype, copy=False).tobytes() + LAST.pack(message.norm2)
        return _build_frame(1, message.fence, message.k, message.labels.size, message.h, tail)
    if isinstance(message, Reply):
        tail = struct.pack(f"<{len(message.norms)}dd", *message.norms, message.loss)
        return _build_frame(2, message.fence, message.k, len(message.norms), message.gradient, tail)
    if isinstance(message, Finish):
        return _build_frame(3, message.fence, message.k, 0, None, LAST.pack(message.norm2))
    if isinstance(message, Chunk):
        return _build_frame(4, message.fence, message.k, 0, None, message.data)
    if isinstance(message, Predict):
        return _build_frame(5, message.fence, message.k, 0, message.h, b"")
    if isinstance(message, Output):
        return _build_frame(6, message.fence, message.k, 0, message.out, b"")
    return _build_frame(CONTROL, message.fence, 0, 0, None, encode_control(message))


def decode(frame: bytes, bounds: Bounds = ANY) -> Message:
    """The message in a frame; BadMessage, with the reason, where it is not one that was expected."""
    header = read_header(frame)
    payload = memoryview(frame)[HEADER.size :]
    if compute_checksum(frame[:COVERED], payload) != header.checksum:
        raise BadMessage("a message does not match its checksum")
    if header.kind not in READERS:
        raise BadMessage("unknown kind of message", value=header.kind, limit=f"1 to {CONTROL}")
    return READERS[header.kind](header, payload, bounds)


def read_header(frame: bytes) -> Header:
    """The header, checked against the length of the frame."""
    if not HEADER.size <= len(frame) <= limits.MESSAGE:
        raise BadMessage("length of a message", value=len(frame), limit=f"{HEADER.size} to {limits.MESSAGE} bytes")
    magic, version, kind, dtype, axes, fence, k, count, a, b, c, d, length, e, f, found = HEADER.unpack_from(frame)
    shape = (a, b, c, d, e, f)
    if magic != MAGIC:
        raise BadMessage("not a message of this protocol", value=repr(magic), limit=repr(MAGIC))
    if version != VERSION:
        raise OtherVersion(version, _read_other_version(frame))
    if length != len(frame) - HEADER.size:
        raise BadMessage("a message was cut short", value=len(frame) - HEADER.size, limit=f"{length} bytes")
    if axes > limits.AXES or any(shape[axes:]):
        raise BadMessage("shape of a message", value=shape, limit=f"at most {limits.AXES} axes, the rest 0")
    return Header(kind, dtype, axes, fence, k, count, shape[:axes], length, found)


def rewrite_version(frame: bytes, version: int) -> bytes:
    """Return the frame as a program with another version of the protocol reads it: only the version differs.

    Header and control messages have had the same layout since version 2, so that a refusal can be read by all.
    """
    head = frame[:4] + bytes([version]) + frame[5:COVERED]
    body = memoryview(frame)[HEADER.size :]
    return b"".join((head, CHECKSUM.pack(compute_checksum(head, body)), body))


def _read_other_version(frame: bytes) -> Message | None:
    """Return the control message in a frame of another version; None where it cannot be read."""
    body = memoryview(frame)[HEADER.size :]
    if frame[5] != CONTROL or CHECKSUM.pack(compute_checksum(frame[:COVERED], body)) != frame[COVERED : HEADER.size]:
        return None
    try:
        return decode_control(body)
    except BadMessage:
        return None


def _build_frame(kind: int, fence: int, k: int, count: int, array: Floats | None, tail: bytes) -> bytes:
    body: bytes | memoryview
    if array is None:
        code, body, shape, length = 0, b"", (), len(tail)
    else:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        code, body, shape, length = CODES[little.dtype], little.data, array.shape, little.nbytes + len(tail)
    a, b, c, d, e, f = shape + NO_SIDES[len(shape) :]
    head = HEADER.pack(MAGIC, VERSION, kind, code, len(shape), fence, k, count, a, b, c, d, length, e, f, 0)[:COVERED]
    return b"".join((head, CHECKSUM.pack(compute_checksum(head, body, tail)), body, tail))


def compute_checksum(head: bytes, *rest: bytes | memoryview) -> int:
    """Of a header up to its checksum, and of all that follows it. TLS checks the same; damage in memory it does not."""
    digest = xxh3_64(head)
    for part in rest:
        digest.update(part)
    return digest.intdigest()


def _read_array(
    header: Header, payload: memoryview, bounds: Bounds, sample: tuple[int, ...] | None, tail: int
) -> Floats:
    """The array at the head of the buffer: a view, read-only. `tail` bytes must follow it."""
    dtype = DTYPES.get(header.dtype)
    if dtype is None or bounds.dtype not in (None, NAMES[header.dtype]):
        raise BadMessage("dtype of a buffer", value=header.dtype, limit=bounds.dtype or "float32 or float64")
    if header.axes < 2 or 0 in header.shape or header.shape[0] > bounds.batch:  # other sides may be huge beside a 0
        raise BadMessage("samples of a buffer", value=header.shape, limit=f"1 to {bounds.batch}")
    if sample is not None and header.shape[1:] != sample:
        raise BadMessage("shape of a sample", value=header.shape[1:], limit=sample)
    numbers = math.prod(header.shape)
    if numbers * dtype.itemsize + tail != len(payload):
        raise BadMessage("a buffer does not fill its shape", value=len(payload), limit=numbers * dtype.itemsize + tail)
    array: Floats = np.frombuffer(payload, dtype, numbers).reshape(header.shape)
    if not is_finite_array(array):
        raise BadMessage("a buffer holds NaN or infinity", hint="Lower eta, or set clip.")
    return array


def is_finite_array(array: Floats) -> bool:
    """Numbers whose squares have a finite sum are finite; where it overflows each is asked."""
    small = array.size <= SMALL
    return (small and math.isfinite(np.vdot(array, array))) or bool(np.isfinite(array).all())


def _read_norm2(payload: memoryview) -> float:
    """The last eight bytes."""
    value: float = LAST.unpack_from(payload, len(payload) - LAST.size)[0]
    if not math.isfinite(value) or value < 0:
        raise BadMessage("a squared norm is negative or not a number", value=value)
    return value


def _read_step(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    width = bounds.labels.width or 1
    if not header.shape or header.count != header.shape[0] * width:
        raise BadMessage("labels of a step", value=header.count, limit=f"{width} for each sample")
    tail = header.count * LABEL.itemsize + NUMBER.itemsize
    h = _read_array(header, payload, bounds, bounds.h, tail)
    labels = _read_labels(np.frombuffer(payload, LABEL, header.count, h.nbytes), bounds)
    return Step(header.fence, header.k, h, labels, _read_norm2(payload))


def _read_labels(labels: Any, bounds: Bounds) -> Any:
    form = bounds.labels
    if form.is_real:
        labels = labels.view(REAL_LABEL)
        if not np.isfinite(labels).all():
            raise BadMessage("labels of a step are NaN or infinite")
    else:
        counted = labels[labels != form.least] if form.least < 0 else labels
        if np.maximum.reduce(counted.view(ANY_LABEL), initial=0) >= bounds.classes:  # a negative one is large there
            span = f"{labels.min()} to {labels.max()}"
            raise BadMessage("labels out of range", value=span, limit=f"< {bounds.classes}")
    return labels if form.width is None else labels.reshape(-1, form.width)


def _read_reply(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    if header.count > bounds.norms:
        raise BadMessage("norms of a reply", value=header.count, limit=f"<= {bounds.norms}")
    gradient = _read_array(header, payload, bounds, bounds.h, (header.count + 1) * NUMBER.itemsize)
    *norms, loss = struct.unpack_from(f"<{header.count + 1}d", payload, gradient.nbytes)
    if not all(square >= 0 for square in norms):  # NaN is not
        raise BadMessage("a squared norm is negative or not a number", limit=">= 0")
    return Reply(header.fence, header.k, gradient, tuple(norms), loss)


def _read_finish(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    if len(payload) != NUMBER.itemsize:
        raise BadMessage("length of a finish", value=len(payload), limit=NUMBER.itemsize)
    return Finish(header.fence, header.k, _read_norm2(payload))


def _read_chunk(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    if not 1 <= len(payload) <= limits.CHUNK:
        raise BadMessage("length of a chunk", value=len(payload), limit=f"1 to {limits.CHUNK}")
    return Chunk(header.fence, header.k, bytes(payload))


def _read_predict(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    return Predict(
        header.fence, header.k, _read_array(header, payload, replace(bounds, batch=bounds.look), bounds.h, 0)
    )


def _read_output(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    sample = None if bounds.out is None else (bounds.out,)
    return Output(header.fence, header.k, _read_array(header, payload, bounds, sample, 0))


def _read_control(header: Header, payload: memoryview, bounds: Bounds) -> Message:
    message = decode_control(payload)
    if message.fence != header.fence:
        raise BadMessage("a control message under another fence", value=header.fence, limit=message.fence)
    return message


Reader = Callable[[Header, memoryview, Bounds], Message]
READERS: dict[int, Reader] = {
    1: _read_step, 2: _read_reply, 3: _read_finish, 4: _read_chunk, 5: _read_predict, 6: _read_output,
    CONTROL: _read_control,
}  # fmt: skip


def encode_control(message: Message) -> bytes:
    """A control message, as it travels."""
    content = {field.name: getattr(message, field.name) for field in fields(message)}  # type: ignore[arg-type]
    wrapped: bytes = PB.Control(**{message.event: content}).SerializeToString()
    if len(wrapped) > limits.CONTROL:
        raise WorkError(f"{message.event} is too long to be sent", value=len(wrapped), limit=f"<= {limits.CONTROL}")
    return wrapped


def decode_control(payload: bytes | memoryview) -> Message:
    """The message in these bytes; BadMessage where there is none, or one outside its limits."""
    if len(payload) > limits.CONTROL:
        raise OutsideLimits("control message too long", value=len(payload), limit=f"<= {limits.CONTROL} bytes")
    try:
        wrapped = PB.Control.FromString(bytes(payload))
    except (DecodeError, UnicodeDecodeError):
        raise BadMessage("control message cannot be read") from None
    event = wrapped.WhichOneof("message")
    if event is None:
        raise BadMessage("control message is empty")
    content = getattr(wrapped, event)
    values = {field.name: _convert_value(getattr(content, field.name)) for field in fields(BY_EVENT[event])}  # type: ignore[arg-type]
    _check(event, values)
    for name in SHOWN & values.keys():
        values[name] = escape_unprintable(values[name])[: limits.TEXT]
    return BY_EVENT[event](**values)


def _convert_value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | bytes) else tuple(value)


# Texts that reach terminals and logs lose their control characters. The others are parsed or compared as they are.
SHOWN = {"why", "note", "software", "engine", "cpu", "address", "heir", "spec_hash"}
LIMITS: dict[str, Callable[[Any], bool]] = {
    "why": lambda v: len(v) <= limits.TEXT,
    "note": lambda v: len(v) <= limits.TEXT,
    "software": lambda v: len(v) <= limits.TEXT,
    "engine": lambda v: len(v) <= limits.TEXT,
    "cpu": lambda v: len(v) <= limits.TEXT,
    "samples": lambda v: len(v) <= limits.CONTROL,
    "metrics": lambda v: len(v) <= limits.METRICS,
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
            raise OutsideLimits(f"{name} of {event} is outside its limits", value=shown)
