"""Run jobs on the cores of this machine: one long-lived worker process per core, each with one thread.

The parent writes jobs to the stdin of a worker, and the worker writes their status to its stdout, one JSON object per
line. If a worker dies, only its own job fails. A worker ends with its parent: the kernel kills it where it can, and
elsewhere the end of stdin stops it.

`python -m splitrelay.sweeps.process_backend PARENT [CORE]` is the program of a worker.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO, Any

from splitrelay.sweeps.jobs import Job, JobStatus, run_job

POLL = 0.2  # seconds between two updates without news
END_TIMEOUT = 5.0  # seconds in which an idle worker must end
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1


class ProcessBackend:
    """Run jobs in worker processes.

    Args:
        workers: The number of processes. If it is at least the number of cores, each process is pinned to a core.
        log: The file for everything that workers print.
    """

    def __init__(self, workers: int | None = None, log: Path = Path(os.devnull)) -> None:
        self.cores = list_cores()
        self.workers, self.log = workers or len(self.cores), log

    def run(self, jobs: Sequence[Job], stop: Event, /) -> Generator[JobStatus | None, None, None]:
        """Run all jobs. See `JobRunner.run`."""
        waiting = deque(jobs)
        workers = [self._start_worker(number) for number in range(min(self.workers, len(jobs)))]
        try:
            while True:
                if not stop.is_set():
                    yield from _assign_jobs(waiting, workers)
                busy = [worker for worker in workers if worker.job]
                if not busy:
                    return
                if stop.is_set():
                    yield from _stop_workers(busy)
                by_number = {worker.fileno(): worker for worker in busy if worker.job}
                for number in wait(list(by_number), POLL) if by_number else []:
                    assert isinstance(number, int)
                    yield from by_number[number].read_status()
                for number, worker in enumerate(workers):
                    if not worker.is_alive and waiting and not stop.is_set():
                        worker.end()
                        workers[number] = self._start_worker(number)
                yield None
        finally:
            for worker in workers:
                worker.end()

    def _start_worker(self, number: int) -> WorkerProcess:
        is_pinned = self.workers >= len(self.cores) and hasattr(os, "sched_setaffinity")
        return WorkerProcess(self.cores[number % len(self.cores)] if is_pinned else None, self.log)


def _assign_jobs(waiting: deque[Job], workers: Sequence[WorkerProcess]) -> Iterator[JobStatus]:
    for worker in workers:
        if waiting and worker.is_alive and not worker.job:
            job = waiting.popleft()
            worker.start(job)
            yield JobStatus(job.name, "running")


def _stop_workers(busy: Sequence[WorkerProcess]) -> Iterator[JobStatus]:
    """Kill workers whose job has not written anything yet, and ask the others to stop."""
    for worker in busy:
        if worker.has_no_status and worker.job:
            yield worker.kill(worker.job)
        else:
            worker.request_stop()


class WorkerProcess:
    """The parent's side of one worker, and its current job."""

    def __init__(self, core: int | None, log: Path) -> None:
        self.job: Job | None = None
        self.has_no_status = True  # of the current job: nothing is on the disk yet
        self.is_alive, self.is_stopping, self.unread, self.log = True, False, b"", log
        command = [sys.executable, "-P", "-m", "splitrelay.sweeps.process_backend", str(os.getpid())]
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                command if core is None else [*command, str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=os.environ | ONE_THREAD,
                process_group=0,  # Ctrl-C at a terminal reaches the parent only, which then stops its workers
            )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is a status."""
        return self.stdout.fileno()

    def start(self, job: Job) -> None:
        """Send a job to the worker."""
        self.job, self.has_no_status = job, True
        self._send(job.to_dict())

    def request_stop(self) -> None:
        """Let the worker stop its job after the current visit."""
        if not self.is_stopping:
            self._send({"stop": True})
        self.is_stopping = True

    def kill(self, job: Job) -> JobStatus:
        """Kill the worker while its job is still starting, so that nothing is lost."""
        self.process.kill()
        self.job, self.is_alive = None, False
        return JobStatus(job.name, "stopped")

    def read_status(self) -> Iterator[JobStatus]:
        """Yield what the worker has written. If it is dead, its job has failed."""
        content = os.read(self.fileno(), 1 << 16)
        *lines, self.unread = (self.unread + content).split(b"\n")
        for status in (JobStatus(**json.loads(line)) for line in lines):
            self.has_no_status = False
            if status.state != "running":
                self.job = None
            yield status
        if not content:
            self.is_alive, code = False, self.process.wait()
            job, self.job = self.job, None
            if job:
                yield JobStatus(job.name, "failed", why=_describe_exit(code, self.log))

    def end(self) -> None:
        """End the worker: an idle one by closing its stdin, a busy one by killing it."""
        if self.job:
            self.process.kill()
        with suppress(BrokenPipeError):
            self.stdin.close()
        try:
            self.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the worker is dead; read_status will say so
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()


def list_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _describe_exit(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was killed by {name}; the same command continues from its checkpoint"
    return f"its process ended with code {code}; its output is in {log}"


def work(parent: int, core: int | None) -> None:
    """Run jobs from stdin, one after another. This is the program of a worker."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above
        os._exit(1)
    if core is not None:
        os.sched_setaffinity(0, {core})  # before torch is imported, because torch counts the cores
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not among the statuses
    jobs: SimpleQueue[Job] = SimpleQueue()
    stop = Event()
    Thread(target=_read_stdin, args=(jobs, stop), daemon=True).start()
    while True:
        _write_status(out, run_job(jobs.get(), stop, lambda status: _write_status(out, status)))


def _read_stdin(jobs: SimpleQueue[Job], stop: Event) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stop.set()
        else:
            jobs.put(Job(**message))
    os._exit(0)  # the parent has closed stdin


def _write_status(out: IO[str], status: JobStatus) -> None:
    out.write(json.dumps(asdict(status)) + "\n")
    out.flush()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
