"""Clients in this process, a few at a time: one engine and one thread for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
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
        self._helpers = ThreadPoolExecutor(len(engines) - 1) if len(engines) > 1 else None
        self._number = len(engines)

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """One visit, on whichever engine is idle."""
        engine = self._idle.get()
        try:
            return engine.run(visit)
        finally:
            self._idle.put(engine)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """As many at once as there are engines; answers in the order of the visits."""
        if self._helpers is None:
            return map(self.run, visits)
        together = Together(self.run, visits)
        for _ in range(self._number - 1):
            self._helpers.submit(together.work)
        return together.answers()


class Together(Generic[X]):
    """Visits that are done by several threads, of which the caller's is one: it does not wait while there is work."""

    def __init__(self, run: Callable[[Visit[X]], Outcome[X]], visits: Iterable[Visit[X]]) -> None:
        self.run = run
        self.promised: deque[Future[Outcome[X]]] = deque()
        self.open: SimpleQueue[tuple[Visit[X], Future[Outcome[X]]]] = SimpleQueue()
        for visit in visits:
            self.promised.append(Future())
            self.open.put((visit, self.promised[-1]))

    def work(self) -> None:
        """Visit after visit, until none is left."""
        while self.one():
            pass

    def one(self) -> bool:
        """The next visit that nobody has begun, if there is one; what goes wrong is told when its answer is read."""
        try:
            visit, answer = self.open.get_nowait()
        except Empty:
            return False
        try:
            answer.set_result(self.run(visit))
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):  # Ctrl-C does not wait for its turn
                raise
        return True

    def answers(self) -> Iterator[Outcome[X]]:
        """In the order of the visits; none is kept once it is read."""
        try:
            while self.promised:
                answer = self.promised.popleft()
                while not answer.done() and self.one():
                    pass
                yield answer.result()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Nobody reads on: what is not begun is not begun."""
        with suppress(Empty):
            while True:
                self.open.get_nowait()
