"""A half that takes longer on its way than silence may last: does it come through, and how long may it take?"""

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitrelay.chaos import proxies
from splitrelay.deploy import backend_fast, remote_clients, visit_scheduler
from splitrelay.deploy.server_visit import Policy, get_stage
from splitrelay.network import client_session, connection_handler, server
from splitrelay.network.limits import Limits
from splitrelay.network.messages import Ready
from splitrelay.runs.spec import Spec
from tests.support.bare_server import wait_until
from tests.support.clock import WAITING, Clock
from tests.support.deployment import CLIENT, SERVER, LocalDeployment, simulate_run, small_spec

WHOLE = ("algorithm=fedavg", "placement=whole", "M=2", "C=9", "R=1")

PIECE, SILENCE, DELAY = Limits(piece=2000), 3.0, 0.11  # seconds; a half takes longer than a silence may last
SLOW: dict[str, Any] = {"limits": PIECE, "timeouts": replace(CLIENT, silence=SILENCE, tick=0.05)}


def make_stage(spec: Spec, folder: Path, policy: Policy | None = None) -> LocalDeployment:
    """Return a stage whose server sends small pieces and gives up after a short silence."""
    return LocalDeployment(spec, folder, policy=policy, limits=PIECE, timeouts=replace(SERVER, silence=SILENCE))


class SteadyClock(Clock):
    """Counts at most a tenth of a second at once: a moment in which the whole process does not run takes no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = time.monotonic()
        super().__init__(monkeypatch, client_session, connection_handler, server, *WAITING, is_stopped=True)

    def monotonic(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._added, self._read = self._added + min(now - self._read, 0.1), now
        return super().monotonic()


class SlowUploadProxy(proxies.TcpProxy):
    """Slow only from the client to the server, as most home connections are."""

    def forward(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while not up and (piece := source.recv(65536)):
                sink.sendall(piece)
        super().forward(source, sink, up)


class Lines:
    """A line of its own for each client, some thousand bytes a second."""

    def __init__(
        self, stage: LocalDeployment, kind: type[proxies.TcpProxy] = proxies.TcpProxy, delay: float = DELAY
    ) -> None:
        self.stage, self.kind, self.delay, self.made = stage, kind, delay, list[proxies.TcpProxy]()

    def __call__(self) -> str:
        self.made.append(self.kind(self.stage.serving.port, read_size=500))
        self.made[-1].delay = self.delay
        return f"127.0.0.1:{self.made[-1].port}"


def played(stage: LocalDeployment, kind: type[proxies.TcpProxy] = proxies.TcpProxy) -> Lines:
    lines = Lines(stage, kind)
    for m in stage.partition.clients:
        stage.join(m, address=lines, **SLOW)
    stage.play()
    for line in lines.made:
        line.close()
    return lines


def test_a_half_that_takes_longer_than_silence_may_last_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SteadyClock(monkeypatch)
    stage = make_stage(small_spec(tmp_path, *WHOLE), tmp_path)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    lines = played(stage)
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert len(lines.made) == 2 and not stage.events("lost") and not stage.events("silent")
    assert all(line.delayed > 2 * SILENCE / DELAY for line in lines.made)  # down and up, each took longer than that


def test_a_half_on_its_way_is_progress_as_steps_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has less time for a step than its half takes on the way up."""
    SteadyClock(monkeypatch)
    stage = make_stage(small_spec(tmp_path, *WHOLE, "K=1"), tmp_path, policy=Policy(step=SILENCE, visit=1000.0))
    played(stage, SlowUploadProxy)
    assert not stage.events("failed") and len(stage.events("committed")) == 2


def test_a_line_that_carries_nothing_is_silent_all_the_same(tmp_path: Path) -> None:
    stage = make_stage(small_spec(tmp_path, *WHOLE, "K=1"), tmp_path)
    lines, frozen = Lines(stage, delay=0.0), threading.Event()

    def note(text: str) -> None:
        if "0 clients to come" in text and not frozen.is_set():
            frozen.set()
            lines.made[0].freeze()

    stage.serving.say = note
    for m in stage.partition.clients:
        stage.join(m, address=lines, **SLOW)
    stage.play()
    assert stage.events("silent") or stage.events("lost")
    assert len(stage.events("committed")) == 2


def test_a_visit_that_is_taken_back_meanwhile_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, remote_clients, visit_scheduler)
    stage = make_stage(small_spec(tmp_path, *WHOLE, "K=1"), tmp_path, policy=Policy(step=1000.0, retries=1))
    compute, first = backend_fast.Client.train_whole, threading.Event()

    def long(client: backend_fast.Client, visit: Any) -> Any:
        if not first.is_set():
            first.set()
            pending = stage.serving.remote.scheduler.leases
            wait_until(lambda: all(each.stage == get_stage(Ready(0), 1) for each in pending.values()))
            clock.advance(1001.0)
            wait_until(lambda: stage.events("failed"))
        return compute(client, visit)

    monkeypatch.setattr(backend_fast.Client, "train_whole", long)
    for m in stage.partition.clients:
        stage.join(m, **SLOW)
    stage.play()
    assert [line for line in stage.said if line.startswith("visit taken back: ")]
    assert not stage.events("refused") and len(stage.events("committed")) == 2


def test_a_client_that_computes_for_long_keeps_its_visit_over_a_lost_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while the whole model is trained, for longer than a client may be away."""
    clock = Clock(monkeypatch, remote_clients, visit_scheduler)
    stage = make_stage(small_spec(tmp_path, *WHOLE), tmp_path, policy=Policy(lease=100.0, step=1000.0))
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    lines, compute, done = Lines(stage, delay=0.0), backend_fast.Client.train_whole, threading.Event()

    def long(client: backend_fast.Client, visit: Any) -> Any:
        if not done.is_set():
            done.set()
            leases = stage.serving.remote.scheduler.leases
            wait_until(lambda: leases[visit.m].stage == get_stage(Ready(0), 1))
            for line in lines.made:
                line.cut()
            wait_until(lambda: stage.events("resumed"))  # the other client may not have begun
            wait_until(lambda: all(lease.connection is not None for lease in dict(leases).values()))
            clock.advance(101.0)
            wait_until(lambda: stage.serving.remote._next_checks > leases[visit.m].on + 101.0)  # it was checked
        return compute(client, visit)

    monkeypatch.setattr(backend_fast.Client, "train_whole", long)
    for m in stage.partition.clients:
        stage.join(m, address=lines, **SLOW)
    stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert not stage.events("expired") and len(stage.events("committed")) == 2
