"""The server's asyncio loop, shared by two threads, and the queue of events for the training thread.

Threading rules of the server:

1. Two threads may run the loop, never both at once: a lock decides. The training thread runs it while it waits for an
   event. A background thread runs it while the training thread computes for longer than `Timeouts.standstill`.
2. All gRPC calls, connections and the ConnectionHandler belong to the loop. Only code that runs on the loop uses them.
3. Models, torch, the journal and all visits belong to the training thread.
4. The training thread reads events with EventQueue.get. It sends with NetworkServer.send, which goes through
   SharedLoop.call. Visits that may be resumed are set with NetworkServer.grant, under a lock.
5. A message that arrives while the training thread itself runs the loop can be answered inline (`answer_inline`): the
   step is computed between two callbacks of the loop, without a change of thread. This saves more time than everything
   else that is done with a message. An exception of this work belongs to the training thread: EventQueue.get raises it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from queue import Empty
from typing import Any, TypeVar

from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Accept, Message

Result = TypeVar("Result")


class SharedLoop:
    """One asyncio loop that two threads run in turn, never both at once (see the rules above)."""

    def __init__(self, standstill: float = Timeouts.standstill) -> None:
        self._standstill = standstill
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # held by the thread that runs the loop, or does work of the loop
        self._wanted = False  # whether another thread than the background thread waits for the lock
        self._waiting = 0  # the thread that runs the loop and waits for an event; 0: none
        self._left = -math.inf  # when the lock was last released
        self._over = threading.Event()
        self._background = threading.Thread(target=self._run_in_background, name="wire", daemon=True)

    def start(self) -> None:
        """Start the background thread."""
        self._background.start()

    @property
    def is_running(self) -> bool:
        """Whether the loop was started and not stopped."""
        return self._background.is_alive()

    def __enter__(self) -> None:
        """Acquire the loop. The background thread stops, and does not take it back before us."""
        self._wanted = True
        if not self._lock.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lock.acquire()
        self._wanted = False

    def __exit__(self, *_: object) -> None:
        self._left = time.monotonic()
        self._lock.release()

    def wait(self, seconds: float | None) -> None:
        """Run the loop until `wake` is called, at most so many seconds. The caller must have acquired it."""
        timer = None if seconds is None else self._loop.call_later(seconds, self._loop.stop)
        self._waiting = threading.get_ident()
        try:
            self._loop.run_forever()
        finally:
            self._waiting = 0
            if timer is not None:
                timer.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether the calling thread runs the loop and waits: then this code runs between two callbacks."""
        return self._waiting == threading.get_ident()

    def wake(self) -> None:
        """End `wait`, if a thread is in it. Call this on the loop only."""
        if self._waiting:
            self._loop.stop()

    def call(self, do: Callable[..., None], *given: Any) -> None:
        """Run `do` on the loop: in the thread that runs it, or here if no thread does."""
        if self.is_waiting:  # keep the order: later work of this thread must not run first
            do(*given)
            return
        if not self._lock.acquire(blocking=False):
            self._loop.call_soon_threadsafe(do, *given)
            return
        try:
            do(*given)
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        finally:
            self._lock.release()

    def run_until_done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end on the loop and return its result."""
        with self:
            return self._loop.run_until_complete(work)

    def stop(self) -> None:
        """Stop the background thread and close the loop."""
        self._over.set()
        if self.is_running:
            with self:
                pass
            self._background.join()
        self._loop.close()

    def _run_in_background(self) -> None:
        while not self._over.is_set():
            still = time.monotonic() - self._left
            if still > self._standstill and not self._wanted and self._lock.acquire(blocking=False):
                try:
                    if not self._over.is_set():
                        self._loop.run_forever()
                finally:
                    self._lock.release()
            self._over.wait(self._standstill)


@dataclass(frozen=True)
class ClientConnected:
    """Client m has connected. `resumed` is true if it continues the visit that it holds."""

    m: int
    connection: int
    accept: Accept
    resumed: bool
    software: str = ""  # and its version, as the client says


@dataclass(frozen=True)
class ClientDisconnected:
    """A connection has ended: `refused` if by us for a wrong message, `final` if client m may not reconnect."""

    m: int
    connection: int
    why: str
    final: bool = False
    refused: bool = False


@dataclass(frozen=True, eq=False)
class MessageReceived:
    """Client m has sent a message of its visit; `half` holds the bytes of a deposit."""

    m: int
    connection: int
    message: Message
    half: bytes = b""


@dataclass(frozen=True, eq=False)
class Answer:
    """The reply to a message that is answered inline, and work for the same thread after the reply was sent."""

    message: Message
    then: Callable[[], None]


Event = ClientConnected | ClientDisconnected | MessageReceived


class EventQueue:
    """Events for the training thread, in the order in which they came.

    It counts the messages of each connection that are not read yet. For inline answers see rule 5 above.
    """

    def __init__(self, loop: SharedLoop) -> None:
        self.answer_inline: Callable[[MessageReceived], Answer | None] = lambda heard: (
            None
        )  # set by the training thread
        self._loop = loop
        self._failure: BaseException | None = None
        self._events: deque[Event] = deque()
        self._unread: Counter[int] = Counter()  # by connection
        self._unannounced = set[int]()  # connections whose arrival the training thread does not know yet

    def put(self, event: Event) -> None:
        """Add an event. Call this on the loop only."""
        if isinstance(event, MessageReceived):
            self._unread[event.connection] += 1
        elif isinstance(event, ClientConnected):
            self.expect(event.connection)
        self._events.append(event)
        self._loop.wake()

    def get(self, timeout: float | None = None) -> Event:
        """Return the next event; for the training thread.

        Raises:
            queue.Empty: no event came within `timeout` seconds.
        """
        with self._loop:
            self._loop.wait(0.0 if self._events or self._failure else timeout)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not self._events:
                raise Empty
            event = self._events.popleft()
            if isinstance(event, MessageReceived):
                self._unread[event.connection] -= 1
                if not self._unread[event.connection]:
                    del self._unread[event.connection]
            elif isinstance(event, ClientConnected):
                self._unannounced.discard(event.connection)
        return event

    def answer(self, heard: MessageReceived) -> Answer | None:
        """Answer a message inline if the training thread waits and no event is queued; call this on the loop."""
        return (
            self._run_for_trainer(lambda: self.answer_inline(heard))
            if self._loop.is_waiting and not self._events
            else None
        )

    def run_after(self, answer: Answer) -> None:
        """Do the work after an answer, unless the training thread has left the loop: only it may do this."""
        if self._loop.is_waiting:
            self._run_for_trainer(answer.then)

    def _run_for_trainer(self, work: Callable[[], Result]) -> Result | None:
        """Do work of the training thread on the loop. An exception ends the run, not the connection."""
        try:
            return work()
        except BaseException as error:
            self.fail(error)
            return None

    def fail(self, error: BaseException) -> None:
        """Let the next `get` raise this error in the training thread."""
        self._failure = self._failure or error
        self._loop.wake()

    def expect(self, connection: int) -> None:
        """Mark a connection whose arrival will be announced by an event."""
        self._unannounced.add(connection)

    def is_unannounced(self, connection: int) -> bool:
        """Return whether the training thread does not know of this connection yet."""
        return connection in self._unannounced

    def count_unread(self, connection: int) -> int:
        """Return the number of messages of a connection that are not read yet."""
        return self._unread[connection]
