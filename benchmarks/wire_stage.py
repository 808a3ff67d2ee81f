"""A server here and its clients in other processes, over mutual TLS, visit by visit, so that each can be timed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splitrelay.algorithms import Step, Visit
from splitrelay.data import load
from splitrelay.data.images import get_images
from splitrelay.data.partition_io import export_partition, get_client_folder, get_client_labels
from splitrelay.deploy.authorization import anyone
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.deploy.server_visit import ServerVisit, ServerVisits, VisitLease
from splitrelay.deploy.visit_scheduler import VisitContext
from splitrelay.engine.base import LocalServerHalf
from splitrelay.network import messages
from splitrelay.network.shared_event_loop import MessageReceived
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import build_engine, build_network, build_partition
from splitrelay.runs.execute import Progress
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.security.authority import create_authority
from splitrelay.security.identity import build_server_credentials, load_identity

START = "from splitrelay.cli.main import run; run()"
ETA = 0.001
ROUNDS = 100_000  # each visit is a round of its own, and a client makes no more than its spec has


def spec_on_pictures(place: Path, side: int, channels: int, number: int, *words: str) -> Spec:
    """A spec on random images, dealt evenly."""
    shape = (number, side, side) if channels == 1 else (number, side, side, channels)
    x = rng(1, Purpose.INSTANCES).integers(0, 256, shape, dtype=np.uint8)
    np.savez(place / "own.npz", x=x, y=np.arange(number) % 10)
    return load_spec(None, [f"data={place / 'own.npz'}", "partition=iid", f"R={ROUNDS}", f"eta={ETA}", *words])


class Timed(RemoteClients):
    """Notes when each word of a visit was heard, and when it was answered."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.heard: list[tuple[str, float]] = []

    def _handle_message(self, event: MessageReceived, now: float) -> None:
        if isinstance(event.message, messages.Step):  # see below, wherever it is answered
            super()._handle_message(event, now)
            return
        self.heard.append((event.message.event, time.perf_counter()))
        super()._handle_message(event, now)
        self.heard.append((f"{event.message.event} answered", time.perf_counter()))

    def compute_reply(self, lease: VisitLease, server_visit: ServerVisit, step: messages.Step) -> messages.Reply:
        self.heard.append(("step", time.perf_counter()))
        reply = super().compute_reply(lease, server_visit, step)
        self.heard.append(("step answered", time.perf_counter()))
        return reply


@dataclass(frozen=True)
class Times:
    """One visit: when it began and ended, and when its words came."""

    began: float
    ended: float
    words: tuple[tuple[str, float], ...]

    def at(self, word: str) -> list[float]:
        """When it was heard."""
        return [moment for name, moment in self.words if name == word]

    @property
    def step(self) -> float:
        """Seconds from step to step."""
        steps = self.at("step")
        return (steps[-1] - steps[0]) / (len(steps) - 1)

    @property
    def down(self) -> float:
        """Seconds of the half on its way to the client: packed, sent, checked, opened."""
        return self.at("ready")[0] - self.began

    @property
    def up(self) -> float:
        """Seconds of the half on its way back, with the client's last backward pass; the server's own is left out."""
        own = self.at("finish answered")[0] - self.at("finish")[0]
        return self.at("deposit")[0] - self.at("step answered")[-1] - own

    @property
    def commit(self) -> float:
        """Seconds until it is on the disk."""
        return self.at("deposit answered")[0] - self.at("deposit")[0]


