"""Keep the state of the clients' optimisers (momentum, means of gradients) between visits, for any algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from splitrelay.algorithms.base import Algorithm, Clients, Done, Memory, Outcome, State, UpdateRule, Visit
from splitrelay.vectors import X

CHAIN = 0  # the key of the one memory that is handed on


@dataclass(frozen=True)
class RememberedState(Generic[X, State]):
    """The state of the inner algorithm, and the optimiser's state of each client that has trained.

    Attributes:
        vectors: One mapping from clients to vectors for each vector of the optimiser.
        steps: The number of steps of each client's optimiser.
    """

    inner: State
    vectors: tuple[Mapping[int, X], ...]
    steps: Mapping[int, int]


@dataclass(frozen=True)
class Remembered(Generic[X, State]):
    """Any algorithm whose clients do not reset their optimiser.

    A rule with memory=kept gives each client the state that its own last visit left. memory=handed gives each visit
    the state of the visit before it, as if one optimiser travelled with x. If a client occurs twice in a parallel
    round, both visits start from its state before the round, and the later one in the order stays.

    By hand, SSL with F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, momentum 1/2, K = 1, order (1, 2): client 1
    has v = 3 and ends at 1/2. With memory=handed client 2 has v = 3/2 - 1/2 = 1, so x^1 = 0. With memory=reset or
    memory=kept it has v = -1/2, so x^1 = 3/4.
    """

    algorithm: Algorithm[X, State]
    rule: UpdateRule
    momentum: float = 0

    def init(self, x0: X, /) -> RememberedState[X, State]:
        count = self.rule.count_vectors(self.momentum)
        return RememberedState(self.algorithm.init(x0), tuple({} for _ in range(count)), {})

    def round(
        self, r: int, state: RememberedState[X, State], order: Sequence[int], clients: Clients[X], /
    ) -> RememberedState[X, State]:
        memories = {
            m: Memory(tuple(vectors[m] for vectors in state.vectors), steps) for m, steps in state.steps.items()
        }
        keeper = _MemoryClients(clients, memories, is_shared=self.rule.memory == "handed")
        inner = self.algorithm.round(r, state.inner, order, keeper)
        found = sorted(keeper.memories.items())
        vectors = tuple({m: memory.vectors[j] for m, memory in found} for j in range(len(state.vectors)))
        return RememberedState(inner, vectors, {m: memory.steps for m, memory in found})

    def model(self, state: RememberedState[X, State], /) -> X:
        return self.algorithm.model(state.inner)


@dataclass
class _MemoryClients(Generic[X]):
    """Clients that add the optimiser's state to each visit and store the one that it leaves."""

    clients: Clients[X]
    memories: dict[int, Memory[X]]
    is_shared: bool

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        return self._store(visit, self.clients.run(self._add_memory(visit)))

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        given = [self._add_memory(visit) for visit in visits]
        for visit, outcome in zip(given, self.clients.run_all(given), strict=True):
            yield self._store(visit, outcome)

    def _add_memory(self, visit: Visit[X]) -> Visit[X]:
        return replace(visit, memory=self.memories.get(CHAIN if self.is_shared else visit.m))

    def _store(self, visit: Visit[X], outcome: Outcome[X]) -> Outcome[X]:
        if isinstance(outcome, Done) and outcome.memory is not None:
            self.memories[CHAIN if self.is_shared else visit.m] = outcome.memory
        return outcome
