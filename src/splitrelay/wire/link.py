"""One stream from a client to the server: a thread of its own reads it, another says now and then that we are here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from splitrelay.errors import SplitrelayError, WorkError
from splitrelay.wire import limits
from splitrelay.wire.frames import ANY, Bounds, decode, encode
from splitrelay.wire.messages import Bye, Cancel, Heartbeat, Message, Refuse
from splitrelay.wire.protocol import Conversation, End, Verdict
from splitrelay.wire.server import SERVICE

OPTIONS = (
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before it
)


def channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A way to a server: over mutual TLS, or, where nobody else listens, without."""
    if credentials is None:
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, credentials, OPTIONS)


class LinkLost(WorkError):
    """The server cannot be heard any more; the visit may go on over another link."""


class Refused(WorkError):
    """The server said no; `final` where it will say so again."""

    def __init__(self, why: str, final: bool) -> None:
        super().__init__(f"the server refused: {why}")
        self.final = final


class Ended(SplitrelayError):
    """The server said goodbye; `again` where it comes back."""

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


class TakenBack(SplitrelayError):
    """The visit was taken back: whatever was made of it is void."""


@dataclass
class Meter:
    """Frames and their bytes over all links of this client, and the time spent waiting for the server."""

    messages: int = 0
    sent: int = 0
    received: int = 0
    waiting: float = 0.0


class Link:
    """One stream to the server. A thread of its own reads it, another says now and then that we are here."""

    def __init__(self, channel: grpc.Channel, heartbeat: float = limits.HEARTBEAT, meter: Meter | None = None) -> None:
        self.channel, self.meter = channel, meter or Meter()
        self.talk = Conversation(End.CLIENT)
        self.bounds: Bounds = ANY
        self.heartbeat = heartbeat
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._incoming: SimpleQueue[bytes | SplitrelayError] = SimpleQueue()
        self._peeked: bytes | SplitrelayError | None = None
        self._lock = threading.Lock()  # heartbeats come from another thread
        self._over = threading.Event()
        self._heard = time.monotonic()
        self._stream: Any = channel.stream_stream(f"/{SERVICE}/Join")(self._requests())
        threading.Thread(target=self._reading, name="link", daemon=True).start()
        threading.Thread(target=self._beating, name="heartbeat", daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something."""
        with self._lock:
            self.talk.say(message)
        frame = encode(message)
        self.meter.messages += 1
        self.meter.sent += len(frame)
        self._outgoing.put(frame)

    def receive(self, timeout: float | None = None) -> Message:
        """The server's next word; LinkLost where none comes in time."""
        began = time.monotonic()
        while True:
            message = self._next(None if timeout is None else began + timeout)
            with self._lock:
                verdict = self.talk.hear(message)
            if verdict is Verdict.NEW and not isinstance(message, Heartbeat):
                self.meter.waiting += time.monotonic() - began
                return _checked(message)

    def waits(self, seconds: float) -> bool:
        """Whether something has come, or the link was lost, within so many seconds."""
        if self._peeked is None:
            try:
                self._peeked = self._incoming.get(timeout=seconds)
            except Empty:
                return time.monotonic() - self._heard > limits.SILENCE
        return True

    def close(self) -> None:
        """Hang up."""
        self._over.set()
        self._outgoing.put(None)
        self._stream.cancel()
        self.channel.close()

    def _next(self, until: float | None) -> Message:
        while True:
            now = time.monotonic()
            if until is not None and now > until:
                raise LinkLost("the server does not answer")
            if now - self._heard > limits.SILENCE:
                raise LinkLost("the server has fallen silent")
            try:
                found = self._peeked if self._peeked is not None else self._incoming.get(timeout=1.0)
            except Empty:
                continue
            self._peeked = None
            if isinstance(found, SplitrelayError):
                raise found
            self.meter.received += len(found)
            return decode(found, self.bounds)

    def _requests(self) -> Iterator[bytes]:
        return iter(self._outgoing.get, None)

    def _reading(self) -> None:
        try:
            for frame in self._stream:
                self._heard = time.monotonic()
                self._incoming.put(frame)
            self._incoming.put(LinkLost("the server hung up"))
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed by us
            what = error.details() if isinstance(error, grpc.Call) else str(error)
            self._incoming.put(LinkLost("the link was lost", value=" ".join(str(what).split())[:200]))

    def _beating(self) -> None:
        number = 0
        while not self._over.wait(self.heartbeat):
            number += 1
            self._outgoing.put(encode(Heartbeat(number)))  # every state allows it, none changes


def _checked(message: Message) -> Message:
    """A word that ends something is an error, so that it ends it wherever it is heard."""
    if isinstance(message, Refuse):
        raise Refused(message.why, message.final)
    if isinstance(message, Bye):
        raise Ended(message.why, message.again)
    if isinstance(message, Cancel):
        raise TakenBack(message.why or "the visit was taken back")
    return message
