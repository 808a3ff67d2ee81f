"""Does a message come out as it went in, and is everything else refused before anything is made of it?"""

import dataclasses
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitrelay.engine import base
from splitrelay.network import control_pb2, limits
from splitrelay.network.codec import (
    CHECKSUM,
    COVERED,
    HEADER,
    SMALL,
    VERSION,
    BadMessage,
    Bounds,
    LabelForm,
    OutsideLimits,
    compute_checksum,
    decode,
    encode,
)
from splitrelay.network.messages import (
    BUFFER_MESSAGES,
    CONTROL_MESSAGES,
    Bye,
    Chunk,
    Finish,
    Hello,
    Lease,
    Message,
    Output,
    Predict,
    Reply,
    Step,
    Terms,
)
from splitrelay.network.tensor_transfer import Assembly, compute_sha256, pack_vectors, split_into_chunks, unpack_vectors
from tests.support.error_fields import expect_error

PROTO = Path(str(control_pb2.__file__)).with_name("control.proto")
H = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
STEP = Step(9, 4, H, np.array([1, 0], np.int32), 2.5)
BOUNDS = Bounds(batch=2, h=(3, 2, 2), out=10, dtype="float32", classes=2, norms=2)


def same(one: Message, other: Message) -> bool:
    fields = dataclasses.fields(one)  # type: ignore[arg-type]
    return type(one) is type(other) and all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields
    )


@pytest.mark.parametrize(
    "message",
    [
        STEP,
        Reply(9, 4, H, (0.5, 1.5), 0.25),
        Finish(9, 5, 3.5),
        Chunk(9, 0, b"abc"),
        Predict(9, 0, H),
        Predict(9, 0, H.reshape(2, 3, 1, 2, 2)),
        Predict(9, 0, H.reshape(2, 3, 1, 1, 2, 2)),
        Output(9, 0, np.ones((2, 10), np.float32)),
        Hello(1, 3, "me"),
        Lease(9, 1, 2, 0, 3, 5, 0.1, sha256=b"x" * 32, bytes=12),
        Terms("[a]", "h", "e", "c", (1, 8, 8), ("0", "1"), (0.5,), (0.25,), 16, heartbeat=5.0),
        Bye("done"),
    ],
    ids=lambda message: message.event,
)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    sample = message.h.shape[1:] if isinstance(message, Predict) else BOUNDS.h
    assert same(decode(encode(message), dataclasses.replace(BOUNDS, h=sample)), message)


def test_float64_keeps_its_bits() -> None:
    h = np.array([[1 / 3, 2 / 3]])
    message = decode(encode(Step(1, 0, h, np.zeros(1, np.int32), 0.0)))
    assert isinstance(message, Step) and message.h.tobytes() == h.tobytes()


def test_a_step_takes_the_bytes_that_the_simulation_counts() -> None:
    up = base.HEADER + H.nbytes + base.LABEL * 2 + base.NORM
    down = base.HEADER + H.nbytes + base.NORM * 2 + base.LOSS
    assert HEADER.size == base.HEADER
    assert len(encode(STEP)) == up
    assert len(encode(Reply(9, 4, H, (0.5, 1.5), 0.25))) == down
    assert len(encode(Finish(9, 5, 3.5))) == base.HEADER + base.NORM


def changed(frame: bytes, offset: int, form: str, value: int) -> bytes:
    """The frame with one field of its header rewritten, under a checksum that fits."""
    body = bytearray(frame)
    struct.pack_into(form, body, offset, value)
    CHECKSUM.pack_into(body, COVERED, compute_checksum(bytes(body[:COVERED]), bytes(body[HEADER.size :])))
    return bytes(body)


