"""What the event loop tells the one thread that trains: who came, who went, who said what."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from queue import Empty

from splitrelay.wire.messages import Accept, Message
from splitrelay.wire.wheel import Wheel


@dataclass(frozen=True)
class Arrived:
    """Client m is here; `resumed` where it goes on with the visit that it holds."""

    m: int
    link: int
    accept: Accept
    resumed: bool


@dataclass(frozen=True)
class Gone:
    """The link is lost, or was refused; `final` where client m may not come back."""

    m: int
    link: int
    why: str
    final: bool = False


@dataclass(frozen=True, eq=False)
class Heard:
    """Client m said something in its visit; `half` is what it deposited."""

    m: int
    link: int
    message: Message
    half: bytes = b""


Event = Arrived | Gone | Heard


class Inbox:
    """Events in the order in which they came. It knows how many words of each link nobody has read yet."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._events: deque[Event] = deque()
        self._unread: Counter[int] = Counter()  # by link

    def put(self, event: Event) -> None:
        """One event more; said on the loop, as is the question after those unread."""
        if isinstance(event, Heard):
            self._unread[event.link] += 1
        self._events.append(event)
        self._wheel.ring()

    def get(self, timeout: float | None = None) -> Event:
        """The next event, for the thread that trains; queue.Empty where none comes in time."""
        with self._wheel:
            self._wheel.wait(0.0 if self._events else timeout)
            if not self._events:
                raise Empty
            event = self._events.popleft()
            if isinstance(event, Heard):
                self._unread[event.link] -= 1
                if not self._unread[event.link]:
                    del self._unread[event.link]
        return event

    def unread(self, link: int) -> int:
        """Words of this link that wait."""
        return self._unread[link]
