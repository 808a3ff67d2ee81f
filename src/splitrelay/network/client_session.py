"""A client's session with the server: blocking calls, and a new connection whenever one is lost.

    RemoteServerHalf.step -> Session.exchange -> Connection.send, receive -> Stream.put, read -> gRPC

`RemoteServerHalf` is the client's end of the inner seam. `Session` lasts as long as the client takes part. `Connection`
checks each message against the protocol table, and `Stream` passes frames to gRPC. The thread that waits for a frame
reads it itself, because a change of threads would take longer than everything else that is done with a message.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event
from typing import Any

import grpc
import numpy as np

from splitrelay.engine.base import LOWER_ETA, Reply
from splitrelay.errors import Diverged
from splitrelay.network import messages
from splitrelay.network.background_reader import BackgroundReader
from splitrelay.network.codec import ANY, VERSION, BadMessage, Bounds, decode, encode, is_finite_array
from splitrelay.network.grpc_channel import (
    SERVICE,
    AnswerLost,
    AnswerTimeout,
    ClientStopped,
    ConnectionLost,
    ServerEnded,
    ServerNotFound,
    ServerRefused,
    SilenceTimeout,
    UnknownHost,
    UntrustedServer,
    VisitCancelled,
    explain_loss,
    is_final,
)
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Accept, Bye, Cancel, Heartbeat, Hello, Leave, Message, Refuse, Resume, Terms
from splitrelay.network.protocol import Conversation, End, Verdict

REFUSALS = 5  # in a row, after which trying again makes no sense


@dataclass
class TrafficMeter:
    """Messages and bytes over all connections of this client, and the seconds spent waiting for the server."""

    messages: int = 0
    sent: int = 0
    received: int = 0
    waiting: float = 0.0


class Stream:
    """A bidirectional call. One thread sends and reads. Another one checks the timeouts and sends heartbeats."""

    def __init__(
        self,
        call: Any,
        beat: Callable[[int], bytes],
        timeouts: Timeouts = Timeouts(),
        address: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        """Start the call. The stream ends `timeouts.grace` seconds after `stop` is set."""
        self.timeouts, self.heartbeat, self._beat, self._address = timeouts, timeouts.heartbeat, beat, address
        self._stop = stop or threading.Event()
        self._outgoing: SimpleQueue[tuple[bytes | None, bool]] = SimpleQueue()  # and whether it was put
        self._leaving = False  # the frame that is about to leave was put
        self._sent = threading.Event()
        self._over = threading.Event()
        self._heard = self.left = time.monotonic()  # when a frame last came, and when one that was put last left
        self._limit = math.inf  # when the reader has waited for too long
        self._background: BackgroundReader | None = None
        self._ended = threading.Event()
        self._frames: Any = call(iter(self._get_next_outgoing, None))
        self._frames.add_callback(self._handle_end)
        threading.Thread(target=self._watch_clock, name="heartbeat", daemon=True).start()

    def put(self, frame: bytes) -> None:
        """Queue a frame."""
        self._sent.clear()
        self._outgoing.put((frame, True))

    def flush(self) -> None:
        """Wait until all frames were given to gRPC: other Python code would delay them."""
        if self._frames.is_active():
            self._sent.wait(self.timeouts.tick)

    def finish(self) -> None:
        """End our side and wait a moment for the server: closing at once would drop queued frames."""
        self._outgoing.put((None, False))
        if self._frames.is_active():
            self._ended.wait(2 * self.timeouts.tick)

    def read(self, until: float = math.inf) -> bytes:
        """Return the next frame. Raises ConnectionLost if none comes until then, or for `timeouts.silence`."""
        if self._background is not None and self._background.is_reading:
            while not self.wait_for_frame(self.timeouts.tick):
                if time.monotonic() > until:
                    raise _build_timeout_error(asked=True)
            return self._background.take()
        self._limit = min(until, time.monotonic() + self.timeouts.silence)
        try:
            return self._read_next(until)
        finally:
            self._limit = math.inf

    def wait_for_frame(self, seconds: float) -> bool:
        """Return whether a frame comes within so many seconds. A background thread reads it, so this cannot hang."""
        if self._background is None:
            self._background = BackgroundReader(self._read_next)
        if self._background.wait_for_frame(seconds):
            return True
        if time.monotonic() > self._heard + self.timeouts.silence:
            raise _build_timeout_error(asked=False)
        return False

    def close(self) -> None:
        """Close the stream."""
        self._over.set()
        self._outgoing.put((None, False))
        self._frames.cancel()
        if self._background is not None:
            self._background.close()

    def _read_next(self, until: float = math.inf) -> bytes:
        try:
            frame: bytes = next(self._frames)
        except StopIteration:
            raise ConnectionLost("the server hung up") from None
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed by us
            if time.monotonic() > self._limit:
                raise _build_timeout_error(asked=self._limit == until) from None
            raise explain_loss(error.details() if isinstance(error, grpc.Call) else str(error), self._address) from None
        self._heard = time.monotonic()
        return frame

    def _get_next_outgoing(self) -> bytes | None:
        """Return the next frame for gRPC, which asks after it has sent the one before."""
        if self._leaving:
            self.left = time.monotonic()
        if self._outgoing.empty():
            self._sent.set()
        frame, self._leaving = self._outgoing.get()
        return frame

    def _handle_end(self) -> None:
        self._ended.set()
        self._sent.set()  # nothing leaves on a stream that is over

    def _watch_clock(self) -> None:
        number, last, stopped = 0, time.monotonic(), math.inf
        while not self._over.wait(min(self.timeouts.tick, max(last + self.heartbeat - time.monotonic(), 0.0))):
            now = time.monotonic()
            stopped = min(stopped, now) if self._stop.is_set() else math.inf
            if now > self._limit or now - stopped >= self.timeouts.grace:
                self._frames.cancel()  # the reader learns why
            if now >= last + self.heartbeat:
                number, last = number + 1, now
                self._outgoing.put((self._beat(number), False))  # every state allows it, none changes


def _build_timeout_error(asked: bool) -> ConnectionLost:
    return AnswerTimeout("the server does not answer") if asked else SilenceTimeout("the server sends nothing any more")


class Connection:
    """One connection to the server. Each message is checked against the protocol table, in both directions."""

    def __init__(
        self,
        channel: grpc.Channel,
        timeouts: Timeouts = Timeouts(),
        meter: TrafficMeter | None = None,
        address: str = "",
        stop: Event | None = None,
    ) -> None:
        self.channel, self.meter = channel, meter or TrafficMeter()
        self.conversation = Conversation(End.CLIENT)
        self.bounds: Bounds = ANY
        call = channel.stream_stream(f"/{SERVICE}/Join")
        self.stream = Stream(call, lambda number: encode(Heartbeat(number)), timeouts, address, stop)
        self._pending: Message | None = None  # while we waited for nothing in particular

    def send(self, message: Message) -> None:
        """Send a message."""
        self.conversation.record_sent(message)
        frame = encode(message)
        self.stream.put(frame)
        self.meter.messages += 1
        self.meter.sent += len(frame)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message of the server.

        Args:
            timeout: seconds, counted from when our last message was sent; None waits until the connection is lost.

        Raises:
            ConnectionLost: no message came in time.
            ServerRefused, ServerEnded, VisitCancelled: the message ends the session or the visit.
        """
        began, patience = time.monotonic(), math.inf if timeout is None else timeout
        message, self._pending = self._pending, None
        while message is None:
            message = self._read_message(max(began, self.stream.left) + patience)
        self.meter.waiting += time.monotonic() - began
        if isinstance(message, Refuse):
            raise ServerRefused(message.why, message.final)
        if isinstance(message, Bye):
            raise ServerEnded(message.why, message.again)
        if isinstance(message, Cancel):
            raise VisitCancelled(message.why or "the visit was taken back")
        return message

    def wait_for_message(self, seconds: float) -> bool:
        """Return whether a message comes within so many seconds. Raises ConnectionLost."""
        until = time.monotonic() + seconds
        while self._pending is None and self.stream.wait_for_frame(max(until - time.monotonic(), 0.0)):
            self._pending = self._read_message()
        return self._pending is not None

    def close(self) -> None:
        """Close the stream and the channel."""
        self.stream.close()
        self.channel.close()

    def _read_message(self, until: float = math.inf) -> Message | None:
        """Read a frame. Return None for a repeated message and for a heartbeat."""
        frame = self.stream.read(until)
        self.meter.received += len(frame)
        message = decode(frame, self.bounds)
        verdict = self.conversation.record_received(message)
        return message if verdict is Verdict.NEW and not isinstance(message, Heartbeat) else None