# Offsets: kind 5, dtype 6, axes 7, fence 8, k 16, count 20, shape 24
@pytest.mark.parametrize(
    ("frame", "fields"),
    [
        (b"", {"value": 0, "limit": f"64 to {limits.MESSAGE}"}),
        (encode(STEP)[:63], {"value": 63, "limit": f"64 to {limits.MESSAGE}"}),
        (encode(STEP)[:-1], {"value": 111, "limit": "112 bytes"}),
        (encode(STEP) + b"x", {"value": 113, "limit": "112 bytes"}),
        (b"HTTP" + encode(STEP)[4:], {"value": "HTTP", "limit": "SRLY"}),
        (encode(STEP)[:-1] + b"\xff", {"what": "checksum"}),
        (encode(STEP)[:16] + b"\xff" + encode(STEP)[17:], {"what": "checksum"}),
        (changed(encode(STEP), 5, "<B", 99), {"value": 99, "limit": "1 to 7"}),
        (changed(encode(STEP), 6, "<B", 7), {"what": "dtype", "value": 7, "limit": "float32"}),
        (changed(encode(STEP), 7, "<B", 7), {"what": "shape", "limit": "6 axes"}),
        (changed(encode(STEP), 7, "<B", 1), {"what": "shape", "value": (2, 3, 2, 2, 0, 0), "limit": "6 axes"}),
        (changed(encode(STEP), 48, "<I", 1), {"what": "shape", "value": (2, 3, 2, 2, 1, 0), "limit": "6 axes"}),
        (changed(encode(STEP), 20, "<I", 3), {"what": "labels", "value": 3}),
        (changed(encode(STEP), 24, "<I", 2**32 - 1), {"what": "labels", "value": 2}),
        (
            changed(changed(encode(STEP), 24, "<I", 2**31), 20, "<I", 2**31),
            {"value": (2**31, 3, 2, 2), "limit": "1 to 2"},
        ),
        (changed(encode(STEP), 28, "<I", 2**31), {"value": (2**31, 2, 2), "limit": (3, 2, 2)}),
        (changed(encode(STEP), 28, "<I", 0), {"value": (2, 0, 2, 2), "limit": "1 to 2"}),
        (
            encode(Step(9, 4, H.astype(np.float64), np.zeros(2, np.int32), 0.0)),
            {"what": "dtype", "value": 2, "limit": "float32"},
        ),
        (
            encode(Step(9, 4, np.float32(np.nan) * H, np.zeros(2, np.int32), 0.0)),
            {"what": "NaN", "hint": ("eta", "clip")},
        ),
        (encode(Step(9, 4, H, np.array([0, 2], np.int32), 0.0)), {"what": "labels", "value": "0 to 2", "limit": "< 2"}),
        (
            encode(Step(9, 4, H, np.array([0, -1], np.int32), 0.0)),
            {"what": "labels", "value": "-1 to 0", "limit": "< 2"},
        ),
        (encode(Step(9, 4, H, np.zeros(2, np.int32), -1.0)), {"what": "norm", "value": -1.0}),
        (encode(Finish(9, 4, float("inf"))), {"what": "norm", "value": float("inf")}),
        (encode(Reply(9, 4, H, (1.0, 2.0, 3.0), 0.0)), {"what": ("norms", "reply"), "value": 3, "limit": "<= 2"}),
        (encode(Chunk(9, 0, b"x" * (limits.CHUNK + 1))), {"value": limits.CHUNK + 1, "limit": f"1 to {limits.CHUNK}"}),
        (
            encode(Hello(1, 3, "x" * (limits.TEXT + 1))),
            {"kind": OutsideLimits, "what": ("software", "hello"), "value": str(limits.TEXT + 1)},
        ),
        (
            encode(Hello(1, limits.CLIENTS + 2)),
            {"kind": OutsideLimits, "what": ("client", "hello"), "value": limits.CLIENTS + 2},
        ),
        (encode(Lease(9, 1, 2, 0, 3, 0, 0.1)), {"kind": OutsideLimits, "what": ("K", "lease"), "value": 0}),
        (
            encode(Lease(9, 1, 2, 0, 3, 1, 0.1, sha256=b"x")),
            {"kind": OutsideLimits, "what": ("sha256", "lease"), "value": "1"},
        ),
        (changed(encode(Lease(9, 1, 2, 0, 3, 5, 0.1)), 8, "<Q", 10), {"what": "fence", "value": 10, "limit": 9}),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(frame: bytes, fields: dict[str, Any]) -> None:
    expected = dict(fields)
    with expect_error(expected.pop("kind", BadMessage), **expected):
        decode(frame, BOUNDS)


@given(st.binary(max_size=300), st.integers(0, 7))
def test_whatever_comes_is_a_message_or_refused(payload: bytes, kind: int) -> None:
    frame = bytearray(HEADER.pack(b"SRLY", VERSION, kind, 1, 2, 0, 0, 1, 1, 2, 0, 0, len(payload), 0, 0, 0) + payload)
    for candidate in (bytes(frame), changed(bytes(frame), 5, "<B", kind), payload):
        try:
            decode(candidate)
        except BadMessage:
            continue


@given(st.data())
def test_a_damaged_frame_never_passes(data: st.DataObject) -> None:
    frame = bytearray(encode(STEP))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadMessage):
        decode(bytes(frame), BOUNDS)


def test_a_half_travels_in_chunks() -> None:
    x = np.arange(700_000, dtype=np.float32)
    blob = pack_vectors(x=x)
    assembly = Assembly(len(blob))
    pieces = [
        chunk for chunk in (decode(encode(chunk)) for chunk in split_into_chunks(3, blob)) if isinstance(chunk, Chunk)
    ]
    assert len(pieces) == 11
    for chunk in pieces:
        assembly.add(chunk)
    assert np.array_equal(
        unpack_vectors(assembly.blob(len(blob), compute_sha256(blob)), {"x": len(x)}, "float32")["x"], x
    )


def refused_half(make: Callable[[], Any]) -> str:
    with pytest.raises(BadMessage) as caught:
        make()
    return str(caught.value)


def test_a_half_that_is_not_as_announced_is_refused() -> None:
    short = Assembly(10)
    short.add(Chunk(1, 0, b"12345"))
    assert "whole" in refused_half(lambda: short.blob(10, compute_sha256(b"12345")))
    assert "whole" in refused_half(lambda: short.blob(5, compute_sha256(b"54321")))
    assert "out of order" in refused_half(lambda: short.add(Chunk(1, 2, b"1")))
    assert "too long" in refused_half(lambda: short.add(Chunk(1, 1, b"123456")))


def test_a_half_with_the_wrong_vectors_is_refused() -> None:
    x = np.ones(4, np.float32)
    assert "no safetensors" in refused_half(lambda: unpack_vectors(b"junk", {"x": 4}, "float32"))
    assert "vectors" in refused_half(lambda: unpack_vectors(pack_vectors(x=x, y=x), {"x": 4}, "float32"))
    assert "x of a half" in refused_half(lambda: unpack_vectors(pack_vectors(x=x), {"x": 5}, "float32"))
    assert "x of a half" in refused_half(
        lambda: unpack_vectors(pack_vectors(x=x.astype(np.float64)), {"x": 4}, "float32")
    )
    assert "NaN" in refused_half(lambda: unpack_vectors(pack_vectors(x=x * np.float32(np.nan)), {"x": 4}, "float32"))


def declared() -> dict[str, dict[str, int]]:
    """{message: {field: number}} as control.proto has them."""
    bodies = re.findall(r"^message (\w+) \{(.*?)\}$", PROTO.read_text(), re.M | re.S)
    return {name: {field: int(n) for field, n in re.findall(r"(\w+) = (\d+);", body)} for name, body in bodies}


def test_the_stubs_are_those_of_the_proto_file() -> None:
    made = control_pb2.DESCRIPTOR.message_types_by_name
    assert declared() == {name: {f.name: f.number for f in made[name].fields} for name in made}


def test_every_control_message_has_the_fields_of_its_stub() -> None:
    stubs = control_pb2.Control.DESCRIPTOR.fields_by_name
    for kind in CONTROL_MESSAGES:
        ours = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        assert sorted(ours) == sorted(field.name for field in stubs[kind.event].message_type.fields)
    assert not {kind.event for kind in BUFFER_MESSAGES} & set(stubs)


@pytest.mark.parametrize("samples", [2, 2 * SMALL])
def test_large_numbers_are_numbers_and_one_that_is_none_is_found_among_many(samples: int) -> None:
    h = np.full((samples, 2), 1e30, np.float32)  # its squares are not
    step = Step(1, 0, h, np.zeros(samples, np.int32), 0.0)
    found = decode(encode(step))
    assert isinstance(found, Step) and found.h.tobytes() == h.tobytes()
    h[-1, -1] = np.nan
    with expect_error(BadMessage, what="NaN"):
        decode(encode(step))


FORMS = [
    (LabelForm(), np.array([0, 3], np.int32)),
    (LabelForm(None, is_real=True), np.array([0.5, -2.0], np.float32)),
    (LabelForm(2, is_real=True), np.array([[0, 1], [1, 1]], np.float32)),
    (LabelForm(3, least=-100), np.array([[0, 3, -100], [1, -100, -100]], np.int32)),
]


@pytest.mark.parametrize("form, labels", FORMS)
def test_labels_of_every_form_survive(form: LabelForm, labels: np.ndarray) -> None:
    message = decode(encode(Step(1, 0, H, labels, 0.0)), Bounds(classes=4, labels=form))
    assert isinstance(message, Step)
    assert message.labels.dtype == labels.dtype
    assert np.array_equal(message.labels, labels)


@pytest.mark.parametrize(
    "form, labels",
    [
        (LabelForm(), np.array([0, 4], np.int32)),
        (LabelForm(), np.array([0, -1], np.int32)),
        (LabelForm(), np.array([[0, 1], [0, 1]], np.int32)),
        (LabelForm(None, is_real=True), np.array([0.5, np.nan], np.float32)),
        (LabelForm(2, is_real=True), np.array([0.5, 1.0], np.float32)),
        (LabelForm(1, least=-100), np.array([[0], [-99]], np.int32)),
        (LabelForm(1, least=-100), np.array([[0], [4]], np.int32)),
    ],
)
def test_labels_of_another_form_are_refused(form: LabelForm, labels: np.ndarray) -> None:
    with pytest.raises(BadMessage):
        decode(encode(Step(1, 0, H, labels, 0.0)), Bounds(classes=4, labels=form))
