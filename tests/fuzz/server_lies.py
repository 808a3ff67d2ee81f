"""Lies of a malicious server: what it sends in the place of an honest message, or after it."""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from splitrelay.deploy.handshake import compute_digest
from splitrelay.network import limits, tensor_transfer
from splitrelay.network import messages as msg
from splitrelay.network.codec import encode
from splitrelay.network.messages import Message, Terms
from splitrelay.runs.spec import Spec
from tests.fuzz.mutations import NUMBERS, damage_frame, list_messages

if TYPE_CHECKING:
    from tests.fuzz.malicious_script import Script

WHOLE_NUMBERS = (0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
FRACTIONS = (*NUMBERS, 0.0, 1e-9, 1e9, 0.5)
TEXTS = (
    "",
    "x",
    "\x1b[2J\x07",
    "\x00",
    "[" * 20_000,
    "a=" + "[" * 20_000,
    "K = " + "9" * 5000,
    "é" * 1000,
    "[::1]:1",
    "127.0.0.1:1",
    "unix:/tmp/x",
    "dns:///nowhere.invalid:1",
    "{}",
    '{"halves": [], "steps": []}',
    '{"halves": [[0, 0, 0]], "steps": ["half", ["*", 1e400]]}',
    '{"halves": 1, "steps": {"a": 1}}',
    '{"halves": [[0, 0, 0], [0, 0, 0]], "steps": ["half", "half", "+", ["/", 0]]}',
    '{"halves": [[0, 0, 0]], "steps": ["half", ["*", ' + "9" * 400 + "]]}",
    "a." * 100_000 + "b = 1",
    '[model]\nname = "x:y"',
    "R = 1979-05-27T07:32:00Z",
    "R = inf",
    "seed = -1",
)
OTHER_SPECS: tuple[dict[str, Any], ...] = (
    {"K": 999},
    {"R": 10**6},
    {"seed": 9},
    {"S": 1},
    {"G": 3},
    {"gamma": 0.5},
    {"evaluator": 1},
    {"every": 3},
    {"model": {"name": "logistic", "cut": "flatten"}},
    {"model": {"name": "mlp", "cut": 1}},
    {"order": "fixed"},
    {"model": {"name": "os:system"}},
    {"optimiser": {"draw": "full"}},
    {"optimiser": {"batch": 10**6}},
    {"optimiser": {"eta": 1e30}},
    {"optimiser": {"clip": 1e-9}},
    {"engine": "auto"},
    {"algorithm": "minibatch-sgd"},
    {"placement": "whole", "algorithm": "fedavg"},
    {"tau": "proportional"},
    {"model": {"loss": "os:system"}},
    {"model": {"dtype": "float64"}, "engine": "reference"},
    {"data": {"name": "/etc/passwd"}},
    {"order": "replacement"},
    {"algorithm": "nobody"},
    {"order": "nobody"},
    {"weighted": True},
    {"partition": {"M": 10**9}},
)


# Other values


def change_text(text: str, draw: np.random.Generator) -> str:
    """Return another text: a hostile one, or this one with one character changed, lost or doubled."""
    if not text or draw.integers(2):
        return TEXTS[int(draw.integers(len(TEXTS)))]
    at, new = int(draw.integers(len(text))), chr(int(draw.integers(1, 300)))
    return (text[:at] + new + text[at + 1 :], text[:at], text + new, text[at:])[int(draw.integers(4))]


def change_value(value: Any, draw: np.random.Generator) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (value + 1, max(value - 1, 0), 2 * value, value + 1000)
        return (*near, *WHOLE_NUMBERS)[int(draw.integers(len(near) + len(WHOLE_NUMBERS)))]
    if isinstance(value, float):
        near_number = (2 * value, -value, float(np.nextafter(value, 9)))
        return (*near_number, *FRACTIONS)[int(draw.integers(len(near_number) + len(FRACTIONS)))]
    if isinstance(value, str):
        return change_text(value, draw)
    if isinstance(value, bytes):
        return (b"", draw.bytes(32), value[::-1], draw.bytes(31))[int(draw.integers(4))]
    if isinstance(value, tuple):
        return change_tuple(value, draw)
    return change_array(value, draw)


def change_tuple(value: tuple[Any, ...], draw: np.random.Generator) -> tuple[Any, ...]:
    """Return another tuple: an item changed, lost or doubled, or much longer."""
    if not value:
        return ((1.0,), (-1.0,), (float("nan"),))[int(draw.integers(3))]
    at, way = int(draw.integers(len(value))), int(draw.integers(6))
    if way < 3:
        return (*value[:at], change_value(value[at], draw), *value[at + 1 :])
    return (value[:at], (*value, value[at]), value * int(draw.integers(2, 200)))[way - 3]


def change_array(value: Any, draw: np.random.Generator) -> Any:
    """Return another array: other numbers, another shape, another dtype."""
    number = NUMBERS[int(draw.integers(len(NUMBERS)))]
    with np.errstate(over="ignore"):
        ways: tuple[Callable[[], Any], ...] = (
            lambda: np.full_like(value, number),
            lambda: value * np.float32(3e38),
            lambda: value[:-1],
            lambda: value[:1],
            lambda: np.concatenate([value, value]),
            lambda: np.concatenate([value] * 500),
            lambda: value.astype(np.float64),
            lambda: value.reshape(len(value), -1),
            lambda: value[:, :1],
            lambda: np.ones((1, 1), value.dtype),
            lambda: value.reshape(1, -1),
            lambda: -value,
        )
        return ways[int(draw.integers(len(ways)))]()


def change_field(message: Message, draw: np.random.Generator) -> Message:
    """Return the message with another value of one field."""
    own: Any = message
    names = [field.name for field in fields(own)]
    name = names[int(draw.integers(len(names)))]
    changed: Message = replace(own, **{name: change_value(getattr(own, name), draw)})
    return changed


def change_terms(terms: Terms, draw: np.random.Generator) -> Terms:
    """Return other terms: mostly with a digest that fits, as only a careless attacker would forget it."""
    way = int(draw.integers(4))
    if way == 0:
        lie = OTHER_SPECS[int(draw.integers(len(OTHER_SPECS)))]
        terms = replace(terms, spec=change_spec(terms.spec, lie))
    elif way == 1:
        terms = replace(terms, spec=change_text(terms.spec, draw))
    else:
        changed = change_field(terms, draw)
        assert isinstance(changed, Terms)
        terms = changed
    return fit_digest(terms) if draw.integers(5) else terms


def fit_digest(terms: Terms) -> Terms:
    """Return the terms with the digest that they have, where they have a spec."""
    if terms.spec.count(".") > 1000:
        return terms
    try:
        spec = Spec.model_validate(tomllib.loads(terms.spec))
        return replace(terms, spec_hash=compute_digest(terms, spec), engine=spec.engine)
    except (ValueError, RecursionError):
        return terms


def change_spec(text: str, changes: dict[str, Any]) -> str:
    """Return the spec with these changes, or a text that is no spec where it would not be one."""
    if text.count(".") > 1000:
        return text
    try:
        content = Spec.model_validate(tomllib.loads(text)).model_dump()
        for key, value in changes.items():
            content[key] = {**content[key], **value} if isinstance(value, dict) else value
        return Spec.model_validate(content).to_toml()
    except (ValueError, RecursionError):
        return text + "\n" + json.dumps(changes)


def change_half(half: bytes, draw: np.random.Generator) -> bytes:
    """Return another half: other numbers, other names, another header, another length."""
    number = np.float32(NUMBERS[int(draw.integers(len(NUMBERS)))])
    x = np.frombuffer(half[-4 * ((len(half) - 80) // 4) :], np.float32) if len(half) > 100 else np.ones(3, np.float32)
    header = json.dumps(
        {"x": {"dtype": DTYPES[int(draw.integers(len(DTYPES)))], "shape": [len(x)], "data_offsets": [0, x.nbytes]}}
    ).encode()
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: half[:-4] + number.tobytes(),
        lambda: half[:-4],
        lambda: b"",
        lambda: half + b"\x00",
        lambda: tensor_transfer.pack_vectors(x=np.full_like(x, number)),
        lambda: tensor_transfer.pack_vectors(x=x.astype(np.float64)),
        lambda: tensor_transfer.pack_vectors(x=x, shift=x),
        lambda: tensor_transfer.pack_vectors(x=x, shift=np.full_like(x, number)),
        lambda: tensor_transfer.pack_vectors(y=x),
        lambda: tensor_transfer.pack_vectors(x=x[:-1]),
        lambda: tensor_transfer.pack_vectors(x=x.reshape(-1, 1)),
        lambda: tensor_transfer.pack_vectors(x=x, shift=x[:-1]),
        lambda: draw.bytes(len(half)),
        lambda: damage_frame(half + header, draw),
        lambda: struct.pack("<Q", len(header)) + header + x.tobytes(),
        lambda: half * 2,
        lambda: struct.pack("<Q", 2**63) + header,
        lambda: struct.pack("<Q", 20_000) + b"[" * 20_000,
    )
    with np.errstate(invalid="ignore"):
        return ways[int(draw.integers(len(ways)))]()


DTYPES = ("BF16", "F16", "F8_E4M3", "F8_E5M2", "I64", "BOOL", "F32", "F64", "U8", "C64", "X", "")


# What is sent in the place of an honest message


def encode_or_none(message: Message) -> list[bytes]:
    """Return the frame of a message, or nothing where our own encoder cannot write it."""
    try:
        return [encode(message)]
    except (ValueError, TypeError, KeyError, OverflowError, struct.error, AttributeError):
        return []
    except Exception as error:  # a control message that is too long
        if type(error).__name__ != "WorkError":
            raise
        return []


def send_changed(script: Script, message: Message) -> Iterator[bytes]:
    """Send the message with other values."""
    for _ in range(1 + script.below(2)):
        changed = change_terms(message, script.draw) if isinstance(message, Terms) else message
        changed = change_field(message, script.draw) if changed is message else changed
        message = changed
    yield from encode_or_none(message)


def send_damaged(script: Script, message: Message) -> Iterator[bytes]:
    """Send a damaged frame."""
    yield damage_frame(encode(message), script.draw)


def send_other(script: Script, message: Message) -> Iterator[bytes]:
    """Send any message of the protocol, perhaps with other values, then perhaps the right one."""
    known = list_messages(script.fence, script.k, script.shape.h, script.expected.m)
    other = known[script.below(len(known))]
    if isinstance(other, Terms):
        other = script.expected.terms
    yield from encode_or_none(change_field(other, script.draw) if script.below(2) else other)
    if script.below(2):
        yield encode(message)


def send_again(script: Script, message: Message) -> Iterator[bytes]:
    """Send the message several times."""
    for _ in range(2 + script.below(30)):
        yield encode(message)


def send_old(script: Script, message: Message) -> Iterator[bytes]:
    """Send what was sent before once more."""
    yield from script.sent[script.below(len(script.sent) + 1) :]
    yield encode(message)


def send_end(script: Script, message: Message) -> Iterator[bytes]:
    """Send a message that ends the visit or the connection."""
    fence = script.fence + (0, 0, 0, 1, -1)[script.below(5)]
    ends = (
        msg.Cancel(max(fence, 0), "no"),
        msg.Commit(max(fence, 0)),
        msg.Bye("no", again=True),
        msg.Refuse("no"),
        msg.Bye("no", again=script.below(4) > 0),
        msg.Refuse("no", final=script.below(4) == 0),
        msg.Resume(max(fence, 0)),
        msg.Welcome("no"),
    )
    yield from encode_or_none(ends[script.below(len(ends))])


def send_heartbeats(script: Script, message: Message) -> Iterator[bytes]:
    """Send only heartbeats for a while."""
    for number in range(10 + script.below(100)):
        yield encode(msg.Heartbeat(number))
        script.pause(0.002)
    if script.below(2):
        yield encode(message)


def send_junk(script: Script, message: Message) -> Iterator[bytes]:
    """Send bytes that are no frame."""
    yield script.draw.bytes(script.below(500))


def send_chunks(script: Script, message: Message) -> Iterator[bytes]:
    """Send chunks of any kind: tiny, out of order, too many, too long, of another half."""
    fence = script.fence
    half = change_half(script.half, script.draw) if script.below(2) else script.half
    pieces = list(tensor_transfer.split_into_chunks(fence, half))
    way = script.below(6)
    if way == 0:
        size = 1 + script.below(7)
        pieces = [msg.Chunk(fence, k, half[k * size : (k + 1) * size]) for k in range(min(len(half) // size + 1, 300))]
    elif way == 1:
        pieces = [replace(piece, k=piece.k + 1) for piece in pieces]
    elif way == 2:
        pieces = [msg.Chunk(fence, k, b"x" * 1000) for k in range(script.below(200))]
    elif way == 3:
        pieces = [msg.Chunk(fence, 0, bytes(limits.CHUNK + script.below(2)))]
    elif way == 4:
        pieces = [*pieces, *pieces]
    for piece in pieces:
        yield encode(piece)


def send_other_half(script: Script, message: Message) -> Iterator[bytes]:
    """Send a lease or an evaluation with another half, described correctly."""
    half = change_half(script.half, script.draw)
    if isinstance(message, msg.Lease | msg.EvaluationRequest) and len(half) <= 2**31:
        top = len(half) // 2 if isinstance(message, msg.EvaluationRequest) and script.below(3) == 0 else 0
        described = replace(message, bytes=len(half) - top, sha256=tensor_transfer.compute_sha256(half))
        described = replace(described, top_bytes=top) if isinstance(described, msg.EvaluationRequest) else described
        yield encode(described)
        for chunk in tensor_transfer.split_into_chunks(message.fence, half):
            yield encode(chunk)
    else:
        yield from send_chunks(script, message)


def send_peers(script: Script, message: Message) -> Iterator[bytes]:
    """Lease a visit whose half comes from another client, or goes to one: both are at addresses of any kind."""
    if not isinstance(message, msg.Lease):
        message = script.make_lease()
    ports = (1, 65_535, script.below(65_536))
    hosts = ("127.0.0.1", "[::1]", "nowhere.invalid", "0.0.0.0", "", "x" * 900)
    heir = f"{hosts[script.below(len(hosts))]}:{ports[script.below(len(ports))]}"
    heir = (heir, heir, "", change_text(heir, script.draw))[script.below(4)]
    yield from encode_or_none(replace(message, direct=script.below(2) == 0, heir=heir))
    for chunk in tensor_transfer.split_into_chunks(message.fence, script.half):
        yield encode(chunk)


def send_nothing(script: Script, message: Message) -> Iterator[bytes]:
    """Send nothing."""
    script.pause(0.01 * script.below(10))
    yield from ()


def disconnect(script: Script, message: Message) -> Iterator[bytes]:
    """End the stream: in order, or not."""
    yield from ()
    raise HangUp(script.below(2) == 0)


class HangUp(Exception):
    """The server ends the stream; `is_abort` where it does so with an error."""

    def __init__(self, is_abort: bool) -> None:
        super().__init__()
        self.is_abort = is_abort


Lie = Callable[["Script", Message], Iterator[bytes]]
LIES: tuple[Lie, ...] = (
    send_changed,
    send_changed,
    send_changed,
    send_changed,
    send_damaged,
    send_other,
    send_other,
    send_again,
    send_old,
    send_end,
    send_end,
    send_heartbeats,
    send_junk,
    send_chunks,
    send_other_half,
    send_peers,
    send_nothing,
    disconnect,
)
