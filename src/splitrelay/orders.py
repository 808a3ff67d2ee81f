"""Who trains in round r, and in which order: a function of r, so that resuming needs no replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from splitrelay.errors import OutOfRange
from splitrelay.randomness import Purpose, rng


class Order(Protocol):
    """r -> the clients of round r, in training order."""

    def __call__(self, r: int, /) -> Sequence[int]: ...


@dataclass(frozen=True)
class Permutation:
    """A fresh permutation of all M clients every round: Algorithm 1's order."""

    M: int
    seed: int

    def __call__(self, r: int, /) -> list[int]:
        return _permutation(self.M, self.seed, r)


@dataclass(frozen=True)
class Sampled:
    """S of M clients, drawn without replacement every round; the order of the draw is the training order."""

    M: int
    S: int
    seed: int

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        return _permutation(self.M, self.seed, r, self.S)


@dataclass(frozen=True)
class Consumed:
    """One permutation of all M, consumed S clients a round; used up, the next one begins, even in mid-round."""

    M: int
    S: int
    seed: int

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        first, last = r * self.S, (r + 1) * self.S - 1
        numbers = range(first // self.M, last // self.M + 1)  # of the permutations that this round touches
        clients = [m for number in numbers for m in _permutation(self.M, self.seed, number)]
        start = first - numbers[0] * self.M
        return clients[start : start + self.S]


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


def _permutation(M: int, seed: int, number: int, S: int | None = None) -> list[int]:
    """All of it, or its first S: of 10^5 clients a list takes longer than the permutation."""
    clients: list[int] = rng(seed, Purpose.ORDER, number).permutation(M)[:S].tolist()
    return clients


def _check_participants(S: int, M: int) -> None:
    if not 1 <= S <= M:
        raise OutOfRange("participants a round, S", limit=f"1 <= S <= M = {M}", value=S)
