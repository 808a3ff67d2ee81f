"""Clients that know every word of the protocol, as honest ones say it: from the first greeting to the commit.

What they do instead is in astray. Nobody waits for ever here, and whatever the server says is only looked at.
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

from splitrelay.network import messages as say
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import VERSION, BadMessage, decode, encode
from splitrelay.network.connection_handler import JUDGE
from splitrelay.network.grpc_channel import SERVICE
from splitrelay.network.messages import Lease, Look, Message
from splitrelay.security.encryption import HEADER, Label

SAMPLES = 5  # that every client here says to hold
SHORT, LONG = 0.2, 1.0  # seconds that a client waits for a word; for its turn always the longer ones
WHOSE = "conversation"  # the key under which a link says which one it belongs to
ENDS = {
    grpc.StatusCode.CANCELLED: "hung up",
    grpc.StatusCode.UNAVAILABLE: "hung up",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "turned away",  # a word too long, or one caller too many
}
VERDICTS = {"refuse": "refused", "cancel": "cancelled", "bye": "left"}
Word = TypeVar("Word", bound=Message)


class Over(Exception):
    """The conversation is over."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Line:
    """One stream to a server, in frames of any kind; a thread reads, so that whoever waits can stop waiting."""

    def __init__(self, channel: grpc.Channel, number: int) -> None:
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._come: SimpleQueue[bytes | str] = SimpleQueue()
        join: Any = channel.stream_stream(f"/{SERVICE}/Join")
        self._call = join(iter(self._outgoing.get, None), metadata=((WHOSE, str(number)),))
        threading.Thread(target=self._reading, name="line", daemon=True).start()

    def put(self, *frames: bytes) -> None:
        """On their way."""
        for frame in frames:
            self._outgoing.put(frame)

    def end(self) -> None:
        """No more words from here."""
        self._outgoing.put(None)

    def close(self) -> None:
        """Hang up."""
        self.end()
        self._call.cancel()

    def hear(self, patience: float) -> Message:
        """The server's next word; Over where there is none."""
        try:
            come = self._come.get(timeout=patience)
        except Empty:
            raise Over("unanswered") from None
        if isinstance(come, str):
            self._come.put(come)  # for whoever asks again
            raise Over(come)
        try:
            return decode(come)
        except BadMessage as error:
            raise Over(f"unreadable: {error.what}") from None

    def _reading(self) -> None:
        try:
            for frame in self._call:
                self._come.put(frame)
            self._come.put("left")
        except grpc.RpcError:
            code = self._call.code()
            self._come.put(ENDS.get(code, f"crashed: {code.name} {self._call.details()}"))


@dataclass(frozen=True)
class Place:
    """What a client must know of a server to fit in."""

    channel: grpc.Channel
    sample: tuple[int, ...]  # smashed data of one image
    batch: int
    classes: int
    numbers: int  # of a half, or of the whole model
    sealed: bool
    whole: bool
    spec_digest: bytes  # of the spec that halves are sealed for
    sealed_bytes: int  # the length of a sealed half


