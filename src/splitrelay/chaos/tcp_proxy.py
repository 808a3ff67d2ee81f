"""A bad link on purpose: a proxy in front of a server that delays, cuts, or stops carrying bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PIECE = 65536  # bytes read at once
Pair = tuple[socket.socket, socket.socket]


class TcpProxy:
    """Carries TCP connections to a port; each trouble holds from the moment it is set."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host, self.target = host, port
        self.delay = 0.0  # seconds before a piece is passed on
        self.late = 0  # pieces that were
        self.silent = False  # bytes are taken, and vanish
        self.cut_at: int | None = None  # bytes from the clients after which every connection is cut, once
        self.carried = 0
        self.cuts = 0
        self.cut_happened: Callable[[], None] = lambda: None
        self._pairs: list[Pair] = []
        self._frozen: set[socket.socket] = set()  # both ends of connections that are half open
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._accepting, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """Every connection ends now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += 1
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.cut_happened()

    def freeze(self) -> None:
        """Connections that are there stay open and carry nothing more; new ones are as good as ever."""
        with self._lock:
            self._frozen.update(end for pair in self._pairs for end in pair)

    def close(self) -> None:
        """No more."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # who waits for a caller is waiting no longer
        self._door.close()
        self.cut()

    def _accepting(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                try:
                    far = socket.create_connection((self.host, self.target))
                except OSError:  # nobody is there: so the caller shall see
                    near.close()
                    continue
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.append((near, far))
                threading.Thread(target=self._carrying, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._carrying, args=(far, near, False), daemon=True).start()

    def _carrying(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                if self.silent or source in self._frozen:
                    continue
                if self.delay:
                    self.late += 1
                    time.sleep(self.delay)
                if up and self._passed(len(piece)):
                    break
                sink.sendall(piece)
        if source in self._frozen:
            return  # the other side is never told
        for end in (source, sink):
            with suppress(OSError):
                end.close()

    def _passed(self, length: int) -> bool:
        """Whether this piece is the one at which the line is cut."""
        with self._lock:
            self.carried += length
            due = self.cut_at is not None and self.carried > self.cut_at
            if due:
                self.cut_at = None
        if due:
            self.cut()
        return due
