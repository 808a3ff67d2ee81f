"""Clients in this process, several at a time: one engine for each thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event
from typing import Generic

from splitrelay.algorithms.base import Done, Outcome, Visit
from splitrelay.engine.base import Engine
from splitrelay.errors import OutOfRange
from splitrelay.vectors import X


class StoppableEngine(Generic[X]):
    """Wrap an engine that starts no further visit after an event (Ctrl-C). A visit that has started is finished."""

    def __init__(self, engine: Engine[X], stop: Event) -> None:
        self.engine, self.stop = engine, stop

    def run(self, visit: Visit[X], /) -> Done[X]:
        """Take K local steps, or raise KeyboardInterrupt. The state is then the one before this visit."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        return self.engine.run(visit)


class Pool(Generic[X]):
    """Run any client on any idle engine. The choice of the engine does not change the result of a visit."""

    def __init__(self, engines: Sequence[Engine[X]]) -> None:
        if not engines:
            raise OutOfRange("engines of a pool", limit="at least 1", value=0)
        self._idle: SimpleQueue[Engine[X]] = SimpleQueue()
        for engine in engines:
            self._idle.put(engine)
        self._helpers = ThreadPoolExecutor(len(engines) - 1) if len(engines) > 1 else None
        self._number = len(engines)

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Run one visit on an idle engine."""
        engine = self._idle.get()
        try:
            return engine.run(visit)
        finally:
            self._idle.put(engine)

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Run as many visits at once as there are engines; yield outcomes in the order of the visits."""
        if self._helpers is None:
            return map(self.run, visits)
        parallel = OrderedParallelMap(self.run, visits)
        for _ in range(self._number - 1):
            self._helpers.submit(parallel.run_remaining)
        return parallel.iterate_results()


class OrderedParallelMap(Generic[X]):
    """Run visits on several threads and yield their outcomes in order.

    The thread that reads the outcomes is one of the workers: it runs visits itself instead of waiting.
    """

    def __init__(self, run: Callable[[Visit[X]], Outcome[X]], visits: Iterable[Visit[X]]) -> None:
        self.run = run
        self.results: deque[Future[Outcome[X]]] = deque()
        self.waiting: SimpleQueue[tuple[Visit[X], Future[Outcome[X]]]] = SimpleQueue()
        for visit in visits:
            self.results.append(Future())
            self.waiting.put((visit, self.results[-1]))

    def run_remaining(self) -> None:
        """Run visits until none is left."""
        while self.run_next():
            pass

    def run_next(self) -> bool:
        """Run the next visit that no thread has started; return False if there is none.

        An Exception is raised when the result is read. Other errors, such as Ctrl-C, are also raised here at once.
        """
        try:
            visit, result = self.waiting.get_nowait()
        except Empty:
            return False
        try:
            result.set_result(self.run(visit))
        except BaseException as error:
            result.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return True

    def iterate_results(self) -> Iterator[Outcome[X]]:
        """Yield the outcomes in the order of the visits. If the reader stops, no further visit starts."""
        try:
            while self.results:
                result = self.results.popleft()
                while not result.done() and self.run_next():
                    pass
                yield result.result()
        finally:
            with suppress(Empty):
                while True:
                    self.waiting.get_nowait()
