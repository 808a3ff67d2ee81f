"""Clients around clients: counted, or failing on purpose. They are shipped because tests and rehearsals use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from splitrelay.algorithms.base import Clients, Outcome, Skipped, Visit
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
