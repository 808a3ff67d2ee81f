"""Ways to talk to a server that no honest client takes: at random, right up to a point, link after link."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from splitrelay.network import limits, tensor_transfer
from splitrelay.network import messages as say
from splitrelay.network.codec import CHECKSUM, COVERED, HEADER, VERSION, checksum
from splitrelay.network.messages import Message
from tests.fuzz.scripted_client import LONG, SAMPLES, SHORT, Over, Talk

TERMS = say.Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=1.0)
FIELDS = (
    (4, "<B"), (5, "<B"), (6, "<B"), (7, "<B"), (8, "<Q"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<I"), (40, "<Q"),
)  # fmt: skip
NUMBERS = (np.nan, np.inf, -np.inf, -1.0, 3e38, 1e-45)
Frames = Sequence[bytes]


def vocabulary(fence: int = 1, k: int = 0, sample: tuple[int, ...] = (3,), m: int = 0) -> tuple[Message, ...]:
    """Every word that there is, whoever may say it, as it fits into a visit; first the greeting."""
    h, labels, proof = np.ones((2, *sample), np.float32), np.zeros(2, np.int32), b"x" * 32
    return (
        say.Hello(VERSION, m, "me"), TERMS, say.Accept("h", "fast", "cpu", SAMPLES), say.Welcome(), say.Resume(fence),
        say.Refuse("no"), say.Lease(fence, 1, 0, 0, m, 2, 0.1), say.Want(fence), say.Ready(fence),
        say.Handed(fence, 80, proof), say.Deposit(fence, 80, proof, (0.5,)), say.Commit(fence), say.Cancel(fence),
        say.Fail(fence, "no"), say.Look(fence, 0, 8, proof), say.Score(fence, 0.5, 0.5, (0.5,)), say.Heartbeat(1),
        say.Paid(1, 1, 0.5, 0.5, 1), say.Leave("bye"), say.Bye("bye"), say.Step(fence, k, h, labels, 0.5),
        say.Reply(fence, k, h, (), 0.5), say.Finish(fence, k, 0.5),
        say.Chunk(fence, k, tensor_transfer.packed(x=np.ones(4, np.float32))), say.Predict(fence, k, h),
        say.Output(fence, k, np.ones((2, 2), np.float32)),
    )  # fmt: skip


def damaged(frame: bytes, draw: np.random.Generator) -> bytes:
    """The frame, or what is left of it."""
    body, way = bytearray(frame), int(draw.integers(6))
    if way == 0:
        body[int(draw.integers(len(body)))] ^= 1 << int(draw.integers(8))
    elif way == 1:
        body = body[: int(draw.integers(len(body)))]
    elif way == 2:
        body += draw.bytes(int(draw.integers(1, 50)))
    elif way == 3:
        offset, form = FIELDS[int(draw.integers(len(FIELDS)))]
        value = int(draw.integers(2 ** (8 * struct.calcsize(form)) - 1, dtype=np.uint64)) >> int(draw.integers(60))
        struct.pack_into(form, body, offset, value % 2 ** (8 * struct.calcsize(form)))
    elif way == 4 and len(body) > HEADER.size:
        body[int(draw.integers(HEADER.size, len(body)))] = int(draw.integers(256))
    if len(body) >= HEADER.size and draw.integers(2):  # under a checksum that fits
        CHECKSUM.pack_into(body, COVERED, checksum(bytes(body[:COVERED]), bytes(body[HEADER.size :])))
    return bytes(body)


def spoilt(half: bytes, draw: np.random.Generator) -> bytes:
    """A half with another last number, of another length, damaged, or none."""
    number = np.float32(NUMBERS[int(draw.integers(len(NUMBERS)))])
    other = tensor_transfer.packed(x=np.zeros(7, np.float32))
    return (half[:-4] + number.tobytes(), half[:-4], other, damaged(half, draw), b"")[int(draw.integers(5))]


# What is said in the place of a word


def _any_word(talk: Talk, word: Message) -> Frames:
    known = vocabulary(talk.fence, talk.k, talk.place.sample, talk.m)
    return [talk.frame(known[talk.below(len(known))])]


def _changed(talk: Talk, word: Message, **values: Any) -> Frames:
    """The word with other values, of those that it has; any word, where it has none of them."""
    own: Any = word
    known = {name: value for name, value in values.items() if hasattr(word, name)}
    return [talk.frame(replace(own, **known))] if known else _any_word(talk, word)


def _broken(talk: Talk, word: Message) -> Frames:
    return [damaged(talk.frame(word), talk.draw)]


def _other_fence(talk: Talk, word: Message) -> Frames:
    fence = talk.fence
    others = (0, fence - 1, fence + 1, fence + 1000, 2**64 - 1)
    return _changed(talk, word, fence=others[talk.below(len(others))])


def _other_k(talk: Talk, word: Message) -> Frames:
    k: int = getattr(word, "k", 0)
    others = (max(k - 1, 0), k + 1, k + 2, 2**31, 2**32 - 1)
    return _changed(talk, word, k=others[talk.below(len(others))])


def _other_value(talk: Talk, word: Message) -> Frames:
    """Another client, another number of samples, another length; or texts that nobody has seen before."""
    number = (0, 1, 10**9, 2**31, 2**32 - 1)[talk.below(5)]
    text = talk.draw.bytes(1 + talk.below(limits.TEXT) // 2).hex()
    texts = dict.fromkeys(("why", "cpu", "software"), text)
    return _changed(talk, word, **(texts if talk.below(2) else {("client", "n", "bytes")[talk.below(3)]: number}))


def _no_number(talk: Talk, word: Message) -> Frames:
    """Something else for every float."""
    own: Any = word
    number, values = NUMBERS[talk.below(len(NUMBERS))], dict[str, Any]()
    for name in (field.name for field in fields(own)):
        value = getattr(word, name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            values[name] = np.full_like(value, number)
        elif isinstance(value, float):
            values[name] = number
    return _changed(talk, word, **values)


def _other_shape(talk: Talk, word: Message) -> Frames:
    batch, sample = talk.place.batch, talk.place.sample
    shapes = ((batch + 1, *sample), (1, *sample, 1), (2, 3), (1, sample[0] + 1), (500, *sample), (1, *sample))
    h = np.ones(shapes[talk.below(len(shapes))], (np.float32, np.float64)[talk.below(2)])
    labels = np.full(len(h) + talk.below(2), talk.below(2 * talk.place.classes) - 2, np.int32)
    return _changed(talk, word, h=h, labels=labels)


def _too_many(talk: Talk, word: Message) -> Frames:
    """One after the other, without waiting for an answer."""
    own: Any = word
    k: int = getattr(word, "k", -1)
    many = range(k, k + 2 + talk.below(40))
    return [talk.frame(replace(own, k=j)) for j in many] if k >= 0 else _again(talk, word)


def _again(talk: Talk, word: Message) -> Frames:
    return [talk.frame(word)] * (2 + talk.below(40))


def _storm(talk: Talk, word: Message) -> Frames:
    """Words that change no state, so many of them."""
    storms: Sequence[Message] = (
        say.Want(talk.fence), say.Handed(talk.fence, 80, b"x" * 32), say.Handed(talk.fence, 0, b"", "no"),
        say.Heartbeat(1), say.Paid(2, 1, 0.1, 0.1, 1),
    )  # fmt: skip
    return [*[talk.frame(storms[talk.below(len(storms))])] * (10 + talk.below(200)), talk.frame(word)]


def _replayed(talk: Talk, word: Message) -> Frames:
    return [*talk.sent[talk.below(len(talk.sent) + 1) :], talk.frame(word)]


def _junk(talk: Talk, word: Message) -> Frames:
    return [talk.draw.bytes(talk.below(500))]


def _too_long(talk: Talk, word: Message) -> Frames:
    return [talk.frame(say.Chunk(talk.fence, 0, bytes(limits.CHUNK + talk.below(2))))]


def _given_up(talk: Talk, word: Message) -> Frames:
    diverged = talk.below(4) == 0
    ends: Sequence[Message] = (say.Fail(talk.fence, "no", diverged=diverged), say.Leave("bye"))
    return [talk.frame(ends[talk.below(2)])]


def _silence(talk: Talk, word: Message) -> Frames:
    return []


def _hung_up(talk: Talk, word: Message) -> Frames:
    """In the middle of the stream; or no more words, but still an ear."""
    talk.line.end()
    if talk.below(2):
        raise Over("hung up")
    return []


def _back(talk: Talk, word: Message) -> Frames:
    """On another link, with the visit that it holds, or almost; the old one is left open, perhaps."""
    if talk.below(2):
        talk.line.close()
    talk.dial()
    talk.k = max(talk.k + (0, 0, 0, 1, -1)[talk.below(5)], 0)
    return []


FAULTS: tuple[Callable[[Talk, Message], Frames], ...] = (
    _any_word, _broken, _other_fence, _other_k, _other_value, _no_number, _other_shape, _too_many, _again, _storm,
    _replayed, _junk, _too_long, _given_up, _silence, _hung_up, _back, _back,
)  # fmt: skip


# Ways to talk


def at_random(talk: Talk) -> None:
    """Any words, whole or damaged, some of them after a greeting; then only an ear."""
    known = vocabulary(1, 0, talk.place.sample, talk.m)
    words = [known[talk.below(len(known))] for _ in range(1 + talk.below(6))]
    frames = [talk.frame(word) for word in (*known[: talk.below(2)], *words)]
    talk.put(*(damaged(frame, talk.draw) if talk.below(2) else frame for frame in frames))
    talk.line.end()
    talk.expect()


def astray(talk: Talk) -> None:
    """Right up to a point, and wrong there; then right again, if the server still listens, and wrong again."""
    talk.several = talk.below(3) == 0
    talk.spoil = (lambda half: spoilt(half, talk.draw)) if talk.below(6) == 0 else talk.spoil
    talk.patience = SHORT if talk.below(8) else LONG
    right = talk.below(12)
    while True:
        word = next(talk.script)
        right -= 1
        if right >= 0:
            talk.put(talk.frame(word))
        else:
            right = talk.below(10)
            talk.put(*FAULTS[talk.below(len(FAULTS))](talk, word))


def in_and_out(talk: Talk) -> None:
    """Link after link, each left where it stands, hung up or not; then astray, with whatever it holds."""
    for _ in range(3 + talk.below(10)):
        for _ in range(talk.below(5)):
            talk.put(talk.frame(next(talk.script)))
        if talk.below(4):
            talk.line.close()
        talk.dial()
    astray(talk)


def honestly(talk: Talk) -> None:
    """Right to the end."""
    while True:
        talk.put(talk.frame(next(talk.script)))


WAYS: tuple[Callable[[Talk], None], ...] = (at_random, astray, in_and_out, honestly)
SHARES = (0.3, 0.5, 0.12, 0.08)  # of the conversations
