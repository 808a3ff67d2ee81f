"""Run jobs on a Ray cluster: a Ray started here, one at an address, or the one that the caller is connected to.

Only dicts, texts, numbers and bytes are sent through Ray. If another host sees the folder of the sweep, it writes the
run there, and a job whose host is lost continues elsewhere from its last checkpoint. Otherwise such a job starts again,
and the files of a finished run are sent back.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from splitrelay.atomic_files import replace_atomically
from splitrelay.errors import InputError, WorkError
from splitrelay.sweeps.jobs import Job, JobStatus, run_job

STARTED_HERE, ON_THIS_MACHINE, CLIENT = "ray", "auto", "ray://"
CLIENT_PORT = 10001  # Ray's default port for clients
CONNECT_TIMEOUT = 5.0  # seconds
FORMS = "local, ray, auto, host:port or ray://host:port"
TOKEN = "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the output of ray get-auth-token on its host."
SLOW = "Starting Ray client server failed"  # Ray's message after half a minute
# Calls that need a token if the cluster has one, by whether the address is ray://
CALLS = {True: "/ray.rpc.RayletDriver/ClusterInfo", False: "/ray.rpc.NodeInfoGcsService/CheckAlive"}
POLL = 0.2  # seconds between two checks for events
STOP_POLL = 0.5  # seconds between two checks of a job whether it must stop
RETRIES = 5  # hosts that one job may lose
STORE = 100 * 1024 * 1024  # bytes of shared memory of a Ray started here: only statuses and finished models use it
SHARED = ".shared"  # file by which another host recognises the folder of the sweep
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}


def check_address(text: str) -> str | None:
    """Return the address for ray.init, after a check that a Ray answers there. None means: start one here.

    Raises:
        InputError: It is not an address, nothing answers, or the cluster needs a token that is not set.
    """
    if text in (STARTED_HERE, ON_THIS_MACHINE):
        return None if text == STARTED_HERE else text
    host, port = _split_address(text)
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"no Ray answers at {text}", value=why, hint="Start one there: ray start --head.") from None
    if not _has_token() and _needs_token(f"{host}:{port}", CALLS[text.startswith(CLIENT)]):
        raise InputError(f"the Ray at {text} needs a token", hint=TOKEN)
    return text


def _split_address(text: str) -> tuple[str, int]:
    is_client = text.startswith(CLIENT)
    host, colon, port = text.removeprefix(CLIENT).rpartition(":")
    if is_client and not colon:
        host, port = port, str(CLIENT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InputError("this is not the address of a Ray", value=repr(text), limit=FORMS)
    return host.strip("[]"), int(port)


def _has_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _needs_token(target: str, call: str) -> bool:
    """Return whether the cluster rejects a call without a token. Ray itself would retry for half a minute."""
    with suppress(ModuleNotFoundError):  # ray works without grpc, except for ray://
        grpc: Any = import_module("grpc")
        try:
            with grpc.insecure_channel(target) as channel:
                channel.unary_unary(call)(b"", timeout=CONNECT_TIMEOUT)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def make_connection_error(address: str | None, error: Exception) -> InputError:
    """Return Ray's own error in one line, with a hint."""
    value = " ".join(str(error).split()) or type(error).__name__
    if address is None:
        return InputError("no Ray could be started here", value=value, hint="To do without it: --on local.")
    hint = (
        "Check that the token is the same." if _has_token() else "Check that versions of Ray and Python are the same."
    )
    if SLOW in str(error):
        hint = "Its host did not start a process in time. Try again, or give it more memory."
    return InputError(f"the Ray at {address} refused the connection", value=value, hint=hint)


