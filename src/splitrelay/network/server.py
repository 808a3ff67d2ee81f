"""The server's side of all connections: gRPC on the shared loop, and events for the training thread.

shared_event_loop explains which thread may do what.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from splitrelay.errors import InputError, OutOfRange, SplitrelayError
from splitrelay.network import limits
from splitrelay.network.codec import VERSION, BadMessage, OtherVersion, decode, encode, rewrite_version
from splitrelay.network.connection_handler import (
    ClientRejected,
    ConnectionHandler,
    ServerConnection,
    ServerContext,
    TooManyConnections,
)
from splitrelay.network.grpc_channel import PLAIN, SERVICE, check_address
from splitrelay.network.limits import Limits
from splitrelay.network.messages import (
    Bye,
    Chunk,
    EvaluationRequest,
    Heartbeat,
    Lease,
    Message,
    Refuse,
    Resume,
    Step,
    UsageReport,
)
from splitrelay.network.protocol import OVER, State
from splitrelay.network.shared_event_loop import SharedLoop
from splitrelay.network.socket_counters import SocketCounters, SocketTraffic

BROKEN = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)  # what reading or writing ends with
GRANTS = (Lease, EvaluationRequest, Resume)  # a client's certificate is checked again before it is given one
OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not share it
)


class NetworkServer:
    """All connections of the server. The training thread reads `inbox` and calls grant, send and release."""

    def __init__(self, context: ServerContext, note: Callable[..., None] = lambda event, **facts: None) -> None:
        self.context, self._note = context, note
        self.limits, self.timeouts = context.limits, context.timeouts
        self._loop = SharedLoop(context.timeouts.standstill)
        self.handler = ConnectionHandler(context, self.note, self._loop)
        self.inbox = self.handler.inbox
        self.meters = SocketCounters()
        self.spent = (0, 0)  # bytes of links that are closed
        self._count = 0
        self._crowded = 0.0
        self._server: Any = None
        self._unary: dict[str, Any] = {}

    # The training thread's side

    def add_method(self, name: str, handler: Any) -> None:
        """Add a method to the gRPC service, such as Status; before `start`."""
        self._unary[name] = handler

    def start(self, address: str, credentials: Any = None) -> int:
        """Listen, and return the port."""
        try:
            check_address(address, listen=True)
            check_client_count(self.context)
            port = self._loop.run_until_done(self._listen(address, credentials))
        except InputError:
            self._loop.stop()
            raise
        self._loop.start()
        return port

    def grant(self, m: int, fence: int, answered: int = 0) -> None:
        """Let client m resume the visit with this fence after it reconnects."""
        self.handler.grant(m, fence, answered)

    def release(self, m: int) -> None:
        """End the visit of client m: it cannot be resumed."""
        self.handler.release(m)

    def send(self, link: int, *messages: Message) -> None:
        """Send messages on a connection. If it has ended, nothing happens: a ClientDisconnected event follows."""
        self._loop.call(self._put, link, messages)

    def get_clients(self) -> dict[int, int]:
        """Return the connected clients with the numbers of their connections."""
        return {m: link.number for m, link in list(self.handler.clients.items())}

    def get_announced_clients(self) -> dict[int, int]:
        """Return the connected clients whose ClientConnected event the training thread has read."""
        return {m: link for m, link in self.get_clients().items() if not self.inbox.is_unannounced(link)}

    def get_transferred(self, link: int) -> tuple[int, int]:
        """Return the bytes, up and down, of the half that is in transfer on a connection."""
        found = self.handler.connections.get(link)
        return (0, 0) if found is None else found.transferred

    def count_frame_bytes(self) -> tuple[int, int]:
        """Return the bytes of all frames so far, up and down, handshakes and repetitions included."""
        links = list(self.handler.connections.values())
        up, down = self.spent
        return up + sum(link.received for link in links), down + sum(link.sent for link in links)

    def count_socket_bytes(self) -> dict[int, SocketTraffic]:
        """Return the messages and socket bytes of every client so far."""
        links = list(self.handler.connections.values())
        self.meters.look(links)
        return self.meters.by_client(links)

    def get_usage_reports(self) -> dict[int, UsageReport]:
        """Return the last usage report of each client."""
        return dict(self.handler.paid)

    def close(self, why: str, *, again: bool) -> None:
        """Send Bye to all clients and stop; `again` tells them that the server comes back."""
        if self._loop.is_running:
            self._loop.run_until_done(self._shut_down(Bye(why[: limits.TEXT], again)))
            self._loop.stop()

    # The loop's side

    def note(self, event: str, **facts: Any) -> None:
        """Record an event. If that fails, the training thread gets the error and the connection stays."""
        try:
            self._note(event, **facts)
        except SplitrelayError as error:
            self.inbox.fail(error)

    async def _listen(self, address: str, credentials: Any) -> int:
        server = grpc.aio.server(options=build_options(self.context))
        methods = {"Join": grpc.stream_stream_rpc_method_handler(self._join), **self._unary}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise InputError(
                f"cannot listen on {address}", hint="Choose another --listen, or stop the program that uses it."
            ) from None
        await server.start()
        self._server = server
        self._watch_task = asyncio.ensure_future(self._watch())
        return int(port)

    async def _join(self, _: Any, context: Any) -> None:
        now = time.monotonic()
        self._count += 1
        task = asyncio.current_task()
        assert task is not None
        certificate = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        link = ServerConnection(self._count, context, task, context.peer(), now, now, certificate)
        writer = asyncio.ensure_future(self._write_messages(link))
        try:
            self.handler.add(link)
            link.why = await self._read_messages(link)
        except TooManyConnections as error:
            self._note_busy(link, str(error))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except OtherVersion as error:
            self.handler.refuse_version(link, error)
        except (BadMessage, ClientRejected) as error:
            self.handler.refuse(link, str(error), final=isinstance(error, ClientRejected))
        except (asyncio.CancelledError, *BROKEN):
            pass
        finally:
            await self._close(link, writer)

    async def _read_messages(self, link: ServerConnection) -> str:
        while link.conversation.state not in OVER:
            frame = await link.context.read()
            if frame is grpc.aio.EOF:
                return "the client hung up"
            link.received_at = time.monotonic()
            link.received += len(frame)
            link.messages += 1
            message = decode(frame, self.context.bounds)
            answer = self.handler.handle_message(link, message)
            if answer is not None:
                await self._write(link, answer.message)
                self.inbox.run_after(answer)
            elif isinstance(message, Step):  # its answer goes first; the next turn of the loop may write it
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        return "the client left" if link.conversation.state is State.LEFT else link.why

    def _put(self, number: int, messages: Sequence[Message]) -> None:
        link = self.handler.connections.get(number)
        if link is None:
            return
        for message in messages:
            link.queued_chunks += isinstance(message, Chunk)
            link.outgoing.put_nowait(message)

    async def _write_messages(self, link: ServerConnection) -> None:
        """Write the queued messages of a connection in order; None ends it."""
        with suppress(*BROKEN):
            try:
                while (message := await link.outgoing.get()) is not None:
                    await self._write(link, message)
            except BadMessage as error:  # our own mistake: better another link than one on which nothing is said
                self.note("misspoke", source=link.source, client=link.m, why=str(error))
                link.task.cancel()

    async def _write(self, link: ServerConnection, message: Message) -> None:
        """Write one message after the one that is being written: gRPC takes one at a time."""
        async with link.write_lock:
            link.queued_chunks -= isinstance(message, Chunk)
            if isinstance(message, Chunk) and message.fence != link.conversation.fence:
                return  # of a visit that has ended meanwhile
            if not isinstance(message, Refuse):  # which may be said whatever the table thinks
                if link.conversation.state in OVER or (isinstance(message, GRANTS) and self._is_rejected(link)):
                    return
                link.conversation.record_sent(message)
            if isinstance(message, GRANTS):
                link.down, link.half = 0, None
            if isinstance(message, Resume):
                link.conversation.set_answered(link.answered)
            frame = encode(message)
            if link.version != VERSION:
                frame = rewrite_version(frame, link.version)
            link.sent += len(frame)
            link.messages += 1
            await link.context.write(frame)
            link.sent_at = time.monotonic()
            if isinstance(message, Chunk):
                link.down += len(frame)

    def _is_rejected(self, link: ServerConnection) -> bool:
        """Refuse a client that was revoked meanwhile; return whether it was."""
        try:
            self.handler.check_admission(link)
        except ClientRejected as error:
            self.handler.refuse(link, str(error), final=True)
            link.task.cancel()
            return True
        return False

    def _note_busy(self, link: ServerConnection, why: str) -> None:
        """Record it, at most once a second: many attempts must not fill the disk."""
        now = time.monotonic()
        if now - self._crowded > 1.0:
            self._crowded = now
            self.note("busy", source=link.source, peer=link.peer, why=why)

    async def _close(self, link: ServerConnection, writer: asyncio.Future[None]) -> None:
        link.outgoing.put_nowait(None)
        try:
            with suppress(asyncio.TimeoutError, asyncio.CancelledError, BadMessage):
                await asyncio.wait_for(writer, 2.0)
        finally:  # whatever ended it, the link is over
            self.spent = self.spent[0] + link.received, self.spent[1] + link.sent
            self.meters.parted(link)
            self.handler.remove(link)

    async def _watch(self) -> None:
        """Check every connection once a second."""
        while True:
            await asyncio.sleep(1.0)
            self.meters.look(self.handler.connections.values())
            for link in list(self.handler.connections.values()):
                self._check_connection(link, time.monotonic())

    def _check_connection(self, link: ServerConnection, now: float) -> None:
        """Refuse a revoked client, close a silent connection, and send a heartbeat to the others.

        Received bytes count as a sign of life, not only messages: on a slow line the heartbeats of a client wait behind
        a long half. For the same reason the server sends heartbeats without being asked.
        """
        here = self.handler.clients.get(link.m) is link  # not who only came for a check
        if link.bytes is not None and link.bytes[0] != link.counted:
            link.counted, link.received_at = link.bytes[0], now
        if now - link.received_at > self.timeouts.silence or (
            not here and now - link.connected_at > self.timeouts.handshake
        ):
            self.note("silent", source=link.source, client=link.m, peer=link.peer)
            link.task.cancel()
        elif here and link.conversation.state not in OVER and not self._is_rejected(link):
            if link.outgoing.empty() and now - link.sent_at >= self.context.terms.heartbeat:
                link.outgoing.put_nowait(Heartbeat())

    async def _shut_down(self, bye: Bye) -> None:
        self._watch_task.cancel()
        for link in list(self.handler.connections.values()):
            link.outgoing.put_nowait(bye)
            link.outgoing.put_nowait(None)
        await self._server.stop(1.0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=2.0) if others else None


def build_options(context: ServerContext) -> tuple[tuple[str, int], ...]:
    """Return the gRPC options with our limits; gRPC closes what exceeds them."""
    own = {
        "grpc.max_receive_message_length": context.largest,
        "grpc.max_concurrent_streams": context.limits.streams,
        "grpc.max_allowed_incoming_connections": get_connection_limit(context.limits),
        "grpc.server_handshake_timeout_ms": int(1000 * context.timeouts.handshake),
        "grpc.max_connection_idle_ms": int(1000 * context.timeouts.idle),
    }
    return tuple({**dict(OPTIONS), **own}.items())


def get_connection_limit(allowed: Limits = Limits()) -> int:
    """Return how many connections may be open, so that files are left for the journal."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = most - allowed.spare_files
    return allowed.connections if most == resource.RLIM_INFINITY else min(allowed.connections, open_files)


def check_client_count(context: ServerContext) -> None:
    """Raise OutOfRange if the clients of the run cannot all be connected."""
    most, clients = min(limits.CLIENTS, get_connection_limit(context.limits)), context.clients
    if clients > most:
        hint = "Raise ulimit -n, or take a smaller M."
        raise OutOfRange("clients at once", value=clients, limit=f"<= {most}", hint=hint)
