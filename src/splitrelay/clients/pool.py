"""Clients in this process, a few at a time: one engine and one thread for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, Protocol

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.errors import OutOfRange
from splitrelay.vectors import X


class Engine(Protocol[X]):
    """Runs the local steps of one visit at a time, of any client."""

    def run(self, visit: Visit[X], /) -> Done[X]:
        """K local steps."""
        ...


class Pool(Generic[X]):
    """Any client on any engine. As visits carry all names, who serves whom changes nothing."""

    def __init__(self, engines: Sequence[Engine[X]]) -> None:
        if not engines:
            raise OutOfRange("engines of a pool", limit="at least 1", value=0)
        self._idle: SimpleQueue[Engine[X]] = SimpleQueue()
        for engine in engines:
            self._idle.put(engine)
        self._threads = ThreadPoolExecutor(len(engines)) if len(engines) > 1 else None

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """One visit, on whichever engine is idle."""
        engine = self._idle.get()
        try:
            return engine.run(visit)
        finally:
            self._idle.put(engine)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """As many at once as there are engines; answers in the order of the visits."""
        return map(self.run, visits) if self._threads is None else self._threads.map(self.run, visits)