class Stage(ServerProgram):
    """A server that plays what it is told, instead of training."""

    def __init__(
        self, place: Path, spec: Spec, play: Callable[[Stage], None], programs: Sequence[Sequence[int]]
    ) -> None:
        self.place, self.play, self.programs = place, play, programs
        self.started: list[subprocess.Popen[bytes]] = []
        self.way: dict[int, Callable[[int], int]] = {}  # client: the port that it is to call instead
        torch.set_num_threads(1)  # as in runs
        data = load(spec.data.name)
        self.objective, _ = build_network(spec, data, build_partition(spec, data))
        self.x0 = self.objective.model_spec.x0(1)
        train = get_images(data.train, "this benchmark")
        labels = get_client_labels(train.y, train.classes)
        export_partition(build_partition(spec, data), train.x, labels, place / "data")
        authority = create_authority(place / "authority", "bench")
        authority.issue_server("server", ["127.0.0.1"])
        clients = sorted(m for program in programs for m in program)
        for m in clients:
            authority.issue_client(f"client-{m}", m)
        credentials = build_server_credentials(load_identity(place / "server"))
        offer = ServerConfig(spec, place / "run", credentials=credentials, admit=anyone, quorum=len(clients))
        super().__init__(offer, lambda text: None)
        self.on_listening = self._start

    def perform(self) -> None:
        """Everything, from listening to the end of the play."""
        try:
            for _ in self.rows():
                pass
        finally:
            for program in self.started:
                program.kill()
                program.wait()

    @property
    def ends(self) -> tuple[int, int]:
        """The server, and the program of the first client."""
        return os.getpid(), self.started[0].pid

    def visit(self, m: int, K: int) -> Times:
        """One visit of client m."""
        self.remote.heard = []
        began = time.perf_counter()
        self.remote.run(self._visit(m, K))
        return Times(began, time.perf_counter(), tuple(self.remote.heard))

    def together(self, clients: Sequence[int], K: int) -> float:
        """Seconds for a visit of each, all at once."""
        began = time.perf_counter()
        for _ in self.remote.run_all([self._visit(m, K) for m in clients]):
            pass
        return time.perf_counter() - began

    def in_process(self) -> Callable[[int, float], float]:
        """The same steps without a wire: seconds of one of K, less the pauses on both sides of the server's half."""
        engine = build_engine(self.spec, self.objective)

        def step(K: int, pause: float = 0.0) -> float:
            with pausing(pause) as paused:
                began = time.perf_counter()
                engine.run(self._visit(0, K))
                return (time.perf_counter() - began - sum(paused)) / K

        return step

    def _visit(self, m: int, K: int) -> Visit[Any]:
        self.count = getattr(self, "count", 0) + 1  # a visit that is in the journal is not made again
        return Visit(self.count, 0, m, self.x0, Step(ETA, 1e-4), K)

    def _train(self) -> Iterator[Progress]:
        self._wait_for_clients()
        visits = ServerVisits(self.spec, self.shape, *self._get_data_shape(), self.spec.optimiser.batch)
        connections, policy = self.network.connections, self.config.policy
        context = VisitContext(connections, visits, self.journal, policy, self.quarantine, self.stalls, self.stop)
        self.remote: Timed = Timed(context, on_arrival=self._record_arrival)
        self.play(self)
        yield from ()

    def _start(self, port: int) -> None:
        for program in self.programs:
            words = ["join", f"127.0.0.1:{self.way.get(program[0], int)(port)}"]
            words += ["--accept-spec", self.network.context.terms.spec_hash]
            for m in program:
                data = self.place / "data" / get_client_folder(m, self.spec.partition.M) / "data.npz"
                words += ["--keys", str(self.place / f"client-{m}"), "--data", str(data)]
            self.started.append(
                subprocess.Popen([sys.executable, "-c", START, "-q", *words], stdout=subprocess.DEVNULL)
            )


@contextmanager
def computing() -> Iterator[list[float]]:
    """CPU seconds of each step of the server's half, on this side of a wire or without one."""
    step, spent = LocalServerHalf.step, list[float]()

    def clocked(self: Any, *given: Any) -> Any:
        began = time.thread_time()
        answer = step(self, *given)
        spent.append(time.thread_time() - began)
        return answer

    LocalServerHalf.step = clocked  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        LocalServerHalf.step = step  # type: ignore[method-assign]


@contextmanager
def pausing(seconds: float) -> Iterator[list[float]]:
    """Nothing happens for so long before and after each step of the server's half; how long it was each time."""
    step, paused = LocalServerHalf.step, list[float]()

    def slept() -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        paused.append(time.perf_counter() - began)

    def late(self: Any, *given: Any) -> Any:
        slept()
        answer = step(self, *given)
        slept()
        return answer

    LocalServerHalf.step = late if seconds else step  # type: ignore[method-assign]
    try:
        yield paused
    finally:
        LocalServerHalf.step = step  # type: ignore[method-assign]


@contextmanager
def apart(programs: Sequence[int]) -> Iterator[None]:
    """Each program on a core of its own, as hosts are; afterwards wherever the scheduler puts them."""
    cores = sorted(os.sched_getaffinity(0))
    for number, pid in enumerate(programs):
        _confine(pid, {cores[number % len(cores)]})
    try:
        yield
    finally:
        for pid in programs:
            _confine(pid, set(cores))


def _confine(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
