"""A LeNet-5 step over mutual TLS against an in-process step plus a bare echo of its bytes: `python -m benchmarks.wire`.

And 500 clients that are connected and wait: what they cost in memory, and the one that works in time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np

from splitrelay.algorithms import Step, Visit
from splitrelay.data import load
from splitrelay.data.partition_export import export_partition
from splitrelay.deploy.admission import anyone, by_certificate
from splitrelay.deploy.serving import Offer, Serving
from splitrelay.experiments.assembly import engine_of, network_of
from splitrelay.experiments.running import partition_of, trial_of
from splitrelay.experiments.spec import Spec, spec_of
from splitrelay.randomness import Purpose, rng
from splitrelay.wire.authority import create_authority
from splitrelay.wire.client import channel
from splitrelay.wire.frames import VERSION, encode
from splitrelay.wire.identity import channel_credentials, load_identity, server_credentials
from splitrelay.wire.messages import Accept, Heartbeat, Hello
from splitrelay.wire.revocation import Revocations

K, ROUNDS, BYTES, IDLE = 300, 4, 64 + 20 * 256 * 4 + 20 * 4 + 8, 500
START = "from splitrelay.cli.main import run; run()"


def pictures(folder: Path) -> Path:
    """Random images of MNIST's form."""
    draw = rng(1, Purpose.INSTANCES)
    x, y = draw.integers(0, 256, (6000, 28, 28), dtype=np.uint8), np.arange(6000) % 10
    np.savez(folder / "own.npz", x=x, y=y)
    return folder / "own.npz"


def spec(folder: Path, engine: str, M: int = 1) -> Spec:
    words = f"data={pictures(folder)} model=lenet5 partition=iid M={M} S=1 order=fixed K={K} R={ROUNDS} eta=0.001"
    return spec_of(None, [*words.split(), f"engine={engine}"])


def in_process(wanted: Spec) -> float:
    """Seconds of one step, both halves here."""
    data = load(wanted.data.name)
    trial = trial_of(wanted)
    network, _ = network_of(trial, data, partition_of(wanted, data))
    engine, x0 = engine_of(trial, network), network.blueprint.x0(1234)
    visit: Visit[Any] = Visit(0, 0, 0, x0, Step(0.001, 1e-4), K)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        engine.run(visit)
        times.append((time.perf_counter() - began) / K)
    return min(times)


def deployed(folder: Path, wanted: Spec, idle: int = 0) -> tuple[float, int]:
    """Seconds of one step over mutual TLS, the client in a process of its own; and kilobytes of the server."""
    data = load(wanted.data.name)
    export_partition(partition_of(wanted, data), data.train.x, data.train.y, folder / "data")
    authority = create_authority(folder / "authority", "bench")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0)
    identity = load_identity(folder / "server")
    admit = anyone if idle else by_certificate(Revocations(identity.revocations, identity.ca))  # they share one key
    offer = Offer(wanted, folder / "run", credentials=server_credentials(identity), admit=admit, quorum=1)
    serving, started = Serving(offer, lambda text: None), list[Any]()

    def listening(port: int) -> None:
        place = next((folder / "data").glob("client-*0")) / "data.npz"
        words = ["join", f"127.0.0.1:{port}", "--keys", str(folder / "client-0"), "--data", str(place)]
        if idle:
            started.append(_waiting(folder, port, idle, serving))
        started.append(subprocess.Popen([sys.executable, "-c", START, "-q", *words], stdout=subprocess.DEVNULL))

    serving.listening = listening
    list(serving.rows())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for program in started:
        program.terminate()
    lines = [json.loads(line) for line in (folder / "run" / "relay" / "events.jsonl").read_text().splitlines()]
    at = {kind: [line["seconds"] for line in lines if line["event"] == kind] for kind in ("leased", "committed")}
    return min((end - begin) / K for begin, end in zip(at["leased"], at["committed"], strict=True)), memory


def _waiting(folder: Path, port: int, idle: int, serving: Serving) -> subprocess.Popen[bytes]:
    """So many clients in another process, past their handshake and waiting."""
    words = [sys.executable, "-m", "benchmarks.wire", "idle", str(port), str(folder), str(idle), serving.spec.hash]
    program = subprocess.Popen([*words, serving.spec.engine])
    while len(serving.hub.here()) < idle:
        time.sleep(0.1)
    return program


def idle(port: str, folder: str, number: str, spec_hash: str, engine: str) -> None:
    """The clients that wait; heartbeats keep them."""
    queues: list[SimpleQueue[bytes]] = []
    lines = []  # a channel that nobody holds is closed
    credentials = channel_credentials(load_identity(Path(folder) / "client-0"))
    for m in range(1, int(number) + 1):
        line = channel(f"127.0.0.1:{port}", credentials)
        queue: SimpleQueue[bytes] = SimpleQueue()
        queue.put(encode(Hello(VERSION, m)))
        stream: Any = line.stream_stream("/splitrelay.Relay/Join")(iter(queue.get, None))
        next(stream)  # the terms
        queue.put(encode(Accept(spec_hash, engine, "any", 10)))
        next(stream)  # welcome
        queues.append(queue)
        lines.append((line, stream))
    while True:
        time.sleep(5)
        for queue in queues:
            queue.put(encode(Heartbeat(1)))


def echo(folder: Path) -> float:
    """Seconds of a round trip of the same bytes, mutual TLS, aio server here, client in a process of its own."""
    loop = asyncio.new_event_loop()

    async def back(_: Any, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            await context.write(frame)

    async def listen() -> tuple[Any, int]:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(back)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(load_identity(folder / "server")))
        await server.start()
        return server, port

    threading.Thread(target=loop.run_forever, daemon=True).start()
    _, port = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    words = [sys.executable, "-m", "benchmarks.wire", "echo", str(port), str(folder / "client-0")]
    return float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def echoing(port: str, keys: str) -> None:
    """The other end of it."""
    line = channel(f"127.0.0.1:{port}", channel_credentials(load_identity(Path(keys))))
    queue: SimpleQueue[bytes] = SimpleQueue()
    stream: Any = line.stream_stream("/bench/Echo")(iter(queue.get, None))
    frame, times = bytes(BYTES), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(K):
            queue.put(frame)
            next(stream)
        times.append((time.perf_counter() - began) / K)
    print(min(times))


def rows() -> Iterator[str]:
    """One line for each engine, then the 500."""
    for engine in ("reference", "fast"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wanted = spec(folder, engine)
            ours, _ = deployed(folder, wanted)
            parts = in_process(wanted), echo(folder)
            times = f"{ours * 1e3:.2f} ms; in process {parts[0] * 1e3:.2f} + echo {parts[1] * 1e3:.2f} ms"
            yield f"{engine}: a step over mutual TLS {times}: {ours / sum(parts):.2f}x"
    found = []
    for number in (0, IDLE):
        with tempfile.TemporaryDirectory() as name:
            found.append(deployed(Path(name), spec(Path(name), "fast", 1 + number), number))
    (alone, before), (crowded, after) = found
    grown = f"{(after - before) / 1e3:.0f} MB more at the server's peak"
    yield f"{IDLE} clients that wait: {grown}, a step {crowded / alone:.2f}x of {alone * 1e3:.2f} ms"


if __name__ == "__main__":
    if sys.argv[1:2] == ["echo"]:
        echoing(*sys.argv[2:])
    elif sys.argv[1:2] == ["idle"]:
        idle(*sys.argv[2:])
    else:
        for row in rows():
            print(row, flush=True)
