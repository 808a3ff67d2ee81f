"""Clients around clients: counted, or failing on purpose. They are shipped because tests and rehearsals use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, Outcome, Skipped, Visit
from splitrelay.vectors import X


@dataclass(frozen=True)
class Metered(Generic[X]):
    """Keeps a note (r, i, m, K) of every visit, in the order in which they were asked for."""

    clients: Clients[X]
    visits: list[tuple[int, int, int, int]] = field(default_factory=list)

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Note it, then pass it on."""
        self.visits.append((visit.r, visit.i, visit.m, visit.K))
        return self.clients.run(visit)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Note them all, then pass them on together."""
        noted = list(visits)
        self.visits.extend((visit.r, visit.i, visit.m, visit.K) for visit in noted)
        return self.clients.run_all(noted)


@dataclass(frozen=True)
class Flaky(Generic[X]):
    """Skips the visits that `fails` names."""

    clients: Clients[X]
    fails: Callable[[Visit[X]], bool]

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Skipped, or passed on."""
        return Skipped("fails on purpose") if self.fails(visit) else self.clients.run(visit)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """One by one, since each may fail."""
        return map(self.run, visits)


@dataclass
class Tallied(Generic[X]):
    """Adds up what visits cost; the sums are part of a run's record, and setting them back resumes it."""

    clients: Clients[X]
    up: int = 0
    down: int = 0
    losses: list[float] = field(default_factory=list)  # of the visits since the last look

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Pass it on, then count it."""
        return self._counted(self.clients.run(visit))

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Count the answers in the order in which they are read."""
        return map(self._counted, self.clients.run_all(visits))

    def _counted(self, outcome: Outcome[X]) -> Outcome[X]:
        if isinstance(outcome, Done):
            self.up += outcome.cost.up
            self.down += outcome.cost.down
            self.losses.append(outcome.cost.loss)
        return outcome
