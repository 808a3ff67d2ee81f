"""What the event loop tells the one thread that trains: who came, who went, who said what."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from queue import SimpleQueue

from splitrelay.wire.messages import Accept, Message


@dataclass(frozen=True)
class Arrived:
    """Client m is here; `resumed` where it goes on with the visit that it holds."""

    m: int
    link: int
    accept: Accept
    resumed: bool


@dataclass(frozen=True)
class Gone:
    """The link is lost, or was refused."""

    m: int
    link: int
    why: str


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

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._unread: Counter[int] = Counter()  # by link
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """One event more; the loop's side."""
        if isinstance(event, Heard):
            with self._lock:
                self._unread[event.link] += 1
        self._events.put(event)

    def get(self, timeout: float | None = None) -> Event:
        """The next event; queue.Empty where none comes in time."""
        event = self._events.get(timeout=timeout)
        if isinstance(event, Heard):
            with self._lock:
                self._unread[event.link] -= 1
                if not self._unread[event.link]:
                    del self._unread[event.link]
        return event

    def unread(self, link: int) -> int:
        """Words of this link that wait."""
        with self._lock:
            return self._unread[link]
