"""Proxies between a client and the server: one for the bytes of a connection, one for its messages.

`TcpProxy` delays, cuts or freezes TCP connections and cannot read them. `MessageProxy` has the keys of both ends, which
only a rehearsal has, and can change, drop or add messages. A changed message could come from a client or a server whose
software is faulty or malicious.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc

from splitrelay.network.grpc_channel import SERVICE, open_channel
from splitrelay.network.server import OPTIONS

STREAMS = 16  # concurrent streams of a message proxy; one is in use, others may not have noticed their end yet
Frames = Callable[[bytes], list[bytes]]
SocketPair = tuple[socket.socket, socket.socket]


class TcpProxy:
    """Forwards TCP connections to a port. Each disturbance applies from the moment it is set.

    Attributes:
        target: The port to which new connections go.
        delay: Seconds before each piece is forwarded.
        delayed: Number of pieces that were delayed.
        silent: If true, bytes are read and dropped.
        cut_at: Number of bytes from the clients after which all connections are cut, once.
        cuts: Number of times that connections were cut.
        cut_happened: Called after each cut.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", read_size: int = 65536) -> None:
        self.host, self.target, self.read_size = host, port, read_size
        self.delay = 0.0
        self.delayed = 0
        self.silent = False
        self.cut_at: int | None = None
        self.carried = 0
        self.cuts = 0
        self.cut_happened: Callable[[], None] = lambda: None
        self._pairs: list[SocketPair] = []
        self._frozen: set[socket.socket] = set()  # both ends of half-open connections
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept_connections, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """End all connections now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += 1
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.cut_happened()

    def freeze(self) -> None:
        """Keep all current connections open without forwarding anything more; new ones work normally."""
        with self._lock:
            self._frozen.update(end for pair in self._pairs for end in pair)

    def close(self) -> None:
        """Stop listening and end all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        self.cut()

    def _accept_connections(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((self.host, self.target))
                except OSError:  # the server is not running: the client must see a failed connection
                    near.close()
                    continue
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.append((near, far))
                threading.Thread(target=self.forward, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self.forward, args=(far, near, False), daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        """Forward bytes in one direction until the connection ends; each direction has its own thread."""
        with suppress(OSError):
            while piece := source.recv(self.read_size):
                if self.silent or source in self._frozen:
                    continue
                if self.delay:
                    self.delayed += 1
                    time.sleep(self.delay)
                if up and self._cut_if_due(len(piece)):
                    break
                sink.sendall(piece)
        if source in self._frozen:
            return  # the other side must not notice
        for end in (source, sink):
            with suppress(OSError):
                end.close()

    def _cut_if_due(self, length: int) -> bool:
        with self._lock:
            self.carried += length
            due = self.cut_at is not None and self.carried > self.cut_at
            if due:
                self.cut_at = None
        if due:
            self.cut()
        return due


class MessageProxy:
    """Forwards the messages of one client to the server and back, through `up` and `down`.

    Args:
        to: Returns the address of the server for each new connection.
        near: Server credentials for the client's side, or None for plaintext.
        far: Client credentials for the server's side, or None for plaintext.
        up: Maps a frame of the client to the frames that go to the server in its place.
        down: Maps a frame of the server to the frames that go to the client in its place.
    """

    def __init__(self, to: Callable[[], str], near: Any, far: Any, up: Frames, down: Frames) -> None:
        self.to, self.far, self.up, self.down = to, far, up, down
        methods = {"Join": grpc.stream_stream_rpc_method_handler(self._join)}
        self.server: Any = grpc.server(ThreadPoolExecutor(STREAMS), options=OPTIONS)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        address = "0.0.0.0:0"
        add = self.server.add_insecure_port
        self.port = int(add(address) if near is None else self.server.add_secure_port(address, near))
        self.server.start()

    def close(self) -> None:
        """Stop the proxy and end its connections."""
        self.server.stop(0)

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        grpc_channel = open_channel(self.to(), self.far)
        call: Any = grpc_channel.stream_stream(f"/{SERVICE}/Join")(self._forward_up(requests))
        context.add_callback(call.cancel)  # when the client ends the connection
        try:
            for frame in call:
                yield from self.down(frame)
        except grpc.RpcError as error:
            if context.is_active():
                context.abort(grpc.StatusCode.UNAVAILABLE, str(getattr(error, "details", lambda: "")()))
        finally:
            call.cancel()
            grpc_channel.close()

    def _forward_up(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        with suppress(grpc.RpcError):  # the client has disconnected
            for frame in requests:
                yield from self.up(frame)