@contextmanager
def connect_ray(address: str | None, cores: int | None = None) -> Iterator[None]:
    """Connect to a Ray: the caller's, else the one at the address, else one that is started here and ends with us."""
    if ray.is_initialized():
        yield
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
    try:
        with warnings.catch_warnings(action="ignore"):  # the error has the important part
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own))
    except (ConnectionError, ImportError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise make_connection_error(address, error) from None
    try:
        yield
    finally:
        ray.shutdown()


class StatusActor:
    """A Ray actor that collects the statuses of jobs and tells them to stop."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.stop = False

    def report(self, status: dict[str, Any]) -> None:
        """Add the status of a job."""
        self.statuses.append(status)

    def take_reports(self) -> list[dict[str, Any]]:
        """Return the statuses since the last call."""
        statuses, self.statuses = self.statuses, []
        return statuses

    def request_stop(self) -> None:
        """Let all jobs stop after their current visit."""
        self.stop = True

    def is_stop_requested(self) -> bool:
        """Return whether jobs must stop."""
        return self.stop


class RayBackend:
    """Run jobs as Ray tasks with one core each, at most `workers` at a time."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address, self.workers = address, workers

    def run(self, jobs: Sequence[Job], stop: Event, /) -> Generator[JobStatus | None, None, None]:
        """Run all jobs. See `JobRunner.run`."""
        if not jobs:
            return
        with connect_ray(self.address, self.workers):
            yield from _RayJobs(jobs, self.workers or len(jobs)).run(stop)


class _RayJobs:
    """The jobs of one sweep: those that wait, and the Ray tasks of those that run."""

    def __init__(self, jobs: Sequence[Job], limit: int) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = {"num_cpus": 0, "max_restarts": RETRIES, "max_task_retries": RETRIES, "scheduling_strategy": here}
        self.actor: Any = ray.remote(StatusActor).options(**options).remote()
        self.task = ray.remote(run_job_on_ray).options(num_cpus=1, max_retries=RETRIES)
        self.waiting, self.limit = deque(jobs), limit
        self.open: dict[Any, Job] = {}
        self.mark = str(time.time_ns())
        for folder in {Path(job.path).parent for job in jobs}:
            (folder / SHARED).write_text(self.mark, encoding="ascii")

    def run(self, stop: Event) -> Iterator[JobStatus | None]:
        try:
            while self.open or (self.waiting and not stop.is_set()):
                if stop.is_set():
                    self.actor.request_stop.remote()  # repeated, because an actor that Ray restarted has lost it
                while self.waiting and len(self.open) < self.limit and not stop.is_set():
                    job = self.waiting.popleft()
                    self.open[self.task.remote(job.to_dict(), self.actor, str(Path.cwd()), self.mark)] = job
                ended, _ = ray.wait(list(self.open), timeout=POLL)
                yield from self._take_reports()
                for reference in ended:
                    yield self._finish(reference, self.open.pop(reference))
                yield None
        finally:
            for reference in self.open:  # the sweep ends: no task may continue
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)

    def _take_reports(self) -> Iterator[JobStatus]:
        names = {job.name for job in self.open.values()}
        try:
            statuses = [JobStatus(**status) for status in ray.get(self.actor.take_reports.remote())]
        except ray.exceptions.RayError as error:
            hint = "The same command continues once it is available again."
            raise WorkError("the connection to Ray is lost", value=_get_first_line(error), hint=hint) from None
        yield from (status for status in statuses if status.name in names)

    def _finish(self, reference: Any, job: Job) -> JobStatus:
        try:
            status, files = ray.get(reference)
        except ray.exceptions.RayError as error:
            return JobStatus(job.name, "failed", why=f"its process was lost: {_get_first_line(error)}")
        write_result_files(files, Path(job.path))
        return JobStatus(**status)


def run_job_on_ray(content: dict[str, Any], actor: Any, cwd: str, mark: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Run a job. This is the Ray task, on any host.

    Returns:
        The last status, and the files of a run that was not written to the folder of the sweep.
    """
    job, listener = Job(**content), _StopListener(actor)
    if listener.is_stopped_at_start():
        return asdict(JobStatus(job.name, "waiting")), {}
    if Path(cwd).is_dir():
        os.chdir(cwd)  # paths of data and models may be relative to it
    actor.report.remote(asdict(JobStatus(job.name, "running")))
    try:
        with choose_folder(job, mark) as (local, is_shared):
            status = run_job(local, listener.stop, lambda each: actor.report.remote(asdict(each)))
            return asdict(status), {} if is_shared else read_result_files(Path(local.path))
    finally:
        listener.ended.set()


@contextmanager
def choose_folder(job: Job, mark: str) -> Iterator[tuple[Job, bool]]:
    """Yield the job with the folder to write to, and whether it is the folder of the sweep."""
    with suppress(OSError):
        if (Path(job.path).parent / SHARED).read_text(encoding="ascii") == mark:
            yield job, True
            return
    with tempfile.TemporaryDirectory() as folder:
        yield replace(job, path=folder), False


class _StopListener:
    """Asks the actor on a thread of its own: Ray gives away the core of a task that waits."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.stop, self.asked, self.ended = actor, Event(), Event(), Event()
        Thread(target=self._listen, daemon=True).start()

    def is_stopped_at_start(self) -> bool:
        """Wait for the first answer of the actor, and return whether the job must not start."""
        self.asked.wait()
        return self.stop.is_set()

    def _listen(self) -> None:
        try:
            while not self.stop.is_set():
                if ray.get(self.actor.is_stop_requested.remote()):
                    self.stop.set()
                self.asked.set()
                if self.ended.wait(STOP_POLL):
                    return
        except ray.exceptions.RayError:  # the sweep is gone, and Ray ends its tasks
            self.stop.set()
            self.asked.set()


def _get_first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def read_result_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a run without checkpoints. The model comes last: a run with a model is finished."""
    paths = [path for path in folder.iterdir() if path.is_file() and path.name != ".lock"]
    return {path.name: path.read_bytes() for path in sorted(paths, key=lambda path: path.suffix == ".safetensors")}


def write_result_files(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a run, in their order."""
    for name, content in files.items():
        with replace_atomically(folder / Path(name).name) as temporary:
            temporary.write_bytes(content)
