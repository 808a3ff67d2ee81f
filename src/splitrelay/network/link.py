"""One stream from a client to the server, in words."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from threading import Event

import grpc

from splitrelay.errors import InputError, SplitrelayError, WorkError
from splitrelay.network import limits
from splitrelay.network.addresses import refuse_no_address
from splitrelay.network.client_stream import LinkLost, Stream
from splitrelay.network.codec import ANY, Bounds, decode, encode
from splitrelay.network.grpc_options import PLAIN, SERVICE
from splitrelay.network.messages import Bye, Cancel, Heartbeat, Message, Refuse
from splitrelay.network.protocol import Conversation, End, Verdict

__all__ = ["Ended", "Link", "LinkLost", "Meter", "Refused", "TakenBack", "channel"]

OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before it
)


def channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A way to a server: over mutual TLS, or, where nobody else listens, without."""
    refuse_no_address(address)
    if credentials is None:
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, credentials, OPTIONS)


class Refused(WorkError):
    """The server said no; `final` where it will say so again, so that the request was wrong."""

    def __init__(self, why: str, final: bool) -> None:
        super().__init__(f"the server refused: {why}")
        self.final = final
        self.exit_code = InputError.exit_code if final else WorkError.exit_code


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
    """One stream to the server, in words: each is held against the table, whoever says it."""

    def __init__(
        self,
        channel: grpc.Channel,
        heartbeat: float = limits.HEARTBEAT,
        meter: Meter | None = None,
        address: str = "",
        stop: Event | None = None,
        grace: float = limits.GRACE,
    ) -> None:
        self.channel, self.meter = channel, meter or Meter()
        self.talk = Conversation(End.CLIENT)
        self.bounds: Bounds = ANY
        self.stream = Stream(channel.stream_stream(f"/{SERVICE}/Join"), heartbeat, _beat, address, stop, grace)
        self._come: Message | None = None  # while we waited for nothing in particular

    def send(self, message: Message) -> None:
        """Say something."""
        self.talk.say(message)
        frame = encode(message)
        self.stream.put(frame)
        self.meter.messages += 1
        self.meter.sent += len(frame)

    def receive(self, timeout: float | None = None) -> Message:
        """The server's next word; LinkLost where none comes in time, which counts from when we have said our own."""
        began, patience = time.monotonic(), math.inf if timeout is None else timeout
        message, self._come = self._come, None
        while message is None:
            message = self._new(self.stream.read(max(began, self.stream.left) + patience))
        self.meter.waiting += time.monotonic() - began
        return _checked(message)

    def waits(self, seconds: float) -> bool:
        """Whether there is a word within so many seconds; LinkLost where there will be none."""
        until = time.monotonic() + seconds
        while self._come is None and self.stream.waits(max(until - time.monotonic(), 0.0)):
            self._come = self._new(self.stream.read())
        return self._come is not None

    def close(self) -> None:
        """Hang up."""
        self.stream.close()
        self.channel.close()

    def _new(self, frame: bytes) -> Message | None:
        """What is said in a frame; None where it has been heard before, or says only that the server is there."""
        self.meter.received += len(frame)
        message = decode(frame, self.bounds)
        verdict = self.talk.hear(message)
        return message if verdict is Verdict.NEW and not isinstance(message, Heartbeat) else None


def _beat(number: int) -> bytes:
    return encode(Heartbeat(number))


def _checked(message: Message) -> Message:
    """A word that ends something is an error, so that it ends it wherever it is heard."""
    if isinstance(message, Refuse):
        raise Refused(message.why, message.final)
    if isinstance(message, Bye):
        raise Ended(message.why, message.again)
    if isinstance(message, Cancel):
        raise TakenBack(message.why or "the visit was taken back")
    return message
