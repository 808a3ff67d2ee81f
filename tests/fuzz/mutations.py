"""Behaviours of hostile clients: random messages, correct up to a point, many connections."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from splitrelay.network import limits, tensor_transfer
from splitrelay.network import messages as msg
from splitrelay.network.codec import CHECKSUM, COVERED, HEADER, VERSION, compute_checksum
from splitrelay.network.messages import Message
from tests.fuzz.scripted_client import LONG, SAMPLES, SHORT, ConversationEnded, ScriptedClient

TERMS = msg.Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=1.0)
FIELDS = (
    (4, "<B"), (5, "<B"), (6, "<B"), (7, "<B"), (8, "<Q"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<I"), (40, "<Q"),
)  # fmt: skip
NUMBERS = (np.nan, np.inf, -np.inf, -1.0, 3e38, 1e-45)
Frames = Sequence[bytes]


def list_messages(fence: int = 1, k: int = 0, sample: tuple[int, ...] = (3,), m: int = 0) -> tuple[Message, ...]:
    """List one message of every kind, of both ends, that fits into a visit; hello comes first."""
    h, labels, proof = np.ones((2, *sample), np.float32), np.zeros(2, np.int32), b"x" * 32
    return (
        msg.Hello(VERSION, m, "me"), TERMS, msg.Accept("h", "fast", "cpu", SAMPLES), msg.Welcome(), msg.Resume(fence),
        msg.Refuse("no"), msg.Lease(fence, 1, 0, 0, m, 2, 0.1), msg.HalfRequest(fence), msg.Ready(fence),
        msg.HandoverReport(fence, 80, proof), msg.Deposit(fence, 80, proof, (0.5,)), msg.Commit(fence),
        msg.Cancel(fence),
        msg.Fail(fence, "no"), msg.EvaluationRequest(fence, 0, 8, proof), msg.Score(fence, 0.5, 0.5, (0.5,)),
        msg.Heartbeat(1),
        msg.UsageReport(1, 1, 0.5, 0.5, 1), msg.Leave("bye"), msg.Bye("bye"), msg.Step(fence, k, h, labels, 0.5),
        msg.Reply(fence, k, h, (), 0.5), msg.Finish(fence, k, 0.5),
        msg.Chunk(fence, k, tensor_transfer.pack_vectors(x=np.ones(4, np.float32))), msg.Predict(fence, k, h),
        msg.Output(fence, k, np.ones((2, 2), np.float32)),
    )  # fmt: skip


def damage_frame(frame: bytes, draw: np.random.Generator) -> bytes:
    """Return the frame with one random damage."""
    body, kind = bytearray(frame), int(draw.integers(6))
    if kind == 0:
        body[int(draw.integers(len(body)))] ^= 1 << int(draw.integers(8))
    elif kind == 1:
        body = body[: int(draw.integers(len(body)))]
    elif kind == 2:
        body += draw.bytes(int(draw.integers(1, 50)))
    elif kind == 3:
        offset, form = FIELDS[int(draw.integers(len(FIELDS)))]
        value = int(draw.integers(2 ** (8 * struct.calcsize(form)) - 1, dtype=np.uint64)) >> int(draw.integers(60))
        struct.pack_into(form, body, offset, value % 2 ** (8 * struct.calcsize(form)))
    elif kind == 4 and len(body) > HEADER.size:
        body[int(draw.integers(HEADER.size, len(body)))] = int(draw.integers(256))
    if len(body) >= HEADER.size and draw.integers(2):  # under a checksum that fits
        CHECKSUM.pack_into(body, COVERED, compute_checksum(bytes(body[:COVERED]), bytes(body[HEADER.size :])))
    return bytes(body)


def spoil_half(half: bytes, draw: np.random.Generator) -> bytes:
    """Return a half with another last number, of another length, damaged, or empty."""
    number = np.float32(NUMBERS[int(draw.integers(len(NUMBERS)))])
    other = tensor_transfer.pack_vectors(x=np.zeros(7, np.float32))
    return (half[:-4] + number.tobytes(), half[:-4], other, damage_frame(half, draw), b"")[int(draw.integers(5))]


# What a client sends instead of an honest message


def _send_any(client: ScriptedClient, message: Message) -> Frames:
    known = list_messages(client.fence, client.k, client.server_info.sample, client.m)
    return [client.encode(known[client.draw_below(len(known))])]


def _send_changed(client: ScriptedClient, message: Message, /, **values: Any) -> Frames:
    """Send the message with those of the values that it has; any message if it has none of them."""
    own: Any = message
    names = {field.name for field in fields(own)}  # messages that belong to no lease have a constant fence
    known = {name: value for name, value in values.items() if name in names}
    return [client.encode(replace(own, **known))] if known else _send_any(client, message)


def _send_damaged(client: ScriptedClient, message: Message) -> Frames:
    return [damage_frame(client.encode(message), client.draw)]


def _send_other_fence(client: ScriptedClient, message: Message) -> Frames:
    fence = client.fence
    others = (0, fence - 1, fence + 1, fence + 1000, 2**64 - 1)
    return _send_changed(client, message, fence=others[client.draw_below(len(others))])


def _send_other_k(client: ScriptedClient, message: Message) -> Frames:
    k: int = getattr(message, "k", 0)
    others = (max(k - 1, 0), k + 1, k + 2, 2**31, 2**32 - 1)
    return _send_changed(client, message, k=others[client.draw_below(len(others))])


def _send_other_value(client: ScriptedClient, message: Message) -> Frames:
    """Change the client, the number of samples, the length, or the texts."""
    number = (0, 1, 10**9, 2**31, 2**32 - 1)[client.draw_below(5)]
    text = client.draw.bytes(1 + client.draw_below(limits.TEXT) // 2).hex()
    texts = dict.fromkeys(("why", "cpu", "software"), text)
    return _send_changed(
        client, message, **(texts if client.draw_below(2) else {("client", "n", "bytes")[client.draw_below(3)]: number})
    )


def _send_no_numbers(client: ScriptedClient, message: Message) -> Frames:
    """Replace every float by a special value."""
    own: Any = message
    number, values = NUMBERS[client.draw_below(len(NUMBERS))], dict[str, Any]()
    for name in (field.name for field in fields(own)):
        value = getattr(message, name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            values[name] = np.full_like(value, number)
        elif isinstance(value, float):
            values[name] = number
    return _send_changed(client, message, **values)


def _send_other_shape(client: ScriptedClient, message: Message) -> Frames:
    batch, sample = client.server_info.batch, client.server_info.sample
    shapes = ((batch + 1, *sample), (1, *sample, 1), (2, 3), (1, sample[0] + 1), (500, *sample), (1, *sample))
    h = np.ones(shapes[client.draw_below(len(shapes))], (np.float32, np.float64)[client.draw_below(2)])
    labels = np.full(len(h) + client.draw_below(2), client.draw_below(2 * client.server_info.classes) - 2, np.int32)
    return _send_changed(client, message, h=h, labels=labels)


def _send_too_many(client: ScriptedClient, message: Message) -> Frames:
    """Send several steps without waiting for an answer."""
    own: Any = message
    k: int = getattr(message, "k", -1)
    many = range(k, k + 2 + client.draw_below(40))
    return [client.encode(replace(own, k=j)) for j in many] if k >= 0 else _send_again(client, message)


def _send_again(client: ScriptedClient, message: Message) -> Frames:
    return [client.encode(message)] * (2 + client.draw_below(40))


def _send_storm(client: ScriptedClient, message: Message) -> Frames:
    """Send many messages that change no state."""
    storms: Sequence[Message] = (
        msg.HalfRequest(client.fence), msg.HandoverReport(client.fence, 80, b"x" * 32),
        msg.HandoverReport(client.fence, 0, b"", "no"),
        msg.Heartbeat(1), msg.UsageReport(2, 1, 0.1, 0.1, 1),
    )  # fmt: skip
    return [
        *[client.encode(storms[client.draw_below(len(storms))])] * (10 + client.draw_below(200)),
        client.encode(message),
    ]


def _replay(client: ScriptedClient, message: Message) -> Frames:
    return [*client.sent[client.draw_below(len(client.sent) + 1) :], client.encode(message)]


def _send_junk(client: ScriptedClient, message: Message) -> Frames:
    return [client.draw.bytes(client.draw_below(500))]


def _send_too_long(client: ScriptedClient, message: Message) -> Frames:
    return [client.encode(msg.Chunk(client.fence, 0, bytes(limits.CHUNK + client.draw_below(2))))]


def _give_up(client: ScriptedClient, message: Message) -> Frames:
    diverged = client.draw_below(4) == 0
    ends: Sequence[Message] = (msg.Fail(client.fence, "no", diverged=diverged), msg.Leave("bye"))
    return [client.encode(ends[client.draw_below(2)])]


def _send_nothing(client: ScriptedClient, message: Message) -> Frames:
    return []


def _hang_up(client: ScriptedClient, message: Message) -> Frames:
    """End the stream, or only our side of it."""
    client.stream.end()
    if client.draw_below(2):
        raise ConversationEnded("hung up")
    return []


def _reconnect(client: ScriptedClient, message: Message) -> Frames:
    """Reconnect in the middle of a visit, perhaps at another step; the old connection may stay open."""
    if client.draw_below(2):
        client.stream.close()
    client.connect()
    client.k = max(client.k + (0, 0, 0, 1, -1)[client.draw_below(5)], 0)
    return []


FAULTS: tuple[Callable[[ScriptedClient, Message], Frames], ...] = (
    _send_any, _send_damaged, _send_other_fence, _send_other_k, _send_other_value, _send_no_numbers,
    _send_other_shape, _send_too_many, _send_again, _send_storm,
    _replay, _send_junk, _send_too_long, _give_up, _send_nothing, _hang_up, _reconnect, _reconnect,
)  # fmt: skip


# Behaviours


def send_random_messages(client: ScriptedClient) -> None:
    """Send any messages, whole or damaged, some of them after a hello; then only listen."""
    known = list_messages(1, 0, client.server_info.sample, client.m)
    messages = [known[client.draw_below(len(known))] for _ in range(1 + client.draw_below(6))]
    frames = [client.encode(message) for message in (*known[: client.draw_below(2)], *messages)]
    client.send(*(damage_frame(frame, client.draw) if client.draw_below(2) else frame for frame in frames))
    client.stream.end()
    client.expect()


def deviate(client: ScriptedClient) -> None:
    """Send correct messages up to a point, then a wrong one; repeat this while the server answers."""
    client.makes_several_visits = client.draw_below(3) == 0
    client.spoil = (lambda half: spoil_half(half, client.draw)) if client.draw_below(6) == 0 else client.spoil
    client.patience = SHORT if client.draw_below(8) else LONG
    right = client.draw_below(12)
    while True:
        message = next(client.script)
        right -= 1
        if right >= 0:
            client.send(client.encode(message))
        else:
            right = client.draw_below(10)
            client.send(*FAULTS[client.draw_below(len(FAULTS))](client, message))


def reconnect_repeatedly(client: ScriptedClient) -> None:
    """Open connection after connection, closed or not; then deviate with the visit that it has."""
    for _ in range(3 + client.draw_below(10)):
        for _ in range(client.draw_below(5)):
            client.send(client.encode(next(client.script)))
        if client.draw_below(4):
            client.stream.close()
        client.connect()
    deviate(client)


def behave_honestly(client: ScriptedClient) -> None:
    """Send only correct messages."""
    while True:
        client.send(client.encode(next(client.script)))


BEHAVIOURS: tuple[Callable[[ScriptedClient], None], ...] = (
    send_random_messages,
    deviate,
    reconnect_repeatedly,
    behave_honestly,
)
SHARES = (0.3, 0.5, 0.12, 0.08)  # of the conversations
