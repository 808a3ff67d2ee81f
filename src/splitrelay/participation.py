"""The clients of round r and their order. An order is a function of r, so resuming needs no replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from splitrelay.errors import OutOfRange
from splitrelay.randomness import Purpose, rng


class Order(Protocol):
    """Maps the round r to its clients, in training order."""

    def __call__(self, r: int, /) -> Sequence[int]: ...


class PermutationSource(Protocol):
    """Returns the positions start, ..., stop - 1 of the permutation of 0, ..., M-1 with this seed and number."""

    def __call__(self, M: int, seed: int, number: int, start: int, stop: int, /) -> list[int]: ...


def draw_permutation(M: int, seed: int, number: int, start: int, stop: int) -> list[int]:
    """Draw a permutation with numpy and return a part of it.

    Only this part becomes a list: for 10^5 clients the conversion takes longer than the permutation.
    """
    clients: list[int] = rng(seed, Purpose.ORDER, number).permutation(M)[start:stop].tolist()
    return clients


@dataclass(frozen=True)
class Permutation:
    """A new permutation of all M clients in every round (Algorithm 1 of the paper)."""

    M: int
    seed: int
    draw: PermutationSource = field(default=draw_permutation, repr=False)  # a faster source draws the same numbers

    def __call__(self, r: int, /) -> list[int]:
        return self.draw(self.M, self.seed, r, 0, self.M)


@dataclass(frozen=True)
class Sampled:
    """S of M clients, drawn without replacement in every round. They train in the order of the draw."""

    M: int
    S: int
    seed: int
    draw: PermutationSource = field(default=draw_permutation, repr=False)

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        return self.draw(self.M, self.seed, r, 0, self.S)


@dataclass(frozen=True)
class Consumed:
    """The next S clients of a permutation of all M. At its end the next permutation starts, even within a round."""

    M: int
    S: int
    seed: int
    draw: PermutationSource = field(default=draw_permutation, repr=False)

    def __post_init__(self) -> None:
        _check_participants(self.S, self.M)

    def __call__(self, r: int, /) -> list[int]:
        number, start = divmod(r * self.S, self.M)  # the permutation in which this round starts, and the position
        stop = start + self.S
        clients = self.draw(self.M, self.seed, number, start, min(stop, self.M))
        return clients if stop <= self.M else clients + self.draw(self.M, self.seed, number + 1, 0, stop - self.M)


@dataclass(frozen=True)
class WithReplacement:
    """S clients per round, each drawn from all M. The same client may occur more than once."""

    M: int
    S: int
    seed: int

    def __call__(self, r: int, /) -> list[int]:
        return [int(m) for m in rng(self.seed, Purpose.ORDER, r).integers(self.M, size=self.S)]


@dataclass(frozen=True)
class Fixed:
    """The same clients in the same order in every round."""

    clients: Sequence[int]

    @classmethod
    def first(cls, M: int, S: int) -> Fixed:
        """Return the order 0, ..., S-1 of M clients."""
        _check_participants(S, M)
        return cls(range(S))

    def __call__(self, r: int, /) -> Sequence[int]:
        return self.clients


@dataclass(frozen=True)
class SubsetOrder:
    """An order over a subset of the clients. It is used to leave out clients without samples."""

    order: Order
    clients: Sequence[int]

    def __call__(self, r: int, /) -> list[int]:
        return [self.clients[j] for j in self.order(r)]


def _check_participants(S: int, M: int) -> None:
    if not 1 <= S <= M:
        raise OutOfRange("participants per round, S", limit=f"1 <= S <= M = {M}", value=S)
