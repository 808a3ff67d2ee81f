"""The wire against what it cannot be faster than, in one run: `python -m benchmarks.wire [NAME...]`.

Each line is a ratio to a baseline that was measured in turns with it, the best of many windows of each, so that other
work on the machine hits both or neither. The same as JSON in results/benchmarks/wire.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.measure import machine
from benchmarks.wire_bare import Bare, Line
from benchmarks.wire_floor import Floor
from benchmarks.wire_stage import Stage, apart, computing, resident, spec_on_pictures
from splitrelay.network.codec import VERSION, encode
from splitrelay.network.grpc_channel import open_channel
from splitrelay.network.messages import Accept, Heartbeat, Hello
from splitrelay.security.identity import build_channel_credentials, load_identity

WINDOWS, K = 24, 25  # windows of each, and the steps of one
NEAR = 60  # windows of a step next door: it is short, and whatever else wakes up hits it
SMASHED = 20 * 256 * 4 + 64  # bytes of LeNet-5's h for one batch, and its header: what goes up, and comes down
DELAY = 0.020  # seconds, there and back
IDLE, TOGETHER, PROGRAMS = 500, 32, 8
LENET = (28, 1, 6000, "model=lenet5", "order=fixed", "S=1", f"K={K}")


@dataclass(frozen=True)
class Found:
    """One line of the table."""

    what: str
    ours: float
    baseline: float
    baseline_is: str
    goal: float | None = None  # of ours / baseline
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """How many times the baseline ours is."""
        return self.ours / self.baseline


def steps(engine: str) -> Iterator[Found]:
    """A LeNet-5 step; and one on a line that takes 20 ms longer.

    Server and client are hosts of their own wherever this is used, so here each has a core of its own, and so have both
    ends of the echo; and once more all of them go wherever the scheduler puts them. The step is at best what the same
    two halves take with nothing but gRPC between them: that is told beside it.
    Whoever computes after a pause computes more slowly, with or without a wire: so the far step is held against one in
    process that pauses as long, and against one that does not; and the CPU time of the server's half is told for both.
    """
    names = ("near", "free", "far", "inside", "paused", "echo", "free echo", "far echo", "floor")
    times: dict[str, list[float]] = {name: [] for name in names}
    halves: dict[str, list[float]] = {"near": [], "inside": []}  # CPU time of the server's half

    def play(stage: Stage) -> None:
        bare, distant, inside = Bare(stage.place), Bare(stage.place, DELAY), stage.in_process()
        floor = Floor(stage.place, stage.spec)
        for window in range(NEAR):
            with apart(stage.ends), computing() as spent:
                times["near"].append(stage.visit(0, K).step)
            halves["near"].append(sum(spent) / len(spent))
            with apart(bare.ends):
                times["echo"].append(bare.echo(SMASHED, K))
            with apart(floor.ends):
                times["floor"].append(floor.step())
            with computing() as spent:
                times["inside"].append(inside(K, 0.0))
            halves["inside"].append(sum(spent) / len(spent))
            times["free"].append(stage.visit(0, K).step)
            times["free echo"].append(bare.echo(SMASHED, K))
            if window % 6 == 0:
                times["far"].append(stage.visit(1, K).step)
                times["paused"].append(inside(K, DELAY / 2))
                times["far echo"].append(distant.echo(SMASHED, K))
        for one in (bare, distant, floor):
            one.close()

    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        stage = Stage(place, spec_on_pictures(place, *LENET, "M=2", f"engine={engine}"), play, [[0], [1]])
        stage.way[1] = lambda port: lines.append(Line(port, DELAY / 2)) or lines[0].port  # type: ignore[func-returns-value]
        stage.perform()
    for line in lines:
        line.close()
    yield from _told(engine, {name: min(column) for name, column in times.items()})
    yield Found("its server's half, CPU time", min(halves["near"]), min(halves["inside"]), "in process")


def _told(engine: str, best: dict[str, float]) -> Iterator[Found]:
    goal, inside = 1.25 if engine == "reference" else 1.5, best["inside"]
    parts = f"{1e3 * inside:.2f} ms in process + {1e3 * best['echo']:.2f} ms bare echo"
    yield Found(f"LeNet-5 step, {engine}, a core each", best["near"], inside + best["echo"], parts, goal)
    yield Found("the same halves over bare gRPC, without us", best["floor"], inside + best["echo"], parts)
    parts = f"{1e3 * inside:.2f} ms in process + {1e3 * best['free echo']:.2f} ms bare echo"
    yield Found(f"LeNet-5 step, {engine}, on any core", best["free"], inside + best["free echo"], parts, goal)
    echoed = f"{1e3 * best['far echo']:.2f} ms bare echo on such a line"
    parts = f"{1e3 * best['paused']:.2f} ms in process, pausing as long + {echoed}"
    yield Found(f"LeNet-5 step, {engine}, 20 ms away", best["far"], best["paused"] + best["far echo"], parts, 1.1)
    parts = f"{1e3 * inside:.2f} ms in process, without a pause + {echoed}"
    yield Found("the same", best["far"], inside + best["far echo"], parts)


def handover() -> Iterator[Found]:
    """VGG-11's half, to the client and back; one step on one image lies between."""
    times: dict[str, list[float]] = {name: [] for name in ("down", "up", "copy", "commit", "write")}
    size: list[int] = []

    def play(stage: Stage) -> None:
        bare = Bare(stage.place)
        size[:] = [stage.shape.boundary * 4, stage.shape.size * 4]
        for _ in range(WINDOWS // 2):
            visit = stage.visit(0, 1)
            times["down"].append(visit.down)
            times["up"].append(visit.up)
            times["commit"].append(visit.commit)
            times["copy"].append(bare.copy(size[0]))
            times["write"].append(_written(stage.place / "bare", size[1]))
        bare.close()

    with tempfile.TemporaryDirectory(dir=".") as name:
        place = Path(name).resolve()
        words = ("model=vgg11", "order=fixed", "S=1", "K=1", "batch=1", "M=1", "engine=reference")
        Stage(place, spec_on_pictures(place, 32, 3, 200, *words), play, [[0]]).perform()
    down, up, copy, commit, write = (min(column) for column in times.values())
    yield Found(f"VGG-11's half ({size[0] / 1e6:.1f} MB) down and up", down + up, copy, "bare copy of the same bytes")
    yield Found(f"VGG-11 ({size[1] / 1e6:.0f} MB) committed", commit, write, "bare write and fsync")


def _written(path: Path, length: int) -> float:
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(bytes(length))
        os.fsync(file.fileno())
    return time.perf_counter() - began


def crowd() -> Iterator[Found]:
    """500 clients that are connected and wait: what they cost the server, and the one that works."""
    alone: list[float] = []
    beside: list[float] = []
    memory: list[int] = []

    def play(stage: Stage) -> None:
        for _ in range(WINDOWS):
            stage.visit(0, K)
        memory.append(resident())
        waiting = _waiting(stage)
        for _ in range(WINDOWS):
            waiting.send_signal(signal.SIGSTOP)  # silent, they cost nothing but memory
            alone.append(stage.visit(0, K).step)
            waiting.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            beside.append(stage.visit(0, K).step)
        memory.append(resident())
        waiting.kill()
        waiting.wait()

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        Stage(place, spec_on_pictures(place, *LENET, f"M={IDLE + 1}", "engine=fast"), play, [[0]]).perform()
    before, after = memory
    yield Found(f"LeNet-5 step beside {IDLE} that wait", min(beside), min(alone), "the same while they are silent", 1.2)
    goal = (before + 100e6) / before
    yield Found(f"server's memory with {IDLE} that wait", after / 1e6, before / 1e6, "with one client", goal, "MB")


def together() -> Iterator[Found]:
    """32 SplitFed clients at once, against one after another."""
    once: list[float] = []
    after: list[float] = []

    def play(stage: Stage) -> None:
        for _ in range(WINDOWS // 4):
            once.append(stage.together(range(TOGETHER), K))
            after.append(sum(stage.together([m], K) for m in range(TOGETHER)))

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        hosts = [list(range(TOGETHER))[number::PROGRAMS] for number in range(PROGRAMS)]
        Stage(place, spec_on_pictures(place, *LENET, f"M={TOGETHER}", "engine=fast"), play, hosts).perform()
    yield Found(f"{TOGETHER} SplitFed clients at once, {K} steps each", min(once), min(after), "one after another")


def _waiting(stage: Stage) -> subprocess.Popen[bytes]:
    """So many clients in another process, past their handshake and waiting."""
    words = ["idle", str(stage.port), str(stage.place), stage.network.context.terms.spec_hash, stage.spec.engine]
    program = subprocess.Popen([sys.executable, "-m", "benchmarks.wire", *words])
    while len(stage.network.connections.get_clients()) < IDLE:
        time.sleep(0.1)
    return program


def idle(port: str, folder: str, spec_hash: str, engine: str) -> None:
    """The clients that wait; heartbeats keep them."""
    queues: list[SimpleQueue[bytes]] = []
    lines = []  # a channel that nobody holds is closed
    credentials = build_channel_credentials(load_identity(Path(folder) / "client-0"))
    for m in range(1, IDLE + 1):
        line = open_channel(f"127.0.0.1:{port}", credentials)
        queue: SimpleQueue[bytes] = SimpleQueue()
        queue.put(encode(Hello(VERSION, m)))
        stream: Any = line.stream_stream("/splitrelay.Relay/Join")(iter(queue.get, None))
        next(stream)  # the terms
        queue.put(encode(Accept(spec_hash, engine, "any", 10)))
        next(stream)  # welcome
        queues.append(queue)
        lines.append((line, stream))
    while True:
        time.sleep(5 / IDLE)
        queues.append(queues.pop(0))
        queues[-1].put(encode(Heartbeat(1)))


ALL: dict[str, Callable[[], Iterator[Found]]] = {
    "reference": lambda: steps("reference"),
    "fast": lambda: steps("fast"),
    "handover": handover,
    "crowd": crowd,
    "together": together,
}


def main(names: list[str]) -> None:
    """The table, line by line, and its file."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"unknown part '{unknown[0]}'. Known: {', '.join(ALL)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody is left behind
    print("  ".join(f"{key}: {value}" for key, value in machine().items()))
    print(f"{'what':<46} {'ours':>10} {'baseline':>10} {'ratio':>7} {'goal':>7}  baseline is")
    found = []
    for name in names or ALL:
        for row in ALL[name]():
            print(line_of(row), flush=True)
            found.append({**asdict(row), "ratio": row.ratio})
    path = Path("results/benchmarks/wire.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "rows": found}, indent=2) + "\n", encoding="utf-8")


def line_of(row: Found) -> str:
    """As people read it."""
    goal = "" if row.goal is None else f"{row.goal:.2f}x"
    scale, unit = (1e3, "ms") if row.unit == "s" else (1.0, row.unit)
    numbers = f"{scale * row.ours:>7.2f} {unit} {scale * row.baseline:>7.2f} {unit} {row.ratio:>6.2f}x {goal:>7}"
    return f"{row.what:<46} {numbers}  {row.baseline_is}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["idle"]:
        idle(*sys.argv[2:])
    else:
        main(sys.argv[1:])
