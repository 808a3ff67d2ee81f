"""The frames of one stream, at the client: whoever waits for one reads it, as every thread in between costs time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from splitrelay.errors import InputError, WorkError
from splitrelay.network import limits

TICK = 1.0  # seconds between two looks at the clock


class LinkLost(WorkError):
    """The server cannot be heard any more; the visit may go on over another link."""


class Unresolved(LinkLost):
    """The server's name is not known here; it may be mistyped."""


class Untrusted(LinkLost):
    """TLS refuses the server's certificate, or finds none: another attempt helps only after somebody has acted."""

    exit_code = InputError.exit_code


class Stream:
    """A call that goes both ways. One thread sends and reads; another watches the clock, and says that we are here."""

    def __init__(
        self,
        call: Any,
        heartbeat: float,
        beat: Callable[[int], bytes],
        address: str = "",
        stop: threading.Event | None = None,
        grace: float = limits.GRACE,
    ) -> None:
        """Call; `grace` seconds after `stop` is set the stream ends, whatever the server still owes."""
        self.heartbeat, self._beat, self._address = heartbeat, beat, address
        self._stop, self._grace = stop or threading.Event(), grace
        self._outgoing: SimpleQueue[tuple[bytes | None, bool]] = SimpleQueue()  # and whether it was put
        self._leaving = False  # the frame that is about to leave was put
        self._sent = threading.Event()
        self._over = threading.Event()
        self._heard = self.left = time.monotonic()  # when a frame last came, and when one that was put last left
        self._limit = math.inf  # when whoever reads has waited for too long
        self._aside: Aside | None = None
        self._ended = threading.Event()
        self._frames: Any = call(iter(self._taken, None))
        self._frames.add_callback(self._end)
        threading.Thread(target=self._watching, name="heartbeat", daemon=True).start()

    def put(self, frame: bytes) -> None:
        """One frame more on its way."""
        self._sent.clear()
        self._outgoing.put((frame, True))

    def flush(self) -> None:
        """Wait until it has left: whoever runs Python meanwhile, and be it to wait for the answer, keeps it back."""
        if self._frames.is_active():
            self._sent.wait(TICK)

    def finish(self) -> None:
        """Say no more, and wait a while until the server has heard it all: hanging up takes back what is on its way."""
        self._outgoing.put((None, False))
        if self._frames.is_active():
            self._ended.wait(2 * TICK)

    def read(self, until: float = math.inf) -> bytes:
        """The next frame; LinkLost where none comes until then, or for too long."""
        if self._aside is not None and self._aside.asked:
            return self._from_aside(self._aside, until)
        self._limit = min(until, time.monotonic() + limits.SILENCE)
        try:
            return self._next(until)
        finally:
            self._limit = math.inf

    def waits(self, seconds: float) -> bool:
        """Whether a frame is there within so many seconds: it is read aside, so as not to hang."""
        if self._aside is None:
            self._aside = Aside(self._next)
        if self._aside.waits(seconds):
            return True
        if time.monotonic() > self._heard + limits.SILENCE:
            raise _overdue(asked=False)
        return False

    def close(self) -> None:
        """Hang up."""
        self._over.set()
        self._outgoing.put((None, False))
        self._frames.cancel()
        if self._aside is not None:
            self._aside.close()

    def _from_aside(self, aside: Aside, until: float) -> bytes:
        while not self.waits(TICK):
            if time.monotonic() > until:
                raise _overdue(asked=True)
        return aside.take()

    def _next(self, until: float = math.inf) -> bytes:
        try:
            frame: bytes = next(self._frames)
        except StopIteration:
            raise LinkLost("the server hung up") from None
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed by us
            if time.monotonic() > self._limit:
                raise _overdue(asked=self._limit == until) from None
            raise _lost(error.details() if isinstance(error, grpc.Call) else str(error), self._address) from None
        self._heard = time.monotonic()
        return frame

    def _taken(self) -> bytes | None:
        """The next frame, for gRPC, which asks when the one before has left."""
        if self._leaving:
            self.left = time.monotonic()
        if self._outgoing.empty():
            self._sent.set()
        frame, self._leaving = self._outgoing.get()
        return frame

    def _end(self) -> None:
        self._ended.set()
        self._sent.set()  # nothing leaves on a stream that is over

    def _watching(self) -> None:
        number, last, stopped = 0, time.monotonic(), math.inf
        while not self._over.wait(min(TICK, max(last + self.heartbeat - time.monotonic(), 0.0))):
            now = time.monotonic()
            stopped = min(stopped, now) if self._stop.is_set() else math.inf
            if now > self._limit or now - stopped >= self._grace:
                self._frames.cancel()  # whoever reads learns why
            if now >= last + self.heartbeat:
                number, last = number + 1, now
                self._outgoing.put((self._beat(number), False))  # every state allows it, none changes


