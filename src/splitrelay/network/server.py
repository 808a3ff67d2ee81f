"""The gRPC server: listen on a port, check all connections once a second, count bytes, and shut down.

connection_handler serves the connections. shared_event_loop explains which thread may do what.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Any

import grpc

from splitrelay.errors import InputError, OutOfRange
from splitrelay.network import limits
from splitrelay.network.connection_handler import ConnectionHandler
from splitrelay.network.grpc_channel import PLAIN, SERVICE, check_address
from splitrelay.network.limits import Limits
from splitrelay.network.messages import Bye, Heartbeat, UsageReport
from splitrelay.network.protocol import OVER
from splitrelay.network.server_connection import ServerConnection, ServerContext
from splitrelay.network.shared_event_loop import SharedLoop
from splitrelay.network.socket_counters import SocketCounters, SocketTraffic

OPTIONS = (
    *PLAIN,
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not share it
)


class NetworkServer:
    """A server that listens. The training thread uses its `connections`, and the methods up to `close`."""

    def __init__(self, context: ServerContext, record: Callable[..., None] = lambda event, **facts: None) -> None:
        self.context = context
        self._loop = SharedLoop(context.timeouts.standstill)
        self.connections = ConnectionHandler(context, record, self._loop, self._count_ended)
        self._counters = SocketCounters()
        self._ended = (0, 0)  # bytes of connections that have ended, up and down
        self._server: Any = None
        self._methods: dict[str, Any] = {}

    def add_method(self, name: str, handler: Any) -> None:
        """Add a method to the gRPC service, such as Status; before `start`."""
        self._methods[name] = handler

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

    def count_frame_bytes(self) -> tuple[int, int]:
        """Return the bytes of all frames so far, up and down, handshakes and repetitions included."""
        open_ones = list(self.connections.by_number.values())
        up, down = self._ended
        return up + sum(one.received for one in open_ones), down + sum(one.sent for one in open_ones)

    def count_socket_bytes(self) -> dict[int, SocketTraffic]:
        """Return the messages and socket bytes of every client so far."""
        open_ones = list(self.connections.by_number.values())
        self._counters.read(open_ones)
        return self._counters.sum_by_client(open_ones)

    def get_usage_reports(self) -> dict[int, UsageReport]:
        """Return the last usage report of each client."""
        return dict(self.connections.usage_reports)

    def close(self, why: str, *, again: bool) -> None:
        """Send Bye to all clients and stop; `again` tells them that the server comes back."""
        if self._loop.is_running:
            self._loop.run_until_done(self._shut_down(Bye(why[: limits.TEXT], again)))
            self._loop.stop()

    # The loop's side

    async def _listen(self, address: str, credentials: Any) -> int:
        server = grpc.aio.server(options=build_options(self.context))
        methods = {"Join": grpc.stream_stream_rpc_method_handler(self.connections.serve), **self._methods}
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

    def _count_ended(self, connection: ServerConnection) -> None:
        """Add the bytes of a connection that has ended."""
        self._ended = self._ended[0] + connection.received, self._ended[1] + connection.sent
        self._counters.add_ended(connection)

    async def _watch(self) -> None:
        """Check every connection once a second."""
        while True:
            await asyncio.sleep(1.0)
            open_ones = list(self.connections.by_number.values())
            self._counters.read(open_ones)
            for connection in open_ones:
                self._check_connection(connection, time.monotonic())

    def _check_connection(self, connection: ServerConnection, now: float) -> None:
        """Refuse a revoked client, close a silent connection, and send a heartbeat to the others.

        Received bytes count as a sign of life, not only messages: on a slow line the heartbeats of a client wait behind
        a long half. For the same reason the server sends heartbeats without being asked.
        """
        is_client = self.connections.clients.get(connection.m) is connection  # its handshake is complete
        timeouts = self.context.timeouts
        if connection.bytes is not None and connection.bytes[0] != connection.counted:
            connection.counted, connection.received_at = connection.bytes[0], now
        is_late = not is_client and now - connection.connected_at > timeouts.handshake
        if is_late or now - connection.received_at > timeouts.silence:
            self.connections.record("silent", source=connection.source, client=connection.m, peer=connection.peer)
            connection.task.cancel()
        elif (
            is_client
            and connection.conversation.state not in OVER
            and not self.connections.refuse_if_revoked(connection)
            and connection.outgoing.empty()
            and now - connection.sent_at >= self.context.terms.heartbeat
        ):
            connection.outgoing.put_nowait(Heartbeat())

    async def _shut_down(self, bye: Bye) -> None:
        self._watch_task.cancel()
        for connection in list(self.connections.by_number.values()):
            connection.outgoing.put_nowait(bye)
            connection.outgoing.put_nowait(None)
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
