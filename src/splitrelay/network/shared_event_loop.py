"""The server's event loop, turned by whoever has nothing else to do.

The thread that trains turns it while it waits for a word: so the word, and its answer, pass from thread to thread less
often, which costs more than all that is done with them. While that thread computes the loop stands still for a moment;
where it takes longer a stand-in turns it, so that heartbeats, handshakes and questions are answered all the same.
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
    """One loop, and the two threads that may turn it, never both at once."""

    def __init__(self, standstill: float = Timeouts.standstill) -> None:
        self._standstill = standstill
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # held by whoever turns it, or does what only it may do
        self._wanted = False  # whether somebody other than the stand-in asks for it
        self._waiting = 0  # which thread turns it and waits for a word; 0: none
        self._left = -math.inf  # when it was last let go
        self._over = threading.Event()
        self._background = threading.Thread(target=self._run_in_background, name="wire", daemon=True)

    def start(self) -> None:
        """From here on it is turned."""
        self._background.start()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._background.is_alive()

    def __enter__(self) -> None:
        """The stand-in, if it is at it, lets go, and does not come back before us."""
        self._wanted = True
        if not self._lock.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lock.acquire()
        self._wanted = False

    def __exit__(self, *_: object) -> None:
        self._left = time.monotonic()
        self._lock.release()

    def wait(self, seconds: float | None) -> None:
        """Turn it until somebody rings, or for so long; by whoever holds it."""
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
        """Whether this very thread waits for a word: what is done now, it does between two turns."""
        return self._waiting == threading.get_ident()

    def wake(self) -> None:
        """Whoever waits may look: said on the loop."""
        if self._waiting:
            self._loop.stop()

    def call(self, do: Callable[..., None], *given: Any) -> None:
        """Have this done where the loop is turned; here, with whatever it wakes, where nobody is at it."""
        if self.is_waiting:  # this thread is on the loop: what it has done later must not overtake this
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
        """All of it, before anything else."""
        with self:
            return self._loop.run_until_complete(work)

    def stop(self) -> None:
        """Nobody turns it any more."""
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
    """Client m is here; `resumed` where it goes on with the visit that it holds."""

    m: int
    link: int
    accept: Accept
    resumed: bool
    software: str = ""  # and its version, as the client says


@dataclass(frozen=True)
class ClientDisconnected:
    """The link is lost; `refused` where we ended it for what was said, `final` where client m may not come back."""

    m: int
    link: int
    why: str
    final: bool = False
    refused: bool = False


@dataclass(frozen=True, eq=False)
class MessageReceived:
    """Client m said something in its visit; `half` is what it deposited."""

    m: int
    link: int
    message: Message
    half: bytes = b""


@dataclass(frozen=True, eq=False)
class Answer:
    """What is said to a word at once, and what may be done as soon as that has left, by the same thread."""

    message: Message
    then: Callable[[], None]


Event = ClientConnected | ClientDisconnected | MessageReceived


class EventQueue:
    """Events in the order in which they came. It knows how many words of each link nobody has read yet.

    The thread that trains turns the loop while it waits here, so it can be asked for an answer where the word was read:
    this saves a step the way out of the loop and back into it. What goes wrong then is its own, and is raised by `get`.
    """

    def __init__(self, loop: SharedLoop) -> None:
        self.answer_inline: Callable[[MessageReceived], Answer | None] = lambda heard: (
            None
        )  # set by the thread that trains
        self._loop = loop
        self._failure: BaseException | None = None
        self._events: deque[Event] = deque()
        self._unread: Counter[int] = Counter()  # by link
        self._unannounced = set[int]()  # links whose arrival nobody has heard of yet

    def put(self, event: Event) -> None:
        """One event more; said on the loop, as is the question after those unread."""
        if isinstance(event, MessageReceived):
            self._unread[event.link] += 1
        elif isinstance(event, ClientConnected):
            self.expect(event.link)
        self._events.append(event)
        self._loop.wake()

    def get(self, timeout: float | None = None) -> Event:
        """The next event, for the thread that trains; queue.Empty where none comes in time."""
        with self._loop:
            self._loop.wait(0.0 if self._events or self._failure else timeout)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not self._events:
                raise Empty
            event = self._events.popleft()
            if isinstance(event, MessageReceived):
                self._unread[event.link] -= 1
                if not self._unread[event.link]:
                    del self._unread[event.link]
            elif isinstance(event, ClientConnected):
                self._unannounced.discard(event.link)
        return event

    def answer(self, heard: MessageReceived) -> Answer | None:
        """What the thread that trains says to this at once, if it waits, and nothing came before; asked on the loop."""
        return (
            self._run_for_trainer(lambda: self.answer_inline(heard))
            if self._loop.is_waiting and not self._events
            else None
        )

    def run_after(self, answer: Answer) -> None:
        """The answer has left. The thread that trains may have left, too: nobody else may do its work."""
        if self._loop.is_waiting:
            self._run_for_trainer(answer.then)

    def _run_for_trainer(self, work: Callable[[], Result]) -> Result | None:
        """Work of the thread that trains, done on the loop: its failure is that thread's, not the link's."""
        try:
            return work()
        except BaseException as error:
            self.fail(error)
            return None

    def fail(self, error: BaseException) -> None:
        """Something went wrong on the loop that the thread that trains must know."""
        self._failure = self._failure or error
        self._loop.wake()

    def expect(self, link: int) -> None:
        """Its arrival is about to be told: whoever sees the link before has not heard of it."""
        self._unannounced.add(link)

    def is_unannounced(self, link: int) -> bool:
        """Whether the thread that trains has still to hear that it came."""
        return link in self._unannounced

    def count_unread(self, link: int) -> int:
        """Words of this link that wait."""
        return self._unread[link]
