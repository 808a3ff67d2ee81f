"""Check every message that the server receives, and answer it or pass it on to the training thread.

This module does no input or output. It puts replies into the queue of the connection, and events into the EventQueue.
Everything runs on the event loop, except grant and release, which the training thread calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np

from splitrelay import __version__
from splitrelay.errors import WorkError
from splitrelay.network import limits
from splitrelay.network.codec import HEADER, LABEL, NUMBER, VERSION, BadMessage, Bounds, OtherVersion
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import (
    Accept,
    Chunk,
    Deposit,
    Fail,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Ready,
    Refuse,
    Resume,
    Terms,
    UsageReport,
    Welcome,
    get_fence,
)
from splitrelay.network.protocol import Conversation, End, State, Verdict
from splitrelay.network.shared_event_loop import (
    Answer,
    ClientConnected,
    ClientDisconnected,
    EventQueue,
    MessageReceived,
    SharedLoop,
)
from splitrelay.network.tensor_transfer import Assembly

EVALUATOR_NUMBER = limits.CLIENTS  # the number of an evaluator that is none of the clients
FED_SERVER_NUMBER = limits.CLIENTS + 1  # that of the fed server


class TooManyConnections(WorkError):
    """There are too many connections now; a later attempt may succeed."""


class ClientRejected(WorkError):
    """This client cannot take part; another attempt does not help."""


@dataclass(eq=False)
class ServerConnection:
    """One connection, as the event loop sees it."""

    number: int
    context: Any
    task: asyncio.Task[None]
    peer: str
    connected_at: float
    received_at: float
    certificate: bytes = b""  # its certificate
    version: int = VERSION  # of the protocol; another one is only refused
    m: int = -1
    hello: Hello | None = None
    address: str = ""  # where other clients reach it
    answered: int = 0  # steps of a resumed visit
    conversation: Conversation = field(default_factory=lambda: Conversation(End.SERVER))
    half: Assembly | None = None
    stale: int = 0  # the last visit of which a word came too late
    why: str = "the link was lost"  # it is over
    final: bool = False  # and need not be tried again
    refused: bool = False  # for what it said
    sent_at: float = 0.0  # when it last heard from us
    queued_chunks: int = 0  # chunks that are still to be said
    down: int = 0  # bytes of the half that it was last granted, as far as they have left
    outgoing: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue)
    write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the task that writes
    received: int = 0
    sent: int = 0
    messages: int = 0
    descriptor: int = -1  # of its socket, see metering
    bytes: tuple[int, int] | None = None
    counted: int = 0  # of those that came, when they were last looked at
    idle_messages: float = Limits.idle_messages  # that it may still send without getting any further
    idle_since: float = 0.0  # when they were last counted
    paid_fence: int = -1  # of the visit in which it last said what it has cost

    @property
    def transferred(self) -> tuple[int, int]:
        """Bytes of halves, up and down, of what was last granted: it grows while they are on their way."""
        return 0 if self.half is None else self.half.length, self.down

    @cached_property
    def source(self) -> str:
        """Name the peer for the rate limits of events: by its certificate, or by its host where it shows none."""
        if self.certificate:
            return hashlib.sha256(self.certificate).hexdigest()
        return unquote(self.peer).rpartition(":")[0]  # every connection has another port

    def auth_context(self) -> dict[str, list[Any]]:
        """Return the certificate. Do not ask gRPC for it: after the end of the call that crashes the process."""
        return {"x509_pem_cert": [self.certificate]} if self.certificate else {}


@dataclass(frozen=True)
class ServerContext:
    """What a server accepts: its terms, its clients, the sizes of messages, limits and timeouts."""

    terms: Terms
    bounds: Bounds
    half: int  # bytes that a deposit may have
    clients: int  # M
    admit: Callable[[Any, Hello], str | None] = lambda caller, hello: None  # a reason to refuse, or None
    check_accept: Callable[[Hello, Accept], str | None] = lambda hello, accept: None
    judge: bool = False  # whether an evaluator is expected that is none of the clients
    fed: bool = False  # whether a fed server is
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def largest(self) -> int:
        """The bytes of the longest message that a client may send."""
        bounds = self.bounds
        number = 8 if bounds.dtype is None else np.dtype(bounds.dtype).itemsize
        sample = limits.MESSAGE if bounds.h is None else number * math.prod(bounds.h) + LABEL.itemsize
        buffer = max(limits.CHUNK, limits.CONTROL, max(bounds.batch, bounds.look) * sample + NUMBER.itemsize)
        return min(limits.MESSAGE, HEADER.size + buffer)


class ConnectionHandler:
    """All connections of a server, and what is done with their messages."""

    def __init__(self, context: ServerContext, note: Callable[..., None], loop: SharedLoop) -> None:
        self.context, self.note = context, note
        self.inbox = EventQueue(loop)
        self.clients: dict[int, ServerConnection] = {}  # by client
        self.connections: dict[int, ServerConnection] = {}  # by number, strangers too
        self.paid: dict[int, UsageReport] = {}  # what each client last said that it has cost it
        self._grants: dict[int, tuple[int, int]] = {}  # client: (fence, steps answered)
        self._lock = threading.Lock()

    def grant(self, m: int, fence: int, answered: int) -> None:
        """Let client m resume the visit with this fence; called by the training thread."""
        with self._lock:
            self._grants[m] = (fence, answered)

    def release(self, m: int, fence: int | None = None) -> None:
        """Do not let client m resume the visit with this fence, or any visit."""
        with self._lock:
            if fence is None or self._grants.get(m, (0, 0))[0] == fence:
                self._grants.pop(m, None)

    def address(self, m: int) -> str:
        """Return the address under which other clients reach client m; empty if there is none."""
        link = self.clients.get(m)
        return "" if link is None else link.address

    def add(self, link: ServerConnection) -> None:
        """Add a connection. Raises TooManyConnections."""
        self.connections[link.number] = link
        strangers = [other for other in self.connections.values() if self.clients.get(other.m) is not other]
        if len(strangers) > self.context.limits.handshakes:
            raise TooManyConnections("too many handshakes at once", limit=f"<= {self.context.limits.handshakes}")
        most = self.context.limits.handshakes_per_certificate
        if link.certificate and sum(other.certificate == link.certificate for other in strangers) > most:
            raise TooManyConnections("too many handshakes under one certificate", limit=f"<= {most}")

    def handle_message(self, link: ServerConnection, message: Message) -> Answer | None:
        """Handle a message. Return the answer if it was computed inline.

        Raises:
            BadMessage: the message is not allowed; the connection ends.
            ClientRejected: the client may not take part.
        """
        if isinstance(message, Ready) and link.queued_chunks and message.fence == link.conversation.fence:
            raise BadMessage(
                "ready was said before the half had come", value=link.queued_chunks, limit="no chunk on its way"
            )
        verdict = link.conversation.record_received(message)
        if _is_idle(link, message, verdict):
            self._count_idle(link)
        if verdict is Verdict.STALE:
            self._note_stale(link, message)
        elif isinstance(message, Heartbeat):
            pass  # it was heard, which is all
        elif isinstance(message, Hello):
            self._handle_hello(link, message)
        elif isinstance(message, Accept):
            self._handle_accept(link, message)
        elif isinstance(message, UsageReport):
            self.paid[link.m], link.paid_fence = message, link.conversation.fence
        elif isinstance(message, Leave):
            self.note("left", source=link.source, client=link.m, why=message.why)
        elif isinstance(message, Chunk):
            link.half = link.half if message.k else Assembly(self.context.half)
            if link.half is None:
                raise BadMessage("chunks out of order", value=message.k, limit=0)
            link.half.add(message)
        elif isinstance(message, Deposit):
            self.check_admission(link)
            half = (link.half or Assembly(0)).blob(message.bytes, message.sha256)
            link.half = None
            self.release(link.m, message.fence)  # it counts or it does not: a client that returns with it starts afresh
            return self._pass_on(link, MessageReceived(link.m, link.number, message, half))
        else:
            return self._pass_on(link, MessageReceived(link.m, link.number, message))
        return None

    def _count_idle(self, link: ServerConnection) -> None:
        """Raise BadMessage if a client sends too many messages without progress."""
        most, rate = self.context.limits.idle_messages, self.context.limits.idle_rate
        refilled = link.idle_messages + (link.received_at - link.idle_since) * rate
        link.idle_messages, link.idle_since = min(refilled, most) - 1, link.received_at
        if link.idle_messages < 0:
            raise BadMessage("too many messages without progress", limit=f"<= {rate:g} a second")

    def check_admission(self, link: ServerConnection) -> None:
        """Raise ClientRejected if the client was revoked; checked at every lease and deposit."""
        why = None if link.hello is None else self.context.admit(link, link.hello)
        if why is not None:
            raise ClientRejected(why)

    def _pass_on(self, link: ServerConnection, heard: MessageReceived) -> Answer | None:
        unheard = 0 if isinstance(heard.message, Fail) else link.outgoing.qsize()  # of what is said, it must hear us
        if max(self.inbox.count_unread(heard.link), unheard) >= self.context.limits.unanswered:
            raise BadMessage(
                "too many messages at once", limit=f"<= {self.context.limits.unanswered} that are not answered"
            )
        answer = self.inbox.answer(heard)
        if answer is None:
            self.inbox.put(heard)
        return answer

    def _note_stale(self, link: ServerConnection, message: Message) -> None:
        """Record a late message, once for each visit: a client that repeats it must not fill the disk."""
        if link.stale < get_fence(message):
            link.stale = get_fence(message)
            self.note("stale", source=link.source, client=link.m, word=message.event)

    def refuse(self, link: ServerConnection, why: str, *, final: bool = False) -> None:
        """Refuse a client and end its connection. The protocol table is not checked: it may be the reason."""
        self.note("refused", source=link.source, client=link.m, peer=link.peer, why=why)
        link.why, link.final, link.refused = why, final, True
        link.conversation.state = State.REFUSED
        link.outgoing.put_nowait(Refuse(why[: limits.TEXT], final))
        link.outgoing.put_nowait(None)

    def refuse_version(self, link: ServerConnection, error: OtherVersion) -> None:
        """Refuse a program of another version for good, in the version that it can read."""
        link.version = error.version
        self.refuse(link, describe_version_conflict(error.version, error.said), final=True)

    def remove(self, link: ServerConnection) -> None:
        """Remove a connection that has ended."""
        self.connections.pop(link.number, None)
        if self.clients.get(link.m) is link:
            del self.clients[link.m]
            self.inbox.put(ClientDisconnected(link.m, link.number, link.why, link.final, link.refused))

    def _handle_hello(self, link: ServerConnection, hello: Hello) -> None:
        why = self.context.admit(link, hello)
        if hello.version != VERSION:
            why = describe_version_conflict(hello.version, hello)
        elif hello.client == EVALUATOR_NUMBER and not self.context.judge:
            why = "the evaluator of this run is one of its clients; serve --judge expects another"
        elif hello.client == FED_SERVER_NUMBER and not self.context.fed:
            why = "this run has no fed server; serve --fed-server expects one"
        elif self.context.clients <= hello.client < EVALUATOR_NUMBER:
            why = f"there is no client {hello.client}: this run has clients 0 to {self.context.clients - 1}"
        if why is not None:
            raise ClientRejected(why)
        link.hello = hello
        link.outgoing.put_nowait(self.context.terms)

    def _handle_accept(self, link: ServerConnection, accept: Accept) -> None:
        assert link.hello is not None  # the table has seen it
        self.check_admission(link)
        why = self.context.check_accept(link.hello, accept)
        if why is not None:
            raise ClientRejected(why)
        link.m = link.hello.client
        if accept.check:
            link.outgoing.put_nowait(Welcome("all is well"))
            return
        before = self.clients.pop(link.m, None)
        if before is not None:  # its end may not have been noticed yet
            self.refuse(before, "the client came back on another link")
            self.inbox.put(ClientDisconnected(before.m, before.number, "the client came back on another link"))
        self.inbox.expect(link.number)
        self.clients[link.m], link.address = link, accept.address
        with self._lock:
            fence, answered = self._grants.get(link.m, (0, 0))
        resumed = 0 < fence == accept.fence and accept.k in (answered, answered - 1)
        link.answered = answered
        link.outgoing.put_nowait(Resume(fence) if resumed else Welcome())
        self.inbox.put(ClientConnected(link.m, link.number, accept, resumed, link.hello.software))


def _is_idle(link: ServerConnection, message: Message, verdict: Verdict) -> bool:
    """Whether a message does not bring the run any further; chunks of a visit that was taken back may be many."""
    if isinstance(message, UsageReport):
        return link.paid_fence == link.conversation.fence
    return isinstance(message, Heartbeat) or (verdict is not Verdict.NEW and not isinstance(message, Chunk))


def describe_version_conflict(version: int, said: Message | None) -> str:
    """Say which versions the two ends have, and which one to install where."""
    software = said.software if isinstance(said, Hello) and said.software else "another splitrelay"
    ours = f"this server has splitrelay {__version__} with version {VERSION} of the protocol"
    return f"{ours}, this client {software} with version {version}. Install splitrelay {__version__} at the client."
