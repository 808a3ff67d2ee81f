"""What the wire is held against: bare gRPC over mutual TLS that echoes and copies bytes, and a line that takes longer.

Programs of their own, so that nobody shares a lock with who is measured: `python -m benchmarks.wire_bare caller ...`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from splitrelay.network import limits
from splitrelay.network.grpc_channel import open_channel
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity

OPTIONS = (("grpc.max_receive_message_length", limits.MESSAGE), ("grpc.max_send_message_length", limits.MESSAGE))


class Bare:
    """An aio server that says back what it hears, and a caller that times it: processes of their own, both.

    All aio servers of a process share one thread that polls and wake each other's loops, so this one is not in ours.
    """

    def __init__(self, folder: Path, delay: float = 0.0) -> None:
        self._server = Child("server", str(folder / "server"))
        port = int(self._server.ask("port"))
        self._line = Line(port, delay / 2) if delay else None
        self._caller = Child("caller", str(self._line.port if self._line else port), str(folder / "client-0"))

    @property
    def ends(self) -> tuple[int, int]:
        """Server and caller."""
        return self._server.pid, self._caller.pid

    def echo(self, length: int, times: int) -> float:
        """Seconds of one round trip of so many bytes."""
        return float(self._caller.ask(f"echo {length} {times}"))

    def copy(self, length: int) -> float:
        """Seconds for so many bytes down and then up, in pieces as large as ours."""
        return float(self._caller.ask(f"copy {length}"))

    def close(self) -> None:
        """No more."""
        self._caller.close()
        if self._line is not None:
            self._line.close()
        self._server.close()


def answering(keys: str) -> None:
    """The server's side."""
    serve(keys, {"Echo": _echo, "Copy": _copy})


def serve(keys: str, methods: dict[str, Any]) -> None:
    """Such methods on a loop, until nobody asks any more; whoever asks is told the port."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    credentials = build_server_credentials(load_identity(Path(keys)))
    server, port = asyncio.run_coroutine_threadsafe(_listen(credentials, methods), loop).result()
    for _ in sys.stdin:
        print(port, flush=True)
    asyncio.run_coroutine_threadsafe(server.stop(None), loop).result()
    loop.call_soon_threadsafe(loop.stop)


async def _listen(credentials: Any, methods: dict[str, Any]) -> tuple[Any, int]:
    server = grpc.aio.server(options=OPTIONS)
    handlers = {name: grpc.stream_stream_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, port


async def _echo(_: Any, context: Any) -> None:
    while (frame := await context.read()) is not grpc.aio.EOF:
        await context.write(frame)


async def _copy(_: Any, context: Any) -> None:
    while (asked := await context.read()) is not grpc.aio.EOF:
        length = int(asked)
        for start in range(0, length, limits.PIECE):
            await context.write(bytes(min(limits.PIECE, length - start)))
        got = 0
        while got < length:
            got += len(await context.read())
        await context.write(b".")


class Child:
    """A program of this file, or another; it answers each line with one."""

    def __init__(self, *words: str, module: str = "benchmarks.wire_bare") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, line: str) -> str:
        """One line there, one line back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline()

    def close(self) -> None:
        """It ends when nobody asks any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def calling(port: str, keys: str) -> None:
    """The caller's side."""
    line = open_channel(f"127.0.0.1:{port}", build_channel_credentials(load_identity(Path(keys))))
    queue: SimpleQueue[bytes] = SimpleQueue()
    streams: dict[str, Any] = {}

    def stream(name: str) -> tuple[SimpleQueue[bytes], Any]:
        if name not in streams:
            asked: SimpleQueue[bytes] = SimpleQueue()
            streams[name] = (asked, line.stream_stream(f"/bare/{name}")(iter(asked.get, None)))
        found: tuple[SimpleQueue[bytes], Any] = streams[name]
        return found

    def echo(length: int, times: int) -> float:
        queue, answers = stream("Echo")
        frame = os.urandom(length)
        began = time.perf_counter()
        for _ in range(times):
            queue.put(frame)
            next(answers)
        return (time.perf_counter() - began) / times

    def copy(length: int) -> float:
        queue, answers = stream("Copy")
        pieces = [os.urandom(min(limits.PIECE, length - start)) for start in range(0, length, limits.PIECE)]
        began = time.perf_counter()
        queue.put(str(length).encode())
        got = 0
        while got < length:
            got += len(next(answers))
        for piece in pieces:
            queue.put(piece)
        next(answers)
        return time.perf_counter() - began

    kinds: dict[str, Callable[..., float]] = {"echo": echo, "copy": copy}
    for asked in sys.stdin:
        kind, *numbers = asked.split()
        print(kinds[kind](*map(int, numbers)), flush=True)
    del queue


class Line:
    """A way to a port on which every byte takes longer, in a process of its own."""

    def __init__(self, port: int, seconds: float) -> None:
        self._child = Child("line", str(port), str(seconds))
        self.port = int(self._child.ask("port"))

    def close(self) -> None:
        """No more."""
        self._child.close()


def lengthened(port: str, seconds: str) -> None:
    """Carries connections to a port; what comes is passed on so many seconds later, as on a long line: none waits."""
    door = socket.create_server(("127.0.0.1", 0))

    def accepting() -> None:
        while True:
            near, _ = door.accept()
            far = socket.create_connection(("127.0.0.1", int(port)))
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                on_the_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=_entering, args=(source, on_the_way, float(seconds)), daemon=True).start()
                threading.Thread(target=_leaving, args=(sink, on_the_way), daemon=True).start()

    threading.Thread(target=accepting, daemon=True).start()
    for _ in sys.stdin:
        print(door.getsockname()[1], flush=True)


def _entering(source: socket.socket, on_the_way: SimpleQueue[tuple[float, bytes]], seconds: float) -> None:
    piece = b"."
    while piece:
        try:
            piece = source.recv(2**18)
        except OSError:
            piece = b""
        on_the_way.put((time.monotonic() + seconds, piece))


def _leaving(sink: socket.socket, on_the_way: SimpleQueue[tuple[float, bytes]]) -> None:
    with suppress(OSError):
        while True:
            due, piece = on_the_way.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(piece)


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {"server": answering, "caller": calling, "line": lengthened}
    parts[sys.argv[1]](*sys.argv[2:])
