"""A visit that is asked for, as the server keeps it, and its patience with whoever is to make it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from splitrelay.algorithms.base import Visit
from splitrelay.deploy.server_visit import ServerVisit
from splitrelay.network import limits
from splitrelay.network.messages import Deposit, Finish, Handed, Message, Ready, Step


@dataclass(frozen=True)
class Policy:
    """What happens when a client stays away: `wait` for it, `retry` a few leases and then stop, or `skip` its visit."""

    away: str = "wait"
    lease: float = limits.LEASE  # seconds that a client may be away before its visit is taken back
    step: float = limits.STEP  # seconds that a client may take for one step
    retries: int = 3  # also the failures of one visit after which the run stops, or the visit is skipped
    visit: float | None = None  # seconds that a whole visit may take; None: see `deadline`
    strikes: int = 3  # failed visits after which a client is in quarantine; 0: never
    forgive: int = 10  # committed visits in a row that forgive one strike
    probation: tuple[float, float] = (60.0, 3600.0)  # seconds of a client's first quarantine, and of the longest
    stalled: float | None = None  # seconds after which a wait is reported; None: as long as a lease

    def deadline(self, K: int) -> float:
        """Return the seconds that a visit of K steps may take: by default what K steps and two transfers may."""
        return self.step * (K + 2) if self.visit is None else self.visit

    @property
    def stalled_after(self) -> float:
        """The seconds after which a wait is reported."""
        return self.lease if self.stalled is None else self.stalled


@dataclass
class VisitLease:
    """A visit that is asked for: at first nobody has it, then it is leased."""

    index: int
    visit: Visit[Any]
    since: float  # when the client was last missed
    server_visit: ServerVisit | None = None
    fence: int = 0
    link: int | None = None
    granted: float = 0.0  # when it was first leased since it last failed, expired or could not be made yet
    missed: float = 0.0  # when it last lost its link, or was asked for without one
    idle: float = 0.0  # when it last got further than ever before, or was asked for
    struck: bool = False  # it was a strike of its client
    on: float = 0.0  # since when it is on that link
    heard: float = 0.0  # when it last got further, on a link
    stage: int = 0  # how far it is in its words
    moved: tuple[int, int] = (0, 0)  # bytes of the half on this link, up and down
    best: int = 0  # how far it has ever been
    links: int = 0  # since then
    wanted: bool = False  # the half that was not handed over has been asked for
    handed: int | None = None  # the link on which it was said that the half was handed on
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    unable: float | None = None  # since when the client says that it cannot make the visit yet,
    why: str = ""  # and the reason
    after: float = 0.0  # not to be leased before

    def __post_init__(self) -> None:
        self.missed = self.idle = self.since

    def begin(self, server_visit: ServerVisit, fence: int, link: int, now: float) -> None:
        """It is leased."""
        self.server_visit, self.fence, self.link, self.heard, self.on = server_visit, fence, link, now, now
        self.granted = self.granted or now  # a client that begins afresh has no more time
        self.stage, self.moved, self.wanted, self.handed = 0, (0, 0), False, None

    def reach(self, message: Message, now: float) -> None:
        """A word that is further than all before it is progress; one that was said before is not."""
        stage = get_stage(message, self.visit.K)
        if stage > self.stage:
            self.stage, self.heard = stage, now
        if stage > self.best:
            self.best, self.links, self.unable, self.why, self.idle = stage, 0, None, "", now

    def move(self, carried: tuple[int, int], now: float) -> None:
        """So is a half that grows on its way, piece by piece."""
        if has_grown(self.moved, carried):
            self.moved, self.heard = carried, now

    def resume(self, link: int, now: float) -> None:
        """It goes on over another link: the time without one was not its own."""
        self.heard += max(now - self.since, 0.0)
        self.link, self.on, self.moved = link, now, (0, 0)


def has_grown(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Whether a half has come a piece further, up or down; a byte at a time is no way to send one."""
    return any(after - then >= limits.PIECE for then, after in zip(before, now, strict=True))


def get_stage(message: Message, K: int) -> int:
    """How far a visit of K steps is when this is said in it; 0 for what may be said at any time."""
    if isinstance(message, Step):
        return message.k + 2
    stages: dict[type[Message], int] = {Ready: 1, Finish: K + 2, Handed: K + 3, Deposit: K + 4}
    return stages.get(type(message), 0)
