"""Points on a Ray cluster: a Ray started here, one that is joined by its address, or the one the caller is in.

What crosses Ray is plain: dicts, words, numbers, bytes. Where the sweep's folder is seen from the other host, the run
is written there, and a point whose host is lost goes on elsewhere from its last checkpoint; where it is not, the point
starts again, and what a finished run leaves is carried home.
"""

from __future__ import annotations

import logging
import os
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
from splitrelay.errors import WorkError
from splitrelay.sweeps.jobs import Errand, News
from splitrelay.sweeps.ray_address import refused

TICK = 0.2  # seconds between two looks at what has happened
LISTEN = 0.5  # seconds after which a point hears that it is to stop
RETRIES = 5  # hosts that one point may lose
STORE = 100 * 1024 * 1024  # bytes of shared memory of a Ray started here: only news and finished models go through it
SHARED = ".shared"  # holds a word by which another host knows the folder
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}


@contextmanager
def joined(address: str | None, cores: int | None = None) -> Iterator[None]:
    """In a Ray cluster: that of the caller, else the one at the address, else one started here that ends with us."""
    if ray.is_initialized():
        yield
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
    try:
        with warnings.catch_warnings(action="ignore"):  # what matters of it is in the error
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own))
    except (ConnectionError, ImportError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise refused(address, error) from None
    try:
        yield
    finally:
        ray.shutdown()


class Messenger:
    """The actor through which points tell how far they are, and hear that they are to stop."""

    def __init__(self) -> None:
        self.news: list[dict[str, Any]] = []
        self.stop = False

    def tell(self, news: dict[str, Any]) -> None:
        """From a point."""
        self.news.append(news)

    def told(self) -> list[dict[str, Any]]:
        """To the sweep: what is new since it last asked."""
        news, self.news = self.news, []
        return news

    def halt(self) -> None:
        """From the sweep: no further point, no further visit."""
        self.stop = True

    def halted(self) -> bool:
        """To the points."""
        return self.stop


class OnRay:
    """Points as Ray tasks of one core each; at most `jobs` of them at once."""

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        self.address, self.jobs = address, jobs

    def run(self, errands: Sequence[Errand], stop: Event, /) -> Generator[News | None, None, None]:
        """All of them, wherever there is a core."""
        if not errands:
            return
        with joined(self.address, self.jobs):
            yield from _Campaign(errands, self.jobs or len(errands)).run(stop)


class _Campaign:
    def __init__(self, errands: Sequence[Errand], room: int) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        lasting = {"num_cpus": 0, "max_restarts": RETRIES, "max_task_retries": RETRIES, "scheduling_strategy": here}
        self.messenger: Any = ray.remote(Messenger).options(**lasting).remote()
        self.point = ray.remote(run_errand).options(num_cpus=1, max_retries=RETRIES)
        self.waiting, self.room = deque(errands), room
        self.open: dict[Any, Errand] = {}
        self.word = str(time.time_ns())
        for folder in {Path(errand.path).parent for errand in errands}:
            (folder / SHARED).write_text(self.word, encoding="ascii")

    def run(self, stop: Event) -> Iterator[News | None]:
        try:
            while self.open or (self.waiting and not stop.is_set()):
                if stop.is_set():
                    self.messenger.halt.remote()  # again and again: a messenger whose host was lost forgets
                self._submit(stop)
                ended, _ = ray.wait(list(self.open), timeout=TICK)
                yield from self._told()
                for reference in ended:
                    yield self._ending(reference, self.open.pop(reference))
                yield None
        finally:
            for reference in self.open:  # stopped at once: nothing may go on without us
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)

    def _submit(self, stop: Event) -> None:
        while self.waiting and len(self.open) < self.room and not stop.is_set():
            errand = self.waiting.popleft()
            self.open[self.point.remote(errand.plain(), self.messenger, str(Path.cwd()), self.word)] = errand

    def _told(self) -> Iterator[News]:
        names = {errand.name for errand in self.open.values()}
        try:
            told = [News(**news) for news in ray.get(self.messenger.told.remote())]
        except ray.exceptions.RayError as error:
            hint = "The same command goes on once it is there again."
            raise WorkError("this Ray is lost", value=_first(error), hint=hint) from None
        yield from (news for news in told if news.name in names)

    def _ending(self, reference: Any, errand: Errand) -> News:
        try:
            news, files = ray.get(reference)
        except ray.exceptions.RayError as error:
            return News(errand.name, "failed", why=f"its process was lost: {_first(error)}")
        carried_home(files, Path(errand.path))
        return News(**news)


def run_errand(plain: dict[str, Any], messenger: Any, cwd: str, word: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The task, on whichever host: (the last news, the files of a run that was not written to the sweep's folder)."""
    errand, line = Errand(**plain), _Line(messenger)
    # Here, not above: it brings torch, which the messenger needs not, and which can be read while that one starts.
    carry_out = import_module("splitrelay.sweeps.errands").carry_out
    if line.halted():
        return asdict(News(errand.name, "waiting")), {}
    if Path(cwd).is_dir():
        os.chdir(cwd)  # data and models may be named from there
    messenger.tell.remote(asdict(News(errand.name, "running")))
    try:
        with place(errand, word) as (here, at_home):
            news = carry_out(here, line.stop, lambda each: messenger.tell.remote(asdict(each)))
            return asdict(news), {} if at_home else files_of(Path(here.path))
    finally:
        line.ended.set()


@contextmanager
def place(errand: Errand, word: str) -> Iterator[tuple[Errand, bool]]:
    """(where the run is written, whether that is the sweep's own folder)."""
    with suppress(OSError):
        if (Path(errand.path).parent / SHARED).read_text(encoding="ascii") == word:
            yield errand, True
            return
    with tempfile.TemporaryDirectory() as folder:
        yield replace(errand, path=folder), False


class _Line:
    """Sets `stop` once the messenger has heard of it. On a thread: Ray gives away the core of a task that waits."""

    def __init__(self, messenger: Any) -> None:
        self.messenger, self.stop, self.asked, self.ended = messenger, Event(), Event(), Event()
        Thread(target=self._listen, daemon=True).start()

    def halted(self) -> bool:
        """Whether to begin at all, once the messenger has answered."""
        self.asked.wait()
        return self.stop.is_set()

    def _listen(self) -> None:
        try:
            while not self.stop.is_set():
                if ray.get(self.messenger.halted.remote()):
                    self.stop.set()
                self.asked.set()
                if self.ended.wait(LISTEN):
                    return
        except ray.exceptions.RayError:  # the sweep is gone, and Ray ends what it began
            self.stop.set()
            self.asked.set()


def _first(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def files_of(folder: Path) -> dict[str, bytes]:
    """All but the checkpoints, the model last: with it a run is finished."""
    found = [path for path in folder.iterdir() if path.is_file() and path.name != ".lock"]
    return {path.name: path.read_bytes() for path in sorted(found, key=lambda path: path.suffix == ".safetensors")}


def carried_home(files: dict[str, bytes], home: Path) -> None:
    """Written where they belong, in the order in which they come."""
    for name, content in files.items():
        with replace_atomically(home / Path(name).name) as temporary:
            temporary.write_bytes(content)
