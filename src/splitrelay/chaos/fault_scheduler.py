"""The moments of a plan: every message that passes is held against the faults that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from splitrelay.chaos.fault_kinds import KINDS, Fault
from splitrelay.network.codec import CONTROL, decode, header_of
from splitrelay.network.codec import KINDS as WORDS
from splitrelay.network.control import BadMessage
from splitrelay.network.messages import Lease

Events = Callable[[], list[dict[str, Any]]]
NAMES = {number: word.__name__.lower() for word, number in WORDS.items()}
TURN = ("step", "finish", "chunk", "deposit")
HOLD = 1.0  # seconds that a fault waits for the event of the one before it


@dataclass(frozen=True)
class InjectedFault:
    """A fault that was made, and how many events the record had then."""

    fault: Fault
    before: int


@dataclass
class Seen:
    """What the plot knows of one client."""

    settled: int = -1  # visits that were settled when its visit began
    fence: int = 0
    last: bytes = b""  # its last step
    steps: dict[int, bytes] = field(default_factory=dict)  # the first step of each of its visits, by fence
    held: bytes = b""  # a word that will come after the next one
    dead: bool = False  # what it had still to say is not said


class FaultScheduler:
    """Faults in the order of their moments; `act` makes one, and says which frames go on in the place of this one."""

    def __init__(self, faults: Sequence[Fault], events: Events, act: Callable[[Fault, bytes], list[bytes]]) -> None:
        self.waiting, self.events, self.act = list(faults), events, act
        self.held_off: Callable[[], bool] = lambda: False  # while the server is on its way out nothing else happens
        self.happened: list[InjectedFault] = []
        self.last: tuple[str, ...] = ()  # kinds that come after all others of their client
        self.mistake: Exception | None = None  # of ours, in making a fault
        self.falsify_terms: Callable[[int, bytes], bytes] = lambda m, frame: frame  # as a malicious server would
        self.K: dict[int, int] = {}  # steps that were granted, by fence
        self.clients: dict[int, Seen] = {}
        self._lock = threading.RLock()

    def seen(self, m: int) -> Seen:
        """What has passed between client m and the server."""
        return self.clients.setdefault(m, Seen())

    def up(self, m: int, frame: bytes) -> list[bytes]:
        """A word of client m."""
        word, k = word_of(frame)
        with self._lock:
            seen = self.seen(m)
            if word == "hello":
                seen.held, seen.dead = b"", False
            elif word == "step":
                self._noted(seen, frame)
            if seen.dead:
                return []
            if seen.held and word == "chunk":
                held, seen.held = seen.held, b""
                return [frame, held]
            return self._passed(m, word, k, frame)

    def down(self, m: int, frame: bytes) -> list[bytes]:
        """A word of the server to client m."""
        word, k = word_of(frame)
        with self._lock:
            if word == "lease":
                lease = decode(frame)
                assert isinstance(lease, Lease)
                self.K[lease.fence] = lease.K
                self.seen(m).fence, self.seen(m).settled = lease.fence, settled(self.events())
            if word == "terms":
                return [self.falsify_terms(m, frame)]
            return [frame] if word == "chunk" else self._passed(m, word, k, frame)  # a half on its way down

    def old_step(self, m: int) -> bytes | None:
        """A step of an earlier visit of client m, if there was one."""
        seen = self.seen(m)
        return next((step for fence, step in seen.steps.items() if fence != seen.fence), None)

    def _noted(self, seen: Seen, frame: bytes) -> None:
        seen.last = frame
        seen.steps.setdefault(header_of(frame).fence, frame)
        while len(seen.steps) > 2:
            del seen.steps[min(seen.steps)]

    def _passed(self, m: int, word: str, k: int, frame: bytes) -> list[bytes]:
        fault = next((one for one in self.waiting if self._due(one, m, word, k)), None)
        if fault is None or self.held_off():
            return [frame]
        self.waiting.remove(fault)
        self._await_the_last()
        self.happened.append(InjectedFault(fault, len(self.events())))
        try:
            return self.act(fault, frame)
        except Exception as error:  # on a thread of gRPC's, which would keep it to itself
            self.mistake = error
            return [frame]

    def _due(self, fault: Fault, m: int, word: str, k: int) -> bool:
        at = KINDS[fault.kind].at
        fits = word in TURN if at == "turn" else word == at
        early = word in ("step", "reply") and k < fault.step
        if fault.client != m or not fits or early or self.seen(m).settled < fault.after:
            return False
        if fault.kind in self.last and any(one.client == m and one.kind not in self.last for one in self.waiting):
            return False
        return fault.kind != "replay" or self.old_step(m) is not None

    def _await_the_last(self) -> None:
        """Two faults at once could hide each other in the record."""
        until = time.monotonic() + HOLD
        while self.happened and time.monotonic() < until and not recorded(self.happened[-1], self.events()):
            time.sleep(0.02)


def word_of(frame: bytes) -> tuple[str, int]:
    """What a frame says, and its number."""
    try:
        header = header_of(frame)
        return (decode(frame).event if header.kind == CONTROL else NAMES.get(header.kind, "")), header.k
    except BadMessage:
        return "", 0


def settled(events: Sequence[dict[str, Any]]) -> int:
    """Visits that are committed or skipped; a commit whose line was lost with the server is found when it is back."""
    over = ("committed", "found", "skipped")
    return len({visit_of(event) for event in events if event["event"] in over})


def visit_of(event: dict[str, Any]) -> tuple[int, int, int]:
    """Round, client and occurrence."""
    return event["round"], event["client"], event["occurrence"]


def recorded(happened: InjectedFault, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a fault has left its event; true where the server cannot know of it."""
    kind = KINDS[happened.fault.kind]
    if not kind.events:
        return True
    return any(
        event["event"] in kind.events
        and kind.why in event.get("why", "")
        and (not kind.own or event.get("client") == (happened.fault.client if kind.whose is None else kind.whose))
        for event in events[happened.before :]
    )
