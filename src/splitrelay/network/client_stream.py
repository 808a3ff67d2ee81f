"""The frames of one gRPC stream at the client. The thread that waits for a frame reads it itself, to save time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from splitrelay.network.grpc_channel import AnswerTimeout, ConnectionLost, SilenceTimeout, explain_loss
from splitrelay.network.limits import Timeouts


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
        self._frames: Any = call(iter(self._next_outgoing, None))
        self._frames.add_callback(self._end)
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
            return self._read_read_from_background(self._background, until)
        self._limit = min(until, time.monotonic() + self.timeouts.silence)
        try:
            return self._next(until)
        finally:
            self._limit = math.inf

    def wait_for_frame(self, seconds: float) -> bool:
        """Whether a frame is there within so many seconds: it is read reader, so as not to hang."""
        if self._background is None:
            self._background = BackgroundReader(self._next)
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

    def _read_read_from_background(self, reader: BackgroundReader, until: float) -> bytes:
        while not self.wait_for_frame(self.timeouts.tick):
            if time.monotonic() > until:
                raise _build_timeout_error(asked=True)
        return reader.take()

    def _next(self, until: float = math.inf) -> bytes:
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

    def _next_outgoing(self) -> bytes | None:
        """Return the next frame for gRPC, which asks after it has sent the one before."""
        if self._leaving:
            self.left = time.monotonic()
        if self._outgoing.empty():
            self._sent.set()
        frame, self._leaving = self._outgoing.get()
        return frame

    def _end(self) -> None:
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


class BackgroundReader:
    """A thread that reads one frame when asked, so that the caller can do something else meanwhile."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.is_reading = False
        self._read = read
        self._asking: SimpleQueue[bool] = SimpleQueue()
        self._come: SimpleQueue[bytes | ConnectionLost] = SimpleQueue()
        self._found: bytes | ConnectionLost | None = None
        threading.Thread(target=self._read_frames, name="link", daemon=True).start()

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


def _build_timeout_error(asked: bool) -> ConnectionLost:
    return AnswerTimeout("the server does not answer") if asked else SilenceTimeout("the server sends nothing any more")
