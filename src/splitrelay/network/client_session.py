"""A client's connection to the server: blocking calls, and a new connection whenever one is lost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from types import TracebackType

import grpc

from splitrelay.errors import InputError, SplitrelayError, WorkError
from splitrelay.network.client_stream import Stream
from splitrelay.network.codec import ANY, VERSION, Bounds, decode, encode
from splitrelay.network.grpc_channel import SERVICE, ConnectionLost, UnknownHost, UntrustedServer
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import (
    Accept,
    Bye,
    Cancel,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refuse,
    Resume,
    Terms,
    Welcome,
    get_fence,
)
from splitrelay.network.protocol import Conversation, End, Verdict

REFUSALS = 5  # in a row, after which trying again makes no sense


class ServerRefused(WorkError):
    """The server refused this client. If `final`, trying again makes no sense."""

    def __init__(self, why: str, final: bool) -> None:
        super().__init__(f"the server refused: {why}")
        self.final = final
        self.exit_code = InputError.exit_code if final else WorkError.exit_code


class ServerEnded(SplitrelayError):
    """The server has closed the run. If `again`, it will come back."""

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


class VisitCancelled(SplitrelayError):
    """The server has cancelled the visit. Its results are not used."""


class ServerNotFound(WorkError):
    """No server was found within the time that the client waits."""


class ClientStopped(SplitrelayError):
    """The client was stopped while it connected."""


@dataclass
class TrafficMeter:
    """Messages and bytes over all connections of this client, and the seconds spent waiting for the server."""

    messages: int = 0
    sent: int = 0
    received: int = 0
    waiting: float = 0.0


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
        self.stream = Stream(channel.stream_stream(f"/{SERVICE}/Join"), _encode_heartbeat, timeouts, address, stop)
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
            message = self._new(self.stream.read(max(began, self.stream.left) + patience))
        self.meter.waiting += time.monotonic() - began
        return _raise_if_end(message)

    def wait_for_message(self, seconds: float) -> bool:
        """Return whether a message comes within so many seconds. Raises ConnectionLost."""
        until = time.monotonic() + seconds
        while self._pending is None and self.stream.wait_for_frame(max(until - time.monotonic(), 0.0)):
            self._pending = self._new(self.stream.read())
        return self._pending is not None

    def close(self) -> None:
        """Close the stream and the channel."""
        self.stream.close()
        self.channel.close()

    def _new(self, frame: bytes) -> Message | None:
        """Decode a frame. Return None for a repeated message and for a heartbeat."""
        self.meter.received += len(frame)
        message = decode(frame, self.bounds)
        verdict = self.conversation.record_received(message)
        return message if verdict is Verdict.NEW and not isinstance(message, Heartbeat) else None


def _encode_heartbeat(number: int) -> bytes:
    return encode(Heartbeat(number))


def _raise_if_end(message: Message) -> Message:
    """Raise an error for a message that ends the session or the visit, wherever it is received."""
    if isinstance(message, Refuse):
        raise ServerRefused(message.why, message.final)
    if isinstance(message, Bye):
        raise ServerEnded(message.why, message.again)
    if isinstance(message, Cancel):
        raise VisitCancelled(message.why or "the visit was taken back")
    return message


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
    ) -> None:
        self.timeouts, self.limits = timeouts, limits
        self.client, self.dial, self.agree, self.software = client, dial, agree, software
        self.address = address  # HOST:PORT that is dialed, for messages
        self.welcomed = False  # at least once: a server that TLS refuses later may be mended
        self.stop = stop or Event()  # a client that cannot connect gives up when it is set
        self.patience = patience  # seconds without a server after which the client gives up; 0: never
        self.holding = HeldVisit()
        self.meter = TrafficMeter()
        self.bounds: Bounds = ANY
        self.connection: Connection | None = None
        self.note: Callable[[str], None] = lambda text: None
        self.warn: Callable[[str], None] = lambda text: self.note(text)  # what somebody must see to
        self.links = 0
        self.fruitless = 0  # links in a row on which nothing was asked of us

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
                return self._handshake()
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
        messages: Callable[[], Iterator[Message]],
        timeout: float,
        fence: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Message:
        """Send messages and return the answer, over a new connection if this one is lost.

        Args:
            messages: makes the messages; called again for each attempt.
            timeout: seconds for the answer.
            fence: of the answer; that of the current visit unless given.
            meanwhile: work to do while the answer is on its way.

        Raises:
            VisitCancelled: the visit does not continue.
            ConnectionLost: too many connections were lost in one visit.
        """
        fence, tries = fence or self.holding.fence, 0
        while True:
            try:
                if self.connection is None and not self.connect():
                    raise VisitCancelled("the visit was cancelled while the connection was lost")
                assert self.connection is not None
                self.send(*messages())
                self.connection.stream.flush()
                if meanwhile is not None:
                    meanwhile()
                return self._answer(fence, timeout)
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

    def _answer(self, fence: int, timeout: float) -> Message:
        while True:
            answer = self.receive(timeout)
            if get_fence(answer) == fence:
                return answer

    def _handshake(self) -> bool:
        self.disconnect()
        self.connection = Connection(self.dial(), self.timeouts, self.meter, self.address, self.stop)
        self.links += 1
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
        assert isinstance(answer, Welcome)
        self.holding = HeldVisit()
        return False


def is_final(error: SplitrelayError) -> bool:
    """Return whether another connection would not help."""
    return (isinstance(error, ServerRefused) and error.final) or (isinstance(error, ServerEnded) and not error.again)


class BackgroundReconnect:
    """Keep the connection while the client computes for long: another thread owns the session meanwhile."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tending, name="tending", daemon=True)
        self._failure: SplitrelayError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _tending(self) -> None:
        try:
            while not self._done.wait(self.session.timeouts.tick):
                self._look()
        except SplitrelayError as error:  # raised in the computing thread, when it is done
            self._failure = error

    def _look(self) -> None:
        """Check the connection. Before the deposit the server sends only messages that end the visit or the session."""
        try:
            if self.session.connection is not None:
                if self.session.connection.wait_for_message(0.0):
                    self.session.connection.receive()
                return
        except (ConnectionLost, ServerEnded, ServerRefused) as error:
            if is_final(error):
                raise
            self.session.note(f"{error}; connecting again")
            self.session.disconnect()
        if not self.session.connect():
            raise VisitCancelled("the visit was cancelled while the connection was lost")
