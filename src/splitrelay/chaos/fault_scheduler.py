"""Decide when each fault of a plan is due: compare every message that passes with the waiting faults.

The methods are called by the threads of the message proxies, one for each client; a lock protects the state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from splitrelay.chaos.fault_kinds import KINDS, Fault, is_at_message
from splitrelay.deploy.events import COMMIT_EVENTS, Event, get_visit
from splitrelay.network.codec import CONTROL, BadMessage, decode, read_header
from splitrelay.network.codec import KINDS as MESSAGE_KINDS
from splitrelay.network.messages import Lease

NAMES = {number: message.__name__.lower() for message, number in MESSAGE_KINDS.items()}
MAX_HOLD = 1.0  # seconds that a fault waits for the event of the one before it


@dataclass(frozen=True)
class InjectedFault:
    """A fault that has happened, and the number of recorded events at that moment."""

    fault: Fault
    event_count: int


@dataclass
class ClientTraffic:
    """State of the messages between one client and the server."""

    settled: int = -1  # number of settled visits when the current visit began
    fence: int = 0
    last: bytes = b""  # its last step
    steps: dict[int, bytes] = field(default_factory=dict)  # the first step of each of its visits, by fence
    held: bytes = b""  # a message to be sent after the next one
    dead: bool = False  # it is being killed: drop all its further messages, and make no fault of it happen


class FaultScheduler:
    """Injects faults in order.

    Args:
        faults: The plan, sorted by `after`.
        events: Returns the events that the server has recorded.
        inject: Makes a fault; returns the frames that are sent in the place of the current one.
        is_paused: Returns whether the server is being stopped; no fault happens then.
        change_terms: Maps a client and the frame of its terms to the frame that the client receives.
        final_kinds: Kinds that happen only after all other faults of their client.

    Attributes:
        waiting: Faults that have not happened yet.
        injected: Faults that have happened.
        error: An exception that was raised while a fault was made.
        K: The number of steps of each lease, by fence.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        events: Callable[[], list[Event]],
        inject: Callable[[Fault, bytes], list[bytes]],
        *,
        is_paused: Callable[[], bool] = lambda: False,
        change_terms: Callable[[int, bytes], bytes] = lambda m, frame: frame,
        final_kinds: Sequence[str] = (),
    ) -> None:
        self.waiting, self.injected = list(faults), list[InjectedFault]()
        self.events, self.inject, self.is_paused, self.change_terms = events, inject, is_paused, change_terms
        self.final_kinds = final_kinds
        self.error: Exception | None = None
        self.K: dict[int, int] = {}
        self.clients: dict[int, ClientTraffic] = {}
        self._lock = threading.RLock()

    def get_traffic(self, m: int) -> ClientTraffic:
        """Return the state of the messages between client m and the server."""
        return self.clients.setdefault(m, ClientTraffic())

    def handle_client_frame(self, m: int, frame: bytes) -> list[bytes]:
        """Return the frames that go to the server in the place of a frame of client m."""
        message, k = identify_frame(frame)
        with self._lock:
            traffic = self.get_traffic(m)
            if message == "hello":
                traffic.held, traffic.dead = b"", False
            elif message == "step":
                traffic.last = frame
                traffic.steps.setdefault(read_header(frame).fence, frame)
                while len(traffic.steps) > 2:
                    del traffic.steps[min(traffic.steps)]
            if traffic.dead:
                return []
            if traffic.held and message == "chunk":
                held, traffic.held = traffic.held, b""
                return [frame, held]
            return self._apply_due_fault(m, message, k, frame)

    def handle_server_frame(self, m: int, frame: bytes) -> list[bytes]:
        """Return the frames that go to client m in the place of a frame of the server."""
        message, k = identify_frame(frame)
        with self._lock:
            if message == "lease":
                lease = decode(frame)
                assert isinstance(lease, Lease)
                self.K[lease.fence] = lease.K
                traffic = self.get_traffic(m)
                traffic.fence, traffic.settled = lease.fence, count_settled_visits(self.events())
            if message == "terms":
                return [self.change_terms(m, frame)]
            if message == "chunk":  # no fault happens while the client receives a half
                return [frame]
            return self._apply_due_fault(m, message, k, frame)

    def get_old_step(self, m: int) -> bytes | None:
        """Return a step of an earlier visit of client m, or None."""
        traffic = self.get_traffic(m)
        return next((step for fence, step in traffic.steps.items() if fence != traffic.fence), None)

    def _apply_due_fault(self, m: int, message: str, k: int, frame: bytes) -> list[bytes]:
        fault = next((one for one in self.waiting if self._is_due(one, m, message, k)), None)
        if fault is None or self.is_paused() or self.get_traffic(m).dead:
            return [frame]
        self.waiting.remove(fault)
        # Wait until the last fault is recorded, because two faults at once could hide each other in the record.
        until = time.monotonic() + MAX_HOLD
        while self.injected and time.monotonic() < until and not is_recorded(self.injected[-1], self.events()):
            time.sleep(0.02)
        self.injected.append(InjectedFault(fault, len(self.events())))
        try:
            return self.inject(fault, frame)
        except Exception as error:  # gRPC would swallow an exception in its thread
            self.error = error
            return [frame]

    def _is_due(self, fault: Fault, m: int, message: str, k: int) -> bool:
        is_enabled = fault.client == m and self.get_traffic(m).settled >= fault.after
        if not is_enabled or not is_at_message(fault, message, k):
            return False
        if fault.kind in self.final_kinds and any(
            one.client == m and one.kind not in self.final_kinds for one in self.waiting
        ):
            return False
        return fault.kind != "replay" or self.get_old_step(m) is not None


def identify_frame(frame: bytes) -> tuple[str, int]:
    """Return the name of the message in a frame and its step number; ("", 0) if it cannot be decoded."""
    try:
        header = read_header(frame)
        return (decode(frame).event if header.kind == CONTROL else NAMES.get(header.kind, "")), header.k
    except BadMessage:
        return "", 0


def count_settled_visits(events: Sequence[Event]) -> int:
    """Count the visits that are committed or skipped."""
    return len({get_visit(event) for event in events if event["event"] in (*COMMIT_EVENTS, "skipped")})


def is_recorded(one: InjectedFault, events: Sequence[Event]) -> bool:
    """Return whether the server has recorded a fault; true if it cannot notice this kind."""
    kind = KINDS[one.fault.kind]
    m = one.fault.client if kind.client is None else kind.client
    return not kind.events or any(
        event["event"] in kind.events
        and kind.why in event.get("why", "")
        and (not kind.names_client or event.get("client") == m)
        for event in events[one.event_count :]
    )
