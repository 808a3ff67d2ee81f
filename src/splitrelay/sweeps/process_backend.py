"""The cores of this machine: one long-lived process on each, with one thread for its steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Event
from typing import Any

from splitrelay.sweeps.jobs import Errand, News

TICK = 0.2  # seconds between two looks at the clock
PATIENCE = 5.0  # seconds in which an idle process must have ended
SINGLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Local:
    """Points on `jobs` processes, pinned to a core each where all cores are wanted; `log` takes what they print."""

    def __init__(self, jobs: int | None = None, log: Path = Path(os.devnull)) -> None:
        self.cores = cores()
        self.jobs, self.log = jobs or len(self.cores), log

    def run(self, errands: Sequence[Errand], stop: Event, /) -> Generator[News | None, None, None]:
        """All of them. A process that dies takes its point with it, and no other."""
        waiting = deque(errands)
        workers = [self._worker(place) for place in range(min(self.jobs, len(errands)))]
        try:
            while True:
                if not stop.is_set():
                    yield from _handed_out(waiting, workers)
                busy = [worker for worker in workers if worker.errand]
                if not busy:
                    return
                yield from _heard(busy, stop)
                for place, worker in enumerate(workers):
                    if not worker.alive and waiting and not stop.is_set():
                        worker.end()
                        workers[place] = self._worker(place)
                yield None
        finally:
            for worker in workers:
                worker.end()

    def _worker(self, place: int) -> Worker:
        pinned = self.jobs >= len(self.cores) and hasattr(os, "sched_setaffinity")
        return Worker(self.cores[place % len(self.cores)] if pinned else None, self.log)


class Worker:
    """One process, and the errand it is on."""

    def __init__(self, core: int | None, log: Path) -> None:
        self.errand: Errand | None = None
        self.silent = True  # nothing of the errand is on the disk yet
        self.alive, self.stopping, self.unread, self.log = True, False, b"", log
        command = [sys.executable, "-P", "-m", "splitrelay.sweeps.worker", str(os.getpid())]
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                command if core is None else [*command, str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=os.environ | SINGLE,
                process_group=0,  # a terminal's Ctrl-C is ours to pass on
            )
        assert self.process.stdin and self.process.stdout
        self.inbox, self.outbox = self.process.stdin, self.process.stdout

    def fileno(self) -> int:
        """Where news can be waited for."""
        return self.outbox.fileno()

    def start(self, errand: Errand) -> None:
        """On its way."""
        self.errand, self.silent = errand, True
        self._send(errand.plain())

    def stop(self) -> None:
        """After the visit it is at."""
        if not self.stopping:
            self._send({"stop": True})
        self.stopping = True

    def dismiss(self, errand: Errand) -> News:
        """At once: it is still starting, and nothing is lost."""
        self.process.kill()
        self.errand, self.alive = None, False
        return News(errand.name, "stopped")

    def hear(self) -> Iterator[News]:
        """What it has to tell; the last of it if it is dead."""
        said = os.read(self.fileno(), 1 << 16)
        *lines, self.unread = (self.unread + said).split(b"\n")
        for news in (News(**json.loads(line)) for line in lines):
            self.silent = False
            if news.state != "running":
                self.errand = None
            yield news
        if not said:
            yield from self._died()

    def end(self) -> None:
        """Idle processes leave by themselves, busy ones are killed."""
        if self.errand:
            self.process.kill()
        with suppress(BrokenPipeError):
            self.inbox.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.outbox.close()

    def _send(self, word: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it is dead: the end of its news says so
            self.inbox.write(json.dumps(word).encode() + b"\n")
            self.inbox.flush()

    def _died(self) -> Iterator[News]:
        self.alive, code = False, self.process.wait()
        errand, self.errand = self.errand, None
        if errand:
            yield News(errand.name, "failed", why=_cause(code, self.log))


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _handed_out(waiting: deque[Errand], workers: Sequence[Worker]) -> Iterator[News]:
    for worker in workers:
        if waiting and worker.alive and not worker.errand:
            errand = waiting.popleft()
            worker.start(errand)
            yield News(errand.name, "running")


def _heard(busy: Sequence[Worker], stop: Event) -> Iterator[News]:
    if stop.is_set():
        for worker in busy:
            if worker.silent and worker.errand:
                yield worker.dismiss(worker.errand)
            else:
                worker.stop()
    by_number = {worker.fileno(): worker for worker in busy if worker.errand}
    if not by_number:
        return
    for number in wait(list(by_number), TICK):
        assert isinstance(number, int)
        yield from by_number[number].hear()


def _cause(code: int, log: Path) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}; the same command goes on from its checkpoint"
    return f"its process ended with code {code}; what it said is in {log}"
