"""Who trains in round r, and in which order: a function of r, so that resuming needs no replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from splitrelay.errors import OutOfRange
from splitrelay.randomness import Purpose, rng


class Order(Protocol):
    """r -> the clients of round r, in training order."""

    def __call__(self, r: int, /) -> Sequence[int]: ...


class Shuffled(Protocol):
    """The clients 0, ..., M-1 in the permutation of a number, from place `start` up to, not with, `stop`."""

    def __call__(self, M: int, seed: int, number: int, start: int, stop: int, /) -> list[int]: ...


def shuffled(M: int, seed: int, number: int, start: int, stop: int) -> list[int]:
    """As numpy draws it; of 10^5 clients a list takes longer than the permutation, so only the part becomes one."""
    clients: list[int] = rng(seed, Purpose.ORDER, number).permutation(M)[start:stop].tolist()
    return clients


@dataclass(frozen=True)
class Permutation:
    """A fresh permutation of all M clients every round: Algorithm 1's order."""

    M: int
    seed: int
    shuffled: Shuffled = field(default=shuffled, repr=False)  # whoever draws the same numbers sooner

    def __call__(self, r: int, /) -> list[int]:
        return self.shuffled(self.M, self.seed, r, 0, self.M)


@dataclass(frozen=True)
class Sampled:
    """S of M clients, drawn without replacement every round; the order of the draw is the training order."""

    M: int
    S: int
    seed: int
    shuffled: Shuffled = field(default=shuffled, repr=False)

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        return self.shuffled(self.M, self.seed, r, 0, self.S)


@dataclass(frozen=True)
class Consumed:
    """One permutation of all M, consumed S clients a round; used up, the next one begins, even in mid-round."""

    M: int
    S: int
    seed: int
    shuffled: Shuffled = field(default=shuffled, repr=False)

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        number, start = divmod(r * self.S, self.M)  # of the permutation in which this round begins, and where
        stop = start + self.S
        clients = self.shuffled(self.M, self.seed, number, start, min(stop, self.M))
        return clients if stop <= self.M else clients + self.shuffled(self.M, self.seed, number + 1, 0, stop - self.M)


@dataclass(frozen=True)
class WithReplacement:
    """S clients a round, each drawn from all M: a client may come twice."""

    M: int
    S: int
    seed: int

    def __call__(self, r: int, /) -> list[int]:
        return [int(m) for m in rng(self.seed, Purpose.ORDER, r).integers(self.M, size=self.S)]


@dataclass(frozen=True)
class Fixed:
    """The same clients in the same order, every round."""

    clients: Sequence[int]

    @classmethod
    def first(cls, M: int, S: int) -> Fixed:
        """The first S of M clients."""
        _check_participants(S, M)
        return cls(range(S))

    def __call__(self, r: int, /) -> Sequence[int]:
        return self.clients


@dataclass(frozen=True)
class Among:
    """Another order, over these clients only: those without samples are never drawn."""

    order: Order
    clients: Sequence[int]

    def __call__(self, r: int, /) -> list[int]:
        return [self.clients[j] for j in self.order(r)]


def _check_participants(S: int, M: int) -> None:
    if not 1 <= S <= M:
        raise OutOfRange("participants a round, S", limit=f"1 <= S <= M = {M}", value=S)