class Aside:
    """A thread that reads one frame when asked, so that whoever asked can look at something else meanwhile."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.asked = False
        self._read = read
        self._asking: SimpleQueue[bool] = SimpleQueue()
        self._come: SimpleQueue[bytes | LinkLost] = SimpleQueue()
        self._found: bytes | LinkLost | None = None
        threading.Thread(target=self._reading, name="link", daemon=True).start()

    def waits(self, seconds: float) -> bool:
        """Ask, if nobody did; whether it has come within so many seconds."""
        if not self.asked:
            self.asked = True
            self._asking.put(True)
        if self._found is None:
            try:
                self._found = self._come.get(timeout=seconds)
            except Empty:
                return False
        return True

    def take(self) -> bytes:
        """What has come; LinkLost where nothing will."""
        found, self._found, self.asked = self._found, None, False
        if isinstance(found, LinkLost):
            raise found
        assert found is not None  # it has waited
        return found

    def close(self) -> None:
        """Nobody will ask any more."""
        self._asking.put(False)

    def _reading(self) -> None:
        while self._asking.get():
            try:
                self._come.put(self._read())
            except LinkLost as error:
                self._come.put(error)


# What gRPC says of a server that TLS refuses: what that means, and what to do about it.
DISTRUST = {
    "has expired": ("the certificate of {0} has expired", "Have it renewed there: splitrelay keys renew NAME"),
    "not yet valid": ("the certificate of {0} is not valid yet", "Set the clocks of both hosts."),
    "Hostname Verification": (
        "the certificate of {0} is not for this host",
        "Dial a host that it names, or issue it anew: splitrelay keys issue server --host {0}",
    ),
    "not in peer certificate": (
        "the certificate of {0} is not for this host",
        "Dial a host that it names, or issue it anew: splitrelay keys issue server --host {0}",
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the certificate of {0} is not from our authority",
        "Use keys of the consortium whose server this is, or dial another address.",
    ),
    "WRONG_VERSION_NUMBER": (
        "{0} does not speak TLS",
        "Is it another program, or a server that was started with --insecure?",
    ),
}


def untrusted(details: str | None, address: str = "") -> Untrusted | None:
    """Return the error where gRPC's details say that TLS refused the server; None where they say anything else."""
    what = " ".join(str(details).split())
    host = address.rpartition(":")[0].strip("[]") or "the server"
    for sign, (problem, hint) in DISTRUST.items():
        if sign in what:
            return Untrusted(problem.format(host), value=what[-200:], hint=hint.format(host))
    return None


def _lost(details: str | None, address: str = "") -> LinkLost:
    """What gRPC says of it, where that is known in plainer words."""
    refused = untrusted(details, address)
    if refused is not None:
        return refused
    what = " ".join(str(details).split())[:200]
    if "resolving" in what or "DNS resolution failed" in what:
        return Unresolved("the server's name cannot be resolved", value=what)
    return LinkLost("nobody listens there" if "Connection refused" in what else "the link was lost", value=what)


def _overdue(asked: bool) -> LinkLost:
    return LinkLost("the server does not answer" if asked else "the server has fallen silent")
