"""Clients that can send every message of the protocol as an honest client does, from the handshake to the commit.

The deviations from this script are in mutations. Every wait has a timeout. Nothing is trained.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import grpc
import numpy as np

from splitrelay.network import messages as msg
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import VERSION, BadMessage, decode, encode
from splitrelay.network.grpc_channel import SERVICE
from splitrelay.network.messages import EvaluationRequest, Lease, Message
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.security.encryption import HEADER, Label

SAMPLES = 5  # that every scripted client reports
SHORT, LONG = 0.2, 1.0  # seconds that a client waits for a message; LONG for a lease
CONVERSATION_KEY = "conversation"  # metadata key of the number of the conversation
ENDS = {
    grpc.StatusCode.CANCELLED: "hung up",
    grpc.StatusCode.UNAVAILABLE: "hung up",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "rejected",  # a message too long, or a connection too many
}
VERDICTS = {"refuse": "refused", "cancel": "cancelled", "bye": "left"}
AnyMessage = TypeVar("AnyMessage", bound=Message)


class ConversationEnded(Exception):
    """The conversation is over."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Stream:
    """One stream to a server, for frames of any kind. A thread reads, so that a wait can time out."""

    def __init__(self, channel: grpc.Channel, number: int) -> None:
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._incoming: SimpleQueue[bytes | str] = SimpleQueue()
        join: Any = channel.stream_stream(f"/{SERVICE}/Join")
        self._call = join(iter(self._outgoing.get, None), metadata=((CONVERSATION_KEY, str(number)),))
        threading.Thread(target=self._read, name="fuzz stream", daemon=True).start()

    def send(self, *frames: bytes) -> None:
        """Send frames."""
        for frame in frames:
            self._outgoing.put(frame)

    def end(self) -> None:
        """End our side of the stream."""
        self._outgoing.put(None)

    def close(self) -> None:
        """End the stream."""
        self.end()
        self._call.cancel()

    def receive(self, patience: float) -> Message:
        """Return the next message of the server. Raise ConversationEnded if none comes in time."""
        try:
            frame = self._incoming.get(timeout=patience)
        except Empty:
            raise ConversationEnded("unanswered") from None
        if isinstance(frame, str):
            self._incoming.put(frame)  # for the next call
            raise ConversationEnded(frame)
        try:
            return decode(frame)
        except BadMessage as error:
            raise ConversationEnded(f"unreadable: {error.what}") from None

    def _read(self) -> None:
        try:
            for frame in self._call:
                self._incoming.put(frame)
            self._incoming.put("left")
        except grpc.RpcError:
            code = self._call.code()
            self._incoming.put(ENDS.get(code, f"crashed: {code.name} {self._call.details()}"))


@dataclass(frozen=True)
class ServerInfo:
    """What a client must know of a server to take part."""

    channel: grpc.Channel
    sample: tuple[int, ...]  # smashed data of one image
    batch: int
    classes: int
    numbers: int  # of a half, or of the whole model
    sealed: bool
    whole: bool
    spec_digest: bytes  # of the spec that halves are sealed for
    sealed_bytes: int  # the length of a sealed half


