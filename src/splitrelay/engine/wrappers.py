"""Wrappers around clients: record visits, count costs, or fail on purpose. Tests and rehearsals use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, Outcome, Skipped, Visit
from splitrelay.vectors import X


@dataclass(frozen=True)
class VisitRecorder(Generic[X]):
    """Record (r, i, m, K) of every visit, in the order in which the algorithm asked for them."""

    clients: Clients[X]
    visits: list[tuple[int, int, int, int]] = field(default_factory=list)

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Record one visit and run it."""
        self.visits.append((visit.r, visit.i, visit.m, visit.K))
        return self.clients.run(visit)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Record all visits, then run them together."""
        recorded = list(visits)
        self.visits.extend((visit.r, visit.i, visit.m, visit.K) for visit in recorded)
        return self.clients.run_all(recorded)


@dataclass(frozen=True)
class Flaky(Generic[X]):
    """Skip the visits for which `fails` is true."""

    clients: Clients[X]
    fails: Callable[[Visit[X]], bool]

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Skip one visit, or run it."""
        return Skipped("fails on purpose") if self.fails(visit) else self.clients.run(visit)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Run the visits one by one, since each may fail."""
        return map(self.run, visits)


@dataclass
class CostCounter(Generic[X]):
    """Add up the costs of visits. The sums are part of a run's record; a resumed run restores them."""

    clients: Clients[X]
    up: int = 0
    down: int = 0
    losses: list[float] = field(default_factory=list)  # of the visits since the last evaluation

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Run one visit and count it."""
        return self._count(self.clients.run(visit))

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Count the outcomes in the order in which they are read."""
        return map(self._count, self.clients.run_all(visits))

    def _count(self, outcome: Outcome[X]) -> Outcome[X]:
        if isinstance(outcome, Done):
            self.up += outcome.cost.up
            self.down += outcome.cost.down
            self.losses.append(outcome.cost.loss)
        return outcome
