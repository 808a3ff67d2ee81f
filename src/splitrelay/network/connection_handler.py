"""All connections of a server: read their messages, check them, answer them or pass them on, and write the replies.

    serve -> read -> decode -> handle_message -> EventQueue.answer, put -> training thread
    training thread -> send -> write -> encode -> gRPC

The training thread calls send, grant, release and the functions that start with `get`. Everything else runs on the
event loop. shared_event_loop explains which thread may do what.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from splitrelay.errors import SplitrelayError
from splitrelay.network import limits
from splitrelay.network.codec import VERSION, BadMessage, OtherVersion, decode, encode, rewrite_version
from splitrelay.network.messages import (
    Accept,
    Chunk,
    Deposit,
    EvaluationRequest,
    Fail,
    Heartbeat,
    Hello,
    Lease,
    Leave,
    Message,
    Ready,
    Refuse,
    Resume,
    Step,
    UsageReport,
    Welcome,
)
from splitrelay.network.protocol import OVER, State, Verdict
from splitrelay.network.server_connection import (
    EVALUATOR_NUMBER,
    FED_SERVER_NUMBER,
    ClientRejected,
    ServerConnection,
    ServerContext,
    TooManyConnections,
    describe_version_conflict,
)
from splitrelay.network.shared_event_loop import (
    Answer,
    ClientConnected,
    ClientDisconnected,
    EventQueue,
    MessageReceived,
    SharedLoop,
)
from splitrelay.network.tensor_transfer import Assembly, split_into_chunks

BROKEN = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)  # what reading or writing ends with
GRANTS = (Lease, EvaluationRequest, Resume)  # a client's certificate is checked again before it is given one
REPLACED = "the client came back on another connection"


class ConnectionHandler:
    """All connections of a server, and what is done with their messages."""

    def __init__(
        self,
        context: ServerContext,
        record: Callable[..., None],
        loop: SharedLoop,
        on_end: Callable[[ServerConnection], None] = lambda connection: None,
    ) -> None:
        """Start without connections.

        Args:
            context: What the server accepts.
            record: Records an event with its facts.
            loop: The event loop.
            on_end: Gets each connection that has ended.
        """
        self.context, self.limits, self.timeouts = context, context.limits, context.timeouts
        self.inbox = EventQueue(loop)
        self.clients: dict[int, ServerConnection] = {}  # by client
        self.by_number: dict[int, ServerConnection] = {}  # by number, also those without a complete handshake
        self.usage_reports: dict[int, UsageReport] = {}  # the last one of each client
        self._record, self._loop, self._on_end = record, loop, on_end
        self._grants: dict[int, tuple[int, int]] = {}  # client: (fence, steps answered)
        self._contacts: dict[int, float] = {}  # when a client that is away last sent something
        self._lock = threading.Lock()
        self._count = 0  # connections so far
        self._busy_at = 0.0  # when a rejected connection was last recorded

    # The training thread's side

    def send(self, number: int, *messages: Message) -> None:
        """Send messages on a connection. If it has ended, nothing happens: a ClientDisconnected event follows."""
        self._loop.call(self._enqueue, number, messages)

    def send_half(self, number: int, message: Lease | EvaluationRequest, half: bytes) -> None:
        """Send a message with the half that it announces, on a connection (see `send`)."""
        self.send(number, message, *split_into_chunks(message.fence, half, self.limits.piece))

    def grant(self, m: int, fence: int, answered: int = 0) -> None:
        """Let client m resume the visit with this fence after it reconnects, with so many steps answered."""
        with self._lock:
            self._grants[m] = (fence, answered)

    def release(self, m: int, fence: int | None = None) -> None:
        """End the visit of client m with this fence, or any visit: it cannot be resumed."""
        with self._lock:
            if fence is None or self._grants.get(m, (0, 0))[0] == fence:
                self._grants.pop(m, None)

    def get_clients(self) -> dict[int, int]:
        """Return the connected clients with the numbers of their connections."""
        return {m: connection.number for m, connection in list(self.clients.items())}

    def get_last_contacts(self) -> dict[int, float]:
        """Return when each client last sent something, by the monotonic clock. It may be away by now."""
        here = {m: connection.received_at for m, connection in list(self.clients.items())}
        return {**self._contacts, **here}

    def get_certificates(self) -> dict[int, bytes]:
        """Return the certificates of the connected clients, in PEM; none where the server runs without keys."""
        connections = list(self.clients.items())
        return {m: connection.certificate for m, connection in connections if connection.certificate}

    def get_announced_clients(self) -> dict[int, int]:
        """Return the connected clients whose ClientConnected event the training thread has read."""
        return {m: number for m, number in self.get_clients().items() if not self.inbox.is_unannounced(number)}

    def get_address(self, m: int) -> str:
        """Return the address under which other clients reach client m; empty if there is none."""
        connection = self.clients.get(m)
        return "" if connection is None else connection.address

    def get_transferred(self, number: int) -> tuple[int, int]:
        """Return the bytes, up and down, of the half that is in transfer on a connection."""
        connection = self.by_number.get(number)
        return (0, 0) if connection is None else connection.transferred

    # The loop's side: one connection from its start to its end

    async def serve(self, _: Any, context: Any) -> None:
        """Serve one connection; the gRPC method Join."""
        now, task = time.monotonic(), asyncio.current_task()
        assert task is not None
        self._count += 1
        certificate = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        connection = ServerConnection(self._count, context, task, context.peer(), now, now, certificate)
        writer = asyncio.ensure_future(self._write_queued(connection))
        try:
            self.add(connection)
            connection.why = await self._read(connection)
        except TooManyConnections as error:
            if now - self._busy_at > 1.0:  # many attempts must not fill the disk
                self._busy_at = now
                self.record("busy", source=connection.source, peer=connection.peer, why=str(error))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except OtherVersion as error:
            connection.version = error.version  # the refusal is written in the version that the program can read
            self.refuse(connection, describe_version_conflict(error.version, error.said), final=True)
        except (BadMessage, ClientRejected) as error:
            self.refuse(connection, str(error), final=isinstance(error, ClientRejected))
        except (asyncio.CancelledError, *BROKEN):
            pass
        finally:
            await self._end(connection, writer)

    def add(self, connection: ServerConnection) -> None:
        """Add a connection. Raises TooManyConnections."""
        self.by_number[connection.number] = connection
        unknown = [other for other in self.by_number.values() if self.clients.get(other.m) is not other]
        if len(unknown) > self.limits.handshakes:
            raise TooManyConnections("too many handshakes at once", limit=f"<= {self.limits.handshakes}")
        most, certificate = self.limits.handshakes_per_certificate, connection.certificate
        if certificate and sum(other.certificate == certificate for other in unknown) > most:
            raise TooManyConnections("too many handshakes under one certificate", limit=f"<= {most}")

    async def _read(self, connection: ServerConnection) -> str:
        """Read messages until the connection ends, and return the reason."""
        while connection.conversation.state not in OVER:
            frame = await connection.context.read()
            if frame is grpc.aio.EOF:
                return "the client hung up"
            connection.received_at = time.monotonic()
            connection.received += len(frame)
            connection.messages += 1
            if connection.conversation.state in OVER:
                break  # it was sent before the client could read that we have ended the conversation
            message = decode(frame, self.context.bounds)
            answer = self.handle_message(connection, message)
            if answer is not None:
                await self._write(connection, answer.message)
                self.inbox.run_after(answer)
            elif isinstance(message, Step):  # its answer goes first; the next turn of the loop may write it
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        return "the client left" if connection.conversation.state is State.LEFT else connection.why

    def _enqueue(self, number: int, messages: Sequence[Message]) -> None:
        connection = self.by_number.get(number)
        if connection is None:
            return
        for message in messages:
            connection.queued_chunks += isinstance(message, Chunk)
            connection.outgoing.put_nowait(message)

    async def _write_queued(self, connection: ServerConnection) -> None:
        """Write the queued messages of a connection in order; None ends it."""
        with suppress(*BROKEN):
            try:
                while (message := await connection.outgoing.get()) is not None:
                    await self._write(connection, message)
            except BadMessage as error:  # our own mistake: end the connection instead of sending nothing on it
                self.record("misspoke", source=connection.source, client=connection.m, why=str(error))
                connection.task.cancel()

    async def _write(self, connection: ServerConnection, message: Message) -> None:
        """Write one message after the one that is being written: gRPC takes one at a time."""
        conversation = connection.conversation
        async with connection.write_lock:
            connection.queued_chunks -= isinstance(message, Chunk)
            if isinstance(message, Chunk) and message.fence != conversation.fence:
                return  # of a visit that has ended meanwhile
            if not isinstance(message, Refuse):  # which is allowed in any state
                if conversation.state in OVER or (isinstance(message, GRANTS) and self.refuse_if_revoked(connection)):
                    return
                conversation.record_sent(message)
            if isinstance(message, GRANTS):
                connection.down, connection.half = 0, None
            if isinstance(message, Resume):
                conversation.set_answered(connection.answered)
            frame = encode(message)
            if connection.version != VERSION:
                frame = rewrite_version(frame, connection.version)
            connection.sent += len(frame)
            connection.messages += 1
            await connection.context.write(frame)
            connection.sent_at = time.monotonic()
            if isinstance(message, Chunk):
                connection.down += len(frame)

    async def _end(self, connection: ServerConnection, writer: asyncio.Future[None]) -> None:
        """Write what is queued, then remove the connection."""
        connection.outgoing.put_nowait(None)
        try:
            with suppress(asyncio.TimeoutError, asyncio.CancelledError, BadMessage):
                await asyncio.wait_for(writer, 2.0)
        finally:
            self._on_end(connection)
            self.by_number.pop(connection.number, None)
            if self.clients.get(connection.m) is connection:
                del self.clients[connection.m]
                self._contacts[connection.m] = connection.received_at
                m, number, why = connection.m, connection.number, connection.why
                self.inbox.put(ClientDisconnected(m, number, why, connection.final, connection.refused))

    # The loop's side: messages

    def handle_message(self, connection: ServerConnection, message: Message) -> Answer | None:
        """Handle a message. Return the answer if it was computed inline.

        Raises:
            BadMessage: the message is not allowed; the connection ends.
            ClientRejected: the client may not take part.
        """
        conversation = connection.conversation
        if isinstance(message, Ready) and connection.queued_chunks and message.fence == conversation.fence:
            raise BadMessage(
                "ready was said before the half had come", value=connection.queued_chunks, limit="no chunk on its way"
            )
        verdict = conversation.record_received(message)
        if _is_idle(connection, message, verdict):
            self._count_idle(connection)
        if verdict is Verdict.STALE:
            if connection.stale < message.fence:  # once for each visit: repetitions must not fill the disk
                connection.stale = message.fence
                self.record("stale", source=connection.source, client=connection.m, word=message.event)
        elif isinstance(message, Heartbeat):
            pass
        elif isinstance(message, Hello):
            self._handle_hello(connection, message)
        elif isinstance(message, Accept):
            self._handle_accept(connection, message)
        elif isinstance(message, UsageReport):
            self.usage_reports[connection.m], connection.paid_fence = message, conversation.fence
        elif isinstance(message, Leave):
            self.record("left", source=connection.source, client=connection.m, why=message.why)
        elif isinstance(message, Chunk):
            connection.half = connection.half if message.k else Assembly(self.context.half)
            if connection.half is None:
                raise BadMessage("chunks out of order", value=message.k, limit=0)
            connection.half.add(message)
        elif isinstance(message, Deposit):
            self.check_admission(connection)
            half = (connection.half or Assembly(0)).blob(message.bytes, message.sha256)
            connection.half = None
            self.release(connection.m, message.fence)  # it counts or it does not: a client that returns starts afresh
            return self._pass_on(connection, MessageReceived(connection.m, connection.number, message, half))
        else:
            return self._pass_on(connection, MessageReceived(connection.m, connection.number, message))
        return None

    def _count_idle(self, connection: ServerConnection) -> None:
        """Raise BadMessage if a client sends too many messages without progress."""
        most, rate = self.limits.idle_messages, self.limits.idle_rate
        refilled = connection.idle_messages + (connection.received_at - connection.idle_since) * rate
        connection.idle_messages, connection.idle_since = min(refilled, most) - 1, connection.received_at
        if connection.idle_messages < 0:
            raise BadMessage("too many messages without progress", limit=f"<= {rate:g} a second")

    def _pass_on(self, connection: ServerConnection, event: MessageReceived) -> Answer | None:
        """Answer a message inline, or give it to the training thread."""
        # A client that fails may not read our messages any more.
        unwritten = 0 if isinstance(event.message, Fail) else connection.outgoing.qsize()
        if max(self.inbox.count_unread(event.connection), unwritten) >= self.limits.unanswered:
            raise BadMessage("too many messages at once", limit=f"<= {self.limits.unanswered} that are not answered")
        answer = self.inbox.answer(event)
        if answer is None:
            self.inbox.put(event)
        return answer

    def _handle_hello(self, connection: ServerConnection, hello: Hello) -> None:
        why = self.context.admit(connection, hello)
        if hello.version != VERSION:
            why = describe_version_conflict(hello.version, hello)
        elif hello.client == EVALUATOR_NUMBER and not self.context.has_evaluator:
            why = "the evaluator of this run is one of its clients; serve --judge expects another"
        elif hello.client == FED_SERVER_NUMBER and not self.context.fed:
            why = "this run has no fed server; serve --fed-server expects one"
        elif self.context.clients <= hello.client < EVALUATOR_NUMBER:
            why = f"there is no client {hello.client}: this run has clients 0 to {self.context.clients - 1}"
        if why is not None:
            raise ClientRejected(why)
        connection.hello = hello
        connection.outgoing.put_nowait(self.context.terms)

    def _handle_accept(self, connection: ServerConnection, accept: Accept) -> None:
        hello = connection.hello
        assert hello is not None  # the protocol table allows no other order
        self.check_admission(connection)
        why = self.context.check_accept(hello, accept)
        if why is not None:
            raise ClientRejected(why)
        connection.m = hello.client
        if accept.check:
            connection.outgoing.put_nowait(Welcome("all is well"))
            return
        before = self.clients.pop(connection.m, None)
        if before is not None:  # its end may not have been noticed yet
            self.refuse(before, REPLACED)
            self.inbox.put(ClientDisconnected(before.m, before.number, REPLACED))
        self.inbox.expect(connection.number)
        self.clients[connection.m], connection.address = connection, accept.address
        with self._lock:
            fence, answered = self._grants.get(connection.m, (0, 0))
        is_resumed = 0 < fence == accept.fence and accept.k in (answered, answered - 1)
        connection.answered = answered
        connection.outgoing.put_nowait(Resume(fence) if is_resumed else Welcome())
        self.inbox.put(ClientConnected(connection.m, connection.number, accept, is_resumed, hello.software))

    # The loop's side: refusals and records

    def check_admission(self, connection: ServerConnection) -> None:
        """Raise ClientRejected if the client was revoked; checked at every lease and deposit."""
        why = None if connection.hello is None else self.context.admit(connection, connection.hello)
        if why is not None:
            raise ClientRejected(why)

    def refuse(self, connection: ServerConnection, why: str, *, final: bool = False) -> None:
        """Refuse a client and end its connection. The protocol table is not checked: it may be the reason."""
        self.record("refused", source=connection.source, client=connection.m, peer=connection.peer, why=why)
        connection.why, connection.final, connection.refused = why, final, True
        connection.conversation.state = State.REFUSED
        connection.outgoing.put_nowait(Refuse(why[: limits.TEXT], final))
        connection.outgoing.put_nowait(None)

    def refuse_if_revoked(self, connection: ServerConnection) -> bool:
        """Refuse a client that was revoked meanwhile; return whether it was."""
        try:
            self.check_admission(connection)
        except ClientRejected as error:
            self.refuse(connection, str(error), final=True)
            connection.task.cancel()
            return True
        return False

    def record(self, event: str, **facts: Any) -> None:
        """Record an event. If that fails, the training thread gets the error and the connection stays."""
        try:
            self._record(event, **facts)
        except SplitrelayError as error:
            self.inbox.fail(error)


def _is_idle(connection: ServerConnection, message: Message, verdict: Verdict) -> bool:
    """Return whether a message is no progress. Chunks of a visit that was cancelled do not count: they may be many."""
    if isinstance(message, UsageReport):
        return connection.paid_fence == connection.conversation.fence
    return isinstance(message, Heartbeat) or (verdict is not Verdict.NEW and not isinstance(message, Chunk))
