"""What travels between a sweep and the places where its points are run: errands there, news back."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Errand:
    """A point as it travels: plain words and numbers."""

    name: str
    spec: dict[str, Any]
    path: str
    checkpoint: int = 10

    def plain(self) -> dict[str, Any]:
        """For JSON, and for anything else that carries dicts."""
        return asdict(self)


@dataclass(frozen=True)
class News:
    """What became of a point: running (with its last round, if any), done, diverged, failed or stopped."""

    name: str
    state: str
    round: int | None = None
    accuracy: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Share:
    """Every n-th point from the i-th on: what one of n hosts runs without a word to the others."""

    i: int = 1
    n: int = 1

    @property
    def suffix(self) -> str:
        """Of what is kept for a share beside the runs."""
        return "" if self.n == 1 else f"-{self.i}-of-{self.n}"

    def of(self, things: Sequence[T]) -> list[T]:
        """The share's own."""
        return list(things[self.i - 1 :: self.n])


ALL = Share()


class Places(Protocol):
    """Where points are run: the cores of this machine, or a cluster."""

    def run(self, errands: Sequence[Errand], stop: Event, /) -> Generator[News | None, None, None]:
        """All of them, as many at once as there is room for; None now and then, so that somebody can look at the clock.

        Once `stop` is set no further point is begun, and those at work end after the visit they are at.
        """
        ...
