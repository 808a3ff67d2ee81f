"""The two ends of the outer seam: an algorithm hands visits to clients, clients answer with outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from splitrelay.errors import OutOfRange
from splitrelay.vectors import Scalar, X

State = TypeVar("State")
LocalSteps = int | Sequence[int] | Mapping[int, int]


@dataclass(frozen=True)
class Step(Generic[X]):
    """One local step, as data, because it must travel: x - eta (clipped gradient + weight_decay x + prox (x - start)).

    shift is added to every gradient before anything else (SCAFFOLD's control variates). clip bounds the norm of the
    whole gradient wherever x is cut; per_half, that of each half by itself, which is another algorithm.
    """

    eta: Scalar
    weight_decay: float = 0
    clip: float | None = None
    momentum: float = 0
    prox: float = 0
    shift: X | None = None
    per_half: bool = False


@dataclass(frozen=True)
class Visit(Generic[X]):
    """In round r, for the i-th time in that round, client m starts at x and takes K local steps (the paper's tau_m)."""

    r: int
    i: int
    m: int
    x: X
    step: Step[X]
    K: int


@dataclass(frozen=True)
class Cost:
    """What a visit took: bytes from the client and to it, and the mean loss of its steps."""

    up: int = 0
    down: int = 0
    loss: float = math.nan


@dataclass(frozen=True)
class Done(Generic[X]):
    """The client finished its visit at x."""

    x: X
    cost: Cost = Cost()


@dataclass(frozen=True)
class Skipped:
    """The client could not do its visit; the record says why."""

    why: str


Outcome = Done[X] | Skipped


class Clients(Protocol[X]):
    """The clients, as an algorithm sees them: in this process, in a pool, or on other hosts."""

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """One visit."""
        ...

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Many visits, in parallel where that can be had; answers in the order of the visits."""
        ...


class Cut(Protocol[X]):
    """Where x = [bottom; top] is cut: what algorithms need to know that treat the two halves differently."""

    def halves(self, x: X, /) -> tuple[X, X]:
        """(bottom, top): the clients' half and the server's."""
        ...

    def join(self, bottom: X, top: X, /) -> X:
        """The whole model."""
        ...


class Algorithm(Protocol[X, State]):
    """What a round does. State is a value: checkpointed, resumed, compared. For SSL and FedAvg it is x itself."""

    def init(self, x0: X, /) -> State:
        """The state before the first round."""
        ...

    def round(self, r: int, state: State, order: Sequence[int], clients: Clients[X], /) -> State:
        """The state after round r, in which the clients in `order` take part."""
        ...

    def model(self, state: State, /) -> X:
        """The global model in a state."""
        ...


def occurrences(order: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(i, m) for each client of the order: m occurs for the i-th time. Drawn twice, a client draws other batches."""
    seen: Counter[int] = Counter()
    for m in order:
        yield seen[m], m
        seen[m] += 1


def turns(order: Sequence[int], G: int) -> Iterator[list[tuple[int, int]]]:
    """The order dealt to G groups like cards: each turn is the next client (i, m) of group 0, 1, ..., G-1."""
    if not 1 <= G <= len(order):
        raise OutOfRange("number of groups G", limit=f"1 <= G <= {len(order)} clients a round", value=G)
    named = list(occurrences(order))
    for start in range(0, len(named), G):
        yield named[start : start + G]


def tau(K: LocalSteps, m: int) -> int:
    """The local steps of client m: one number for all, or the paper's own tau_m per client."""
    return K if isinstance(K, int) else K[m]


def globally(gamma: Scalar, x: X, result: X) -> X:
    """The global step: x + gamma (result - x). With gamma = 1 it is the result, to the last bit."""
    return result if _is_one(gamma) else x + gamma * (result - x)


def _is_one(gamma: Any) -> bool:
    return bool(getattr(gamma, "shape", ()) == () and gamma == 1)
