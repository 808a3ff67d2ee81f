"""What the event loop tells the one thread that trains: who came, who went, who said what."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import TypeVar

from splitrelay.network.messages import Accept, Message
from splitrelay.network.shared_event_loop import Wheel


@dataclass(frozen=True)
class Arrived:
    """Client m is here; `resumed` where it goes on with the visit that it holds."""

    m: int
    link: int
    accept: Accept
    resumed: bool
    software: str = ""  # and its version, as the client says


@dataclass(frozen=True)
class Gone:
    """The link is lost; `refused` where we ended it for what was said, `final` where client m may not come back."""

    m: int
    link: int
    why: str
    final: bool = False
    refused: bool = False


@dataclass(frozen=True, eq=False)
class Heard:
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


Event = Arrived | Gone | Heard
Result = TypeVar("Result")


class Inbox:
    """Events in the order in which they came. It knows how many words of each link nobody has read yet.

    The thread that trains turns the loop while it waits here, so it can be asked for an answer where the word was read:
    this saves a step the way out of the loop and back into it. What goes wrong then is its own, and is raised by `get`.
    """

    def __init__(self, wheel: Wheel) -> None:
        self.at_once: Callable[[Heard], Answer | None] = lambda heard: None  # set by the thread that trains
        self._wheel = wheel
        self._failure: BaseException | None = None
        self._events: deque[Event] = deque()
        self._unread: Counter[int] = Counter()  # by link
        self._unheard = set[int]()  # links whose arrival nobody has heard of yet

    def put(self, event: Event) -> None:
        """One event more; said on the loop, as is the question after those unread."""
        if isinstance(event, Heard):
            self._unread[event.link] += 1
        elif isinstance(event, Arrived):
            self.expect(event.link)
        self._events.append(event)
        self._wheel.ring()

    def get(self, timeout: float | None = None) -> Event:
        """The next event, for the thread that trains; queue.Empty where none comes in time."""
        with self._wheel:
            self._wheel.wait(0.0 if self._events or self._failure else timeout)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not self._events:
                raise Empty
            event = self._events.popleft()
            if isinstance(event, Heard):
                self._unread[event.link] -= 1
                if not self._unread[event.link]:
                    del self._unread[event.link]
            elif isinstance(event, Arrived):
                self._unheard.discard(event.link)
        return event

    def answer(self, heard: Heard) -> Answer | None:
        """What the thread that trains says to this at once, if it waits, and nothing came before; asked on the loop."""
        return self._carried(lambda: self.at_once(heard)) if self._wheel.waiting and not self._events else None

    def afterwards(self, answer: Answer) -> None:
        """The answer has left. The thread that trains may have left, too: nobody else may do its work."""
        if self._wheel.waiting:
            self._carried(answer.then)

    def _carried(self, work: Callable[[], Result]) -> Result | None:
        """Work of the thread that trains, done on the loop: its failure is that thread's, not the link's."""
        try:
            return work()
        except BaseException as error:
            self.fail(error)
            return None

    def fail(self, error: BaseException) -> None:
        """Something went wrong on the loop that the thread that trains must know."""
        self._failure = self._failure or error
        self._wheel.ring()

    def expect(self, link: int) -> None:
        """Its arrival is about to be told: whoever sees the link before has not heard of it."""
        self._unheard.add(link)

    def unheard(self, link: int) -> bool:
        """Whether the thread that trains has still to hear that it came."""
        return link in self._unheard

    def unread(self, link: int) -> int:
        """Words of this link that wait."""
        return self._unread[link]
