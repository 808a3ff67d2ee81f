"""A client's standing with the server: blocking, as a client does one thing at a time; lost links are made anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event

import grpc

from splitrelay.errors import SplitrelayError, WorkError
from splitrelay.network import limits
from splitrelay.network.client_stream import Unresolved, Untrusted
from splitrelay.network.codec import ANY, VERSION, Bounds
from splitrelay.network.control import BadMessage
from splitrelay.network.link import Ended, Link, LinkLost, Meter, Refused, TakenBack, channel
from splitrelay.network.messages import Accept, Hello, Leave, Message, Resume, Terms, Welcome, fence_of

REFUSALS = 5  # in a row, after which trying again makes no sense


class NoServer(WorkError):
    """The client's patience is at an end."""


class Stopped(SplitrelayError):
    """The client was told to stop while it knocked."""


@dataclass
class Holding:
    """The visit that the client is at: its fence, and how many of its steps were answered."""

    fence: int = 0
    k: int = 0
    losses: int = 0  # connections that were lost during it


Agree = Callable[[Terms], Accept]


class Session:
    """A client's standing with the server over as many links as it takes."""

    def __init__(
        self,
        client: int,
        dial: Callable[[], grpc.Channel],
        agree: Agree,
        *,
        software: str = "",
        patience: float = 0.0,
        stop: Event | None = None,
        address: str = "",
        grace: float = limits.GRACE,
    ) -> None:
        self.client, self.dial, self.agree, self.software = client, dial, agree, software
        self.address = address  # HOST:PORT that is dialed, for messages
        self.welcomed = False  # at least once: a server that TLS refuses later may be mended
        self.stop = stop or Event()  # whoever knocks in vain leaves when it is set
        self.grace = grace  # seconds that a visit may still take then
        self.patience = patience  # seconds without a server after which the client gives up; 0: never
        self.holding = Holding()
        self.meter = Meter()
        self.bounds: Bounds = ANY
        self.link: Link | None = None
        self.note: Callable[[str], None] = lambda text: None
        self.warn: Callable[[str], None] = lambda text: self.note(text)  # what somebody must see to
        self.links = 0
        self.fruitless = 0  # links in a row on which nothing was asked of us

    def reconnect(self) -> None:
        """Another link; where that has helped nothing before, after a while: somebody else may have the same keys."""
        self._pause(self.fruitless)
        self.fruitless += 1
        self.connect()

    def connect(self) -> bool:
        """A link, with the handshake behind it; whether the held visit goes on. Tries until it can be had."""
        wait, longest = limits.BACKOFF
        began, refusals = time.monotonic(), 0
        while True:
            self._check_stop()
            try:
                return self._handshake()
            except (LinkLost, Refused, Ended) as error:
                refusals += isinstance(error, Refused)
                stranger = isinstance(error, Untrusted) and not self.welcomed
                if hopeless(error) or stranger or refusals >= REFUSALS:
                    raise
                if 0 < self.patience < time.monotonic() - began:
                    raise NoServer(f"no server within {self.patience:g} seconds", value=str(error)) from None
                said = (
                    self.warn if isinstance(error, Unresolved | Untrusted) and wait == limits.BACKOFF[0] else self.note
                )
                said(f"no link yet: {error}; trying again in {wait:.1f} s")
            if self.stop.wait(wait):
                raise Stopped("told to stop before a server was found")
            self.meter.waiting += wait
            wait = min(2 * wait, longest)

    def hang_up(self) -> None:
        """Close the link, if there is one."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def leave(self, why: str) -> None:
        """Say that we go, if there is anybody to hear it."""
        if self.link is not None:
            self.link.send(Leave(why))
            self.link.stream.finish()

    def say(self, *messages: Message) -> None:
        """Tell the server, on whichever link there is."""
        assert self.link is not None
        for message in messages:
            self.link.send(message)

    def hear(self, timeout: float | None = None) -> Message:
        """The server's next word."""
        assert self.link is not None
        return self.link.receive(timeout)

    def exchange(
        self,
        messages: Callable[[], Iterator[Message]],
        timeout: float,
        fence: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Message:
        """Say, and wait for the answer; over a new link, if need be, as long as the visit is still ours."""
        fence, tries = fence or self.holding.fence, 0
        while True:
            try:
                if self.link is None and not self.connect():
                    raise TakenBack("the visit was taken back while the link was lost")
                assert self.link is not None
                self.say(*messages())
                self.link.stream.flush()
                if meanwhile is not None:
                    meanwhile()
                return self._answer(fence, timeout)
            except (LinkLost, Ended, Refused) as error:
                self.hang_up()
                self._check_stop()
                if hopeless(error) or (isinstance(error, Refused) and tries >= REFUSALS):
                    raise
                self.holding.losses += 1
                if self.holding.losses > limits.LINKS:
                    raise LinkLost(f"{self.holding.losses} connections were lost in one visit") from None
                self.note(f"{error}; connecting again")
            self._pause(tries)
            tries += 1

    def _check_stop(self) -> None:
        """Raise Stopped where the client was told to stop: it does not begin anew then."""
        if self.stop.is_set():
            raise Stopped("told to stop")

    def _pause(self, tries: int) -> None:
        """Not at all, then longer and longer: who loses link after link does not help by calling at once."""
        shortest, longest = limits.BACKOFF
        if tries and self.stop.wait(min(shortest * 2.0 ** min(tries, 30), longest)):
            raise Stopped("told to stop before it was connected again")

    def _answer(self, fence: int, timeout: float) -> Message:
        while True:
            answer = self.hear(timeout)
            if fence_of(answer) == fence:
                return answer

    def _handshake(self) -> bool:
        self.hang_up()
        self.link = Link(self.dial(), meter=self.meter, address=self.address, stop=self.stop, grace=self.grace)
        self.links += 1
        self.link.send(Hello(VERSION, self.client, self.software))
        terms = self.link.receive(limits.HANDSHAKE)
        assert isinstance(terms, Terms)  # the table allows nothing else
        accept = self.agree(terms)
        self.link.stream.heartbeat = terms.heartbeat
        self.link.send(Accept(**{**vars(accept), "fence": self.holding.fence, "k": self.holding.k}))
        answer = self.link.receive(limits.HANDSHAKE)
        self.link.bounds = self.bounds
        self.welcomed = True
        if isinstance(answer, Resume):
            self.link.talk.take_up(self.holding.k)
            return True
        assert isinstance(answer, Welcome)
        self.holding = Holding()
        return False


def hopeless(error: SplitrelayError) -> bool:
    """Whether another link would not help."""
    return (isinstance(error, Refused) and error.final) or (isinstance(error, Ended) and not error.again)


__all__ = [
    "BadMessage",
    "Ended",
    "Holding",
    "Link",
    "LinkLost",
    "Meter",
    "NoServer",
    "Refused",
    "Session",
    "Stopped",
    "TakenBack",
    "channel",
]
