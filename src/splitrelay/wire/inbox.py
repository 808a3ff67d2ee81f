"""What the event loop tells the one thread that trains: who came, who went, who said what."""

from __future__ import annotations

from dataclasses import dataclass

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