class Talk:
    """One conversation of one client, over as many links as it takes."""

    def __init__(self, place: Place, m: int, number: int, draw: np.random.Generator) -> None:
        self.place, self.m, self.number, self.draw = place, m, number, draw
        self.said = Counter[str]()
        self.sent: list[bytes] = []  # the last of them
        self.lease: Lease | None = None  # the visit that it holds, answered up to step k
        self.k = 0
        self.start = b""  # the half that the visit began from
        self.patience = LONG
        self.several = False  # whether one visit is not enough
        self.spoil: Callable[[bytes], bytes] = lambda blob: blob  # what becomes of its halves
        self.lines: list[Line] = []
        self.dial()

    def dial(self) -> None:
        """Another link, and the protocol from its beginning."""
        self.line = Line(self.place.channel, self.number)
        self.lines.append(self.line)
        self.script = self.words()

    def verdict(self, way: Callable[[Talk], None]) -> str:
        """Talk that way, and how it ended."""
        try:
            way(self)
        except Over as over:
            return over.verdict
        finally:
            for line in self.lines:
                line.close()
        return "hung up"

    def below(self, limit: int) -> int:
        """A number from 0 on."""
        return int(self.draw.integers(limit))

    @property
    def fence(self) -> int:
        """Of the visit that it holds, or one that nobody holds."""
        return self.lease.fence if self.lease else 1

    def frame(self, word: Message) -> bytes:
        """The word as it travels, counted."""
        self.said[word.event] += 1
        return encode(word)

    def put(self, *frames: bytes) -> None:
        """On their way, and remembered."""
        self.sent = [*self.sent[-20:], *frames[:20]]
        self.line.put(*frames)

    def expect(self, *kinds: type[Word]) -> Word:
        """The next word of these kinds; Over where the server ends it."""
        while True:
            word = self.line.hear(LONG if Lease in kinds else self.patience)
            if isinstance(word, kinds):
                return word
            if word.event in VERDICTS:
                raise Over(VERDICTS[word.event])

    def words(self) -> Iterator[Message]:
        """What an honest client says, in order, while it hears what it should."""
        yield say.Hello(VERSION, self.m, "fuzzing")
        terms, held = self.expect(say.Terms), self.lease
        n = SAMPLES if self.m < JUDGE else 0
        agreed = say.Accept(terms.spec_hash, terms.engine, terms.cpu, n, held.fence if held else 0, self.k)
        yield replace(agreed, address="127.0.0.1:1")
        answer: Message = self.expect(say.Welcome, say.Resume)
        if isinstance(answer, say.Resume) and held is not None:
            yield from self._steps(held)
        while True:
            word: Message = self.expect(Lease, Look)
            if isinstance(word, Lease):
                yield from self._visit(word)
            elif isinstance(word, Look):
                yield from self._look(word)

    def _visit(self, lease: Lease) -> Iterator[Message]:
        self.lease, self.k = lease, 0
        wants = lease.direct and self.below(2)
        if wants:
            yield say.Want(lease.fence)
        if wants or not lease.direct:
            self._received(lease.bytes)
        yield say.Ready(lease.fence)
        yield from self._steps(lease)

    def _steps(self, lease: Lease) -> Iterator[Message]:
        for k in range(self.k, 0 if self.place.whole else lease.K):
            yield say.Step(lease.fence, k, *self._batch(), 0.5)
            self.expect(say.Reply)
            self.k = k + 1
        if not self.place.whole:
            yield say.Finish(lease.fence, lease.K, 0.5)
        blob = self._half(lease.visit, lease.fence)
        if self.place.sealed and self.below(2):
            yield say.Handed(lease.fence, len(blob), tensor_transfer.sha256(blob))
        yield say.Paid(1, 1, 0.1, 0.1, 10**6)
        yield from self._deposited(lease.fence, blob)

    def _deposited(self, fence: int, blob: bytes) -> Iterator[Message]:
        yield from tensor_transfer.chunks(fence, blob)
        yield say.Deposit(fence, len(blob), tensor_transfer.sha256(blob), (0.5,) * self.place.whole)
        self.expect(say.Commit)
        yield from self._made("committed")

    def _look(self, look: Look) -> Iterator[Message]:
        self._received(look.bytes + look.top_bytes)
        if look.recipe:
            yield from self._deposited(look.fence, self._half(look.sealed_visit, look.sealed_fence))
            return
        for k in range(0 if look.top_bytes else 1):  # one slice holds all images of the small test set
            yield say.Predict(look.fence, k, self._batch()[0])
            self.expect(say.Output)
        yield say.Score(look.fence, 0.5, 0.5, (0.5,) * self.place.classes)
        yield from self._made("scored")

    def _made(self, verdict: str) -> Iterator[Message]:
        """One visit more; unless it wants several it leaves, and waits until the server has heard that."""
        self.lease, self.k = None, 0
        if not self.several:
            yield say.Leave("that was all")
            with suppress(Over):
                self.expect()
            raise Over(verdict)

    def _received(self, length: int) -> None:
        self.start = b""
        while len(self.start) < length:
            self.start += self.expect(say.Chunk).data

    def _batch(self) -> tuple[Any, Any]:
        h = self.draw.standard_normal((1 + self.below(self.place.batch), *self.place.sample))
        return h.astype(np.float32), self.draw.integers(self.place.classes, size=len(h)).astype(np.int32)

    def _half(self, visit: int, fence: int) -> bytes:
        """A half that the server takes, unless it is spoilt."""
        if self.place.sealed:
            blob = Label(self.place.spec_digest, visit, fence, 1, bytes(24)).pack() + self.draw.bytes(
                self.place.sealed_bytes - HEADER.size
            )
        elif self.start and self.below(8):
            blob = self.start  # as if nothing was to be learnt; any other would be out of bounds
        else:
            blob = tensor_transfer.packed(x=0.01 * self.draw.standard_normal(self.place.numbers).astype(np.float32))
        return self.spoil(blob)