class ScriptedClient:
    """One conversation of one client, over one or more connections."""

    def __init__(self, server_info: ServerInfo, m: int, number: int, draw: np.random.Generator) -> None:
        self.server_info, self.m, self.number, self.draw = server_info, m, number, draw
        self.counts = Counter[str]()
        self.sent: list[bytes] = []  # the last frames
        self.lease: Lease | None = None  # the current visit, answered up to step k
        self.k = 0
        self.start = b""  # the half that the visit began from
        self.patience = LONG
        self.makes_several_visits = False  # do not leave after the first visit
        self.spoil: Callable[[bytes], bytes] = lambda blob: blob  # changes the halves that it deposits
        self.streams: list[Stream] = []
        self.connect()

    def connect(self) -> None:
        """Open another connection and start the protocol from the beginning."""
        self.stream = Stream(self.server_info.channel, self.number)
        self.streams.append(self.stream)
        self.script = self.make_honest_messages()

    def run(self, behaviour: Callable[[ScriptedClient], None]) -> str:
        """Behave like this, and return how the conversation ended."""
        try:
            behaviour(self)
        except ConversationEnded as end:
            return end.verdict
        finally:
            for stream in self.streams:
                stream.close()
        return "hung up"

    def draw_below(self, limit: int) -> int:
        """Draw a whole number from 0 to limit - 1."""
        return int(self.draw.integers(limit))

    @property
    def fence(self) -> int:
        """The fence of the current visit, or 1 without a visit."""
        return self.lease.fence if self.lease else 1

    def encode(self, message: Message) -> bytes:
        """Encode a message and count it."""
        self.counts[message.event] += 1
        return encode(message)

    def send(self, *frames: bytes) -> None:
        """Send frames and remember the last ones."""
        self.sent = [*self.sent[-20:], *frames[:20]]
        self.stream.send(*frames)

    def expect(self, *kinds: type[AnyMessage]) -> AnyMessage:
        """Return the next message of these kinds. Raise ConversationEnded if the server ends the conversation."""
        while True:
            message = self.stream.receive(LONG if Lease in kinds else self.patience)
            if isinstance(message, kinds):
                return message
            if message.event in VERDICTS:
                raise ConversationEnded(VERDICTS[message.event])

    def make_honest_messages(self) -> Iterator[Message]:
        """Yield the messages of an honest client, in order, while the server sends what it should."""
        yield msg.Hello(VERSION, self.m, "fuzzing")
        terms, held = self.expect(msg.Terms), self.lease
        n = SAMPLES if self.m < EVALUATOR_NUMBER else 0
        agreed = msg.Accept(terms.spec_hash, terms.engine, terms.cpu, n, held.fence if held else 0, self.k)
        yield replace(agreed, address="127.0.0.1:1")
        answer: Message = self.expect(msg.Welcome, msg.Resume)
        if isinstance(answer, msg.Resume) and held is not None:
            yield from self._make_steps(held)
        while True:
            message: Message = self.expect(Lease, EvaluationRequest)
            if isinstance(message, Lease):
                yield from self._make_visit(message)
            elif isinstance(message, EvaluationRequest):
                yield from self._evaluate(message)

    def _make_visit(self, lease: Lease) -> Iterator[Message]:
        self.lease, self.k = lease, 0
        wants = lease.direct and self.draw_below(2)
        if wants:
            yield msg.HalfRequest(lease.fence)
        if wants or not lease.direct:
            self._receive_half(lease.bytes)
        yield msg.Ready(lease.fence)
        yield from self._make_steps(lease)

    def _make_steps(self, lease: Lease) -> Iterator[Message]:
        for k in range(self.k, 0 if self.server_info.whole else lease.K):
            yield msg.Step(lease.fence, k, *self._draw_batch(), 0.5)
            self.expect(msg.Reply)
            self.k = k + 1
        if not self.server_info.whole:
            yield msg.Finish(lease.fence, lease.K, 0.5)
        blob = self._make_half(lease.visit, lease.fence)
        if self.server_info.sealed and self.draw_below(2):
            yield msg.HandoverReport(lease.fence, len(blob), tensor_transfer.compute_sha256(blob))
        yield msg.UsageReport(1, 1, 0.1, 0.1, 10**6)
        yield from self._deposit(lease.fence, blob)

    def _deposit(self, fence: int, blob: bytes) -> Iterator[Message]:
        yield from tensor_transfer.split_into_chunks(fence, blob)
        yield msg.Deposit(fence, len(blob), tensor_transfer.compute_sha256(blob), (0.5,) * self.server_info.whole)
        self.expect(msg.Commit)
        yield from self._end_visit("committed")

    def _evaluate(self, look: EvaluationRequest) -> Iterator[Message]:
        self._receive_half(look.bytes + look.top_bytes)
        if look.recipe:
            yield from self._deposit(look.fence, self._make_half(look.sealed_visit, look.sealed_fence))
            return
        for k in range(0 if look.top_bytes else 1):  # one slice holds all images of the small test set
            yield msg.Predict(look.fence, k, self._draw_batch()[0])
            self.expect(msg.Output)
        yield msg.Score(look.fence, 0.5, 0.5, (0.5,) * self.server_info.classes)
        yield from self._end_visit("scored")

    def _end_visit(self, verdict: str) -> Iterator[Message]:
        """End a visit. Unless the client makes several visits, it leaves and waits until the server has read that."""
        self.lease, self.k = None, 0
        if not self.makes_several_visits:
            yield msg.Leave("that was all")
            with suppress(ConversationEnded):
                self.expect()
            raise ConversationEnded(verdict)

    def _receive_half(self, length: int) -> None:
        self.start = b""
        while len(self.start) < length:
            self.start += self.expect(msg.Chunk).data

    def _draw_batch(self) -> tuple[Any, Any]:
        h = self.draw.standard_normal((1 + self.draw_below(self.server_info.batch), *self.server_info.sample))
        return h.astype(np.float32), self.draw.integers(self.server_info.classes, size=len(h)).astype(np.int32)

    def _make_half(self, visit: int, fence: int) -> bytes:
        """Make a half that the server accepts, unless `spoil` changes it."""
        if self.server_info.sealed:
            blob = Label(self.server_info.spec_digest, visit, fence, 1, bytes(24)).pack() + self.draw.bytes(
                self.server_info.sealed_bytes - HEADER.size
            )
        elif self.start and self.draw_below(8):
            blob = self.start  # unchanged: any other half would be out of bounds
        else:
            blob = tensor_transfer.pack_vectors(
                x=0.01 * self.draw.standard_normal(self.server_info.numbers).astype(np.float32)
            )
        return self.spoil(blob)