@dataclass
class HeldVisit:
    """The current visit of the client: its fence, and how many of its steps were answered."""

    fence: int = 0
    k: int = 0
    losses: int = 0  # connections that were lost during it


Agree = Callable[[Terms], Accept]


class Session:
    """A client's session with the server, over as many connections as it needs.

    A lost connection is made again, with growing pauses, and a visit continues where it was.
    """

    def __init__(
        self,
        client: int,
        dial: Callable[[], grpc.Channel],
        agree: Agree,
        *,
        software: str = "",
        patience: float = 0.0,
        stop: Event | None = None,
        address: str = "",
        timeouts: Timeouts = Timeouts(),
        limits: Limits = Limits(),
        note: Callable[[str], None] = lambda text: None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.timeouts, self.limits = timeouts, limits
        self.note, self.warn = note, warn or note  # `warn` gets problems that need the user
        self.client, self.dial, self.agree, self.software = client, dial, agree, software
        self.address = address  # HOST:PORT that is dialed, for messages
        self.welcomed = False  # at least once: a server that TLS refuses later may be mended
        self.stop = stop or Event()  # a client that cannot connect gives up when it is set
        self.patience = patience  # seconds without a server after which the client gives up; 0: never
        self.holding = HeldVisit()
        self.meter = TrafficMeter()
        self.bounds: Bounds = ANY
        self.connection: Connection | None = None
        self.connection_count = 0
        self.fruitless = 0  # connections in a row on which no request was completed

    def reconnect(self) -> None:
        """Connect again, after a pause if earlier ones were of no use: another program may have our keys."""
        self._pause(self.fruitless)
        self.fruitless += 1
        self.connect()

    def connect(self) -> bool:
        """Connect and do the handshake, with retries. Return whether the held visit continues.

        Raises:
            ServerNotFound: there was no server within `patience` seconds.
            ClientStopped: `stop` was set meanwhile.
            ServerRefused, ServerEnded, UntrustedServer: another attempt would not help.
        """
        wait, longest = self.timeouts.first_retry, self.timeouts.longest_retry
        began, refusals = time.monotonic(), 0
        while True:
            self._check_stop()
            try:
                return self._make_handshake()
            except (ConnectionLost, ServerRefused, ServerEnded) as error:
                refusals += isinstance(error, ServerRefused)
                stranger = isinstance(error, UntrustedServer) and not self.welcomed
                if is_final(error) or stranger or refusals >= REFUSALS:
                    raise
                if 0 < self.patience < time.monotonic() - began:
                    raise ServerNotFound(f"no server within {self.patience:g} seconds", value=str(error)) from None
                is_first = wait == self.timeouts.first_retry
                said = self.warn if is_first and isinstance(error, UnknownHost | UntrustedServer) else self.note
                said(f"no connection yet: {error}; trying again in {wait:.1f} s")
            if self.stop.wait(wait):
                raise ClientStopped("told to stop before a server was found")
            self.meter.waiting += wait
            wait = min(2 * wait, longest)

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def leave(self, why: str) -> None:
        """Tell the server that this client leaves, if there is a connection."""
        if self.connection is not None:
            self.connection.send(Leave(why))
            self.connection.stream.finish()

    def send(self, *messages: Message) -> None:
        """Send messages on the current connection."""
        assert self.connection is not None
        for message in messages:
            self.connection.send(message)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message of the server (see Connection.receive)."""
        assert self.connection is not None
        return self.connection.receive(timeout)

    def exchange(
        self,
        messages: Sequence[Message],
        timeout: float,
        fence: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Message:
        """Send messages and return the answer, over a new connection if this one is lost.

        Args:
            messages: sent again for each attempt.
            timeout: seconds for the answer.
            fence: of the answer; that of the current visit unless given.
            meanwhile: work to do while the answer is on its way.

        Raises:
            VisitCancelled: the visit does not continue.
            AnswerLost: so it is, and the messages were sent before.
            ConnectionLost: too many connections were lost in one visit.
        """
        fence, tries = fence or self.holding.fence, 0
        while True:
            try:
                if self.connection is None and not self.connect():
                    kind = AnswerLost if tries else VisitCancelled
                    raise kind("the visit was cancelled while the connection was lost")
                assert self.connection is not None
                self.send(*messages)
                self.connection.stream.flush()
                if meanwhile is not None:
                    meanwhile()
                while (answer := self.receive(timeout)).fence != fence:
                    pass
                return answer
            except (ConnectionLost, ServerEnded, ServerRefused) as error:
                self.disconnect()
                self._check_stop()
                if is_final(error) or (isinstance(error, ServerRefused) and tries >= REFUSALS):
                    raise
                self.holding.losses += 1
                if self.holding.losses > self.limits.connections_without_progress:
                    raise ConnectionLost(f"{self.holding.losses} connections were lost in one visit") from None
                self.note(f"{error}; connecting again")
            self._pause(tries)
            tries += 1

    def _check_stop(self) -> None:
        """Raise ClientStopped if the client was told to stop."""
        if self.stop.is_set():
            raise ClientStopped("told to stop")

    def _pause(self, tries: int) -> None:
        """Wait before an attempt: not before the first one, then longer each time."""
        if tries and self.stop.wait(self.timeouts.compute_pause(tries)):
            raise ClientStopped("told to stop before it was connected again")

    def _make_handshake(self) -> bool:
        self.disconnect()
        self.connection = Connection(self.dial(), self.timeouts, self.meter, self.address, self.stop)
        self.connection_count += 1
        self.connection.send(Hello(VERSION, self.client, self.software))
        terms = self.connection.receive(self.timeouts.handshake)
        assert isinstance(terms, Terms)  # the table allows nothing else
        accept = self.agree(terms)
        self.connection.stream.heartbeat = terms.heartbeat
        self.connection.send(Accept(**{**vars(accept), "fence": self.holding.fence, "k": self.holding.k}))
        answer = self.connection.receive(self.timeouts.handshake)
        self.connection.bounds = self.bounds
        self.welcomed = True
        if isinstance(answer, Resume):
            self.connection.conversation.set_answered(self.holding.k)
            return True
        assert isinstance(answer, messages.Welcome)
        self.holding = HeldVisit()
        return False


class RemoteServerHalf:
    """The server half during one visit, on another host (engine.base.ServerHalf).

    Args:
        session: The session with the server.
        lease: The visit.
        prepare_next: Called at each step while the reply is on its way.
    """

    def __init__(self, session: Session, lease: messages.Lease, prepare_next: Callable[[], None] | None = None) -> None:
        self.session, self.fence, self.lease, self.prepare_next = session, lease.fence, lease, prepare_next
        self.steps = 0  # that were sent
        self.closing: messages.Finish | None = None

    def step(self, k: int, h: Any, labels: Any, norm2: float, /) -> Reply[Any]:
        """Send the step and wait for the reply, over a new connection if this one is lost."""
        if not is_finite_array(h):  # the server would refuse it at each attempt
            where = f"the smashed data of client {self.lease.m} overflowed in round {self.lease.r}, step {k}"
            raise Diverged(f"{where}, at eta={self.lease.eta:g}", hint=LOWER_ETA)
        self.steps += 1
        labels = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int32)  # four bytes each on the wire
        step = messages.Step(self.fence, k, h, labels, norm2)
        reply = self.session.exchange([step], self.session.timeouts.step, meanwhile=self.prepare_next)
        assert isinstance(reply, messages.Reply) and reply.k == k  # the table allows nothing else
        if reply.gradient.shape != h.shape or reply.gradient.dtype != h.dtype:
            raise BadMessage("the gradient at the cut", value=reply.gradient.shape, limit=f"{h.dtype} {h.shape}")
        self.session.holding.k = k + 1
        return Reply(reply.gradient, reply.norms, reply.loss)

    def finish(self, norm2: float, /) -> None:
        """Keep the message: it is sent together with the half."""
        self.closing = messages.Finish(self.fence, self.session.holding.k, norm2)
