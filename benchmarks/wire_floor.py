"""The same two halves with nothing but gRPC between them: no table, no lease, no checks, no record.

An in-process step and a bare echo are each measured hot. Between two programs neither is: whoever has waited, or
computed, comes back to cold caches. This is what a step costs there whatever stands around it; the rest is ours.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import torch

from benchmarks.wire_bare import Child, serve
from splitrelay.algorithms import Step, Visit
from splitrelay.data import load
from splitrelay.data.images import get_images
from splitrelay.deploy.backend import ClientContext, Labels, Vector, get_backend
from splitrelay.deploy.backend_torch import build_model_spec, compute_shape, start
from splitrelay.deploy.handshake import build_terms
from splitrelay.engine.base import Reply, train_client_half
from splitrelay.network.grpc_channel import open_channel
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.security.identity import build_channel_credentials, load_identity

HEAD = struct.Struct("<qd")  # which step, and the squared norm; of an answer: how many norms, and the loss


class Floor:
    """Both programs, and a visit when asked."""

    def __init__(self, place: Path, spec: Spec) -> None:
        (place / "floor.toml").write_text(spec.to_toml() + "\n", encoding="utf-8")
        self._server = Child("server", str(place), module=__name__)
        self._client = Child("client", str(place), self._server.ask("port").strip(), module=__name__)

    @property
    def ends(self) -> tuple[int, int]:
        """Server and client."""
        return self._server.pid, self._client.pid

    def step(self) -> float:
        """Seconds from step to step of one visit."""
        return float(self._client.ask("visit"))

    def close(self) -> None:
        """No more."""
        self._client.close()
        self._server.close()


class World:
    """A spec and its data, as either program has them."""

    def __init__(self, place: Path) -> None:
        torch.set_num_threads(1)  # as in runs
        self.spec = load_spec(place / "floor.toml", [])
        self.data = load(self.spec.data.name)
        self.images = get_images(self.data.train, "this benchmark")
        self.kind = self.images.shape, len(self.images.classes)
        self.shape = compute_shape(self.spec, *self.kind)
        self.room = get_backend(self.spec.engine)
        self.x0 = start(build_model_spec(self.spec, *self.kind), 1, torch.float32)

    def visit(self, x: Vector) -> Visit[Vector]:
        """Of one half."""
        return Visit(1, 0, 0, x, Step(self.spec.optimiser.eta, 1e-4), self.spec.K)


def serving(place: str) -> None:
    """The server's half: it answers whatever comes, where it comes."""
    world = World(Path(place))
    batch, boundary = world.spec.optimiser.batch, world.shape.boundary
    engine = world.room.Server(world.spec, *world.kind, world.shape, batch)

    async def stepping(_: Any, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            k, norm2 = HEAD.unpack_from(frame)
            if k == 0:
                top = engine.begin(world.visit(world.x0[boundary:]))
            labels = np.frombuffer(frame, np.int32, batch, HEAD.size)
            h = np.frombuffer(frame, np.float32, -1, HEAD.size + labels.nbytes).reshape(batch, *world.shape.h)
            reply = top.step(k, h, labels, norm2)
            squares = struct.pack(f"<{len(reply.norms)}d", *reply.norms)
            await context.write(HEAD.pack(len(reply.norms), float(reply.loss)) + squares + reply.gradient.tobytes())
            top.apply_early()

    serve(str(Path(place) / "server"), {"Step": stepping})


class Top:
    """The server's half, as the client's engine asks it."""

    def __init__(self, place: Path, port: str) -> None:
        self._line = open_channel(f"127.0.0.1:{port}", build_channel_credentials(load_identity(place / "client-0")))
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._answers: Any = self._line.stream_stream("/bare/Step")(iter(self._queue.get, None))
        self.asked: list[float] = []
        self.prepare_next: Callable[[], None] = lambda: None

    def step(self, k: int, h: Vector, labels: Labels, norm2: float, /) -> Reply[Vector]:
        """There and back."""
        self.asked.append(time.perf_counter())
        self._queue.put(HEAD.pack(k, norm2) + labels.astype(np.int32).tobytes() + h.tobytes())
        time.sleep(0)  # it leaves first
        self.prepare_next()
        answer = next(self._answers)
        count, loss = HEAD.unpack_from(answer)
        norms = struct.unpack_from(f"<{count}d", answer, HEAD.size)
        gradient = np.frombuffer(answer, np.float32, -1, HEAD.size + 8 * count).reshape(h.shape)
        return Reply(gradient, norms, loss)

    def finish(self, norm2: float, /) -> None:
        """Nobody asks for what was learnt."""


def calling(place: str, port: str) -> None:
    """The client's half."""
    world, top = World(Path(place)), Top(Path(place), port)
    terms = build_terms(world.spec, world.data)
    client = world.room.Client(ClientContext(0, world.spec, terms, world.images))
    for _ in sys.stdin:
        top.asked = []
        half = client.begin(world.visit(world.x0[: world.shape.boundary]))
        top.prepare_next = half.prepare_next
        train_client_half(half, top, world.spec.K)
        print((top.asked[-1] - top.asked[0]) / (len(top.asked) - 1), flush=True)


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {"server": serving, "client": calling}
    parts[sys.argv[1]](*sys.argv[2:])
