"""Threads that read messages while the client computes.

`Stream` starts a `BackgroundReader` when a caller waits for a frame for a limited time. `BackgroundReconnect` owns the
session while a client trains a whole model: it notices a cancelled visit, and replaces a lost connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from splitrelay.errors import SplitrelayError
from splitrelay.network.grpc_channel import ConnectionLost, ServerEnded, ServerRefused, VisitCancelled, is_final

if TYPE_CHECKING:
    from splitrelay.network.client_session import Session


class BackgroundReader:
    """A thread that reads one frame when asked, so that the caller can do something else meanwhile."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.is_reading = False
        self._read = read
        self._asking: SimpleQueue[bool] = SimpleQueue()
        self._come: SimpleQueue[bytes | ConnectionLost] = SimpleQueue()
        self._found: bytes | ConnectionLost | None = None
        threading.Thread(target=self._read_frames, name="connection", daemon=True).start()

    def wait_for_frame(self, seconds: float) -> bool:
        """Ask, if nobody did; whether it has come within so many seconds."""
        if not self.is_reading:
            self.is_reading = True
            self._asking.put(True)
        if self._found is None:
            try:
                self._found = self._come.get(timeout=seconds)
            except Empty:
                return False
        return True

    def take(self) -> bytes:
        """Return the frame. Raises ConnectionLost."""
        found, self._found, self.is_reading = self._found, None, False
        if isinstance(found, ConnectionLost):
            raise found
        assert found is not None  # it has waited
        return found

    def close(self) -> None:
        """End the thread."""
        self._asking.put(False)

    def _read_frames(self) -> None:
        while self._asking.get():
            try:
                self._come.put(self._read())
            except ConnectionLost as error:
                self._come.put(error)


class BackgroundReconnect:
    """Keep the connection while the client computes for long: another thread owns the session meanwhile."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_connection, name="reconnect", daemon=True)
        self._failure: SplitrelayError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _keep_connection(self) -> None:
        try:
            while not self._done.wait(self.session.timeouts.tick):
                self._check_connection()
        except SplitrelayError as error:  # raised in the computing thread, when it is done
            self._failure = error

    def _check_connection(self) -> None:
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
