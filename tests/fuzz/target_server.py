"""A real server among hostile clients: it trains with whoever comes, and begins anew whatever they have stopped."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import SplitrelayError, WorkError
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.connection_handler import FED, JUDGE, Caller
from splitrelay.network.grpc_channel import channel
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Bye, Message
from splitrelay.network.protocol import Conversation, End, State
from splitrelay.runs.execute import Progress
from splitrelay.runs.spec import load_spec
from splitrelay.security.encryption import compute_spec_digest
from splitrelay.security.sealing_session import list_sealed_sizes
from tests.fuzz.scripted_client import WHOSE, Place

GUESTS = 6  # hostile clients at once; one more number is kept for an honest one
SPEC = (f"M={GUESTS + 1}", "C=2", "K=2", "R=10", "batch=5", "model=mlp", "clip=1", "eta=0.001")
HOUSES: dict[str, tuple[tuple[str, ...], dict[str, bool], tuple[int, ...]]] = {  # spec, offer, who comes besides
    "peer-to-peer": (("route=peer-to-peer",), {"judge": True}, (JUDGE,)),
    "centralized": ((), {}, ()),
    "whole": (("placement=whole", "algorithm=fedavg"), {}, ()),
    "fed server": (("algorithm=fedavg",), {"fed": True, "judge": True}, (FED, JUDGE)),
}
POLICY = Policy("skip", lease=0.1, step=0.1, retries=0, strikes=0)  # the fuzzer needs a lease for every hostile client
NONE = -1  # the number of conversations that are not counted
PATIENCE = 30.0  # seconds after which a server that has not done what it should is taken for hung


class Watched(Conversation):
    """A conversation whose states are noted, and the server's words that have no place in it."""

    def __init__(self, seen: set[State], slips: Counter[str]) -> None:
        self.seen, self.slips = seen, slips
        super().__init__(End.SERVER)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self.seen.add(value)
        super().__setattr__(name, value)

    def say(self, message: Message) -> None:
        """As always."""
        try:
            super().say(message)
        except BadMessage as error:
            self.slips[error.what] += 1
            raise


class Besieged(ServerProgram):
    """A server that goes on: a run that its clients have stopped is begun again, on the same links."""

    def __init__(self, house: str, offer: ServerConfig) -> None:
        super().__init__(offer, lambda text: None)
        self.house = house
        self.seen: defaultdict[int, set[State]] = defaultdict(set)  # by conversation
        self.stops = Counter[str]()  # why runs have ended
        self.slips = Counter[str]()  # what the server said against its own table
        self.fallen: BaseException | None = None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._training, name="besieged", daemon=True)

    def _training(self) -> None:
        try:
            for _ in self.rows():
                pass
        except KeyboardInterrupt:  # told to stop
            pass
        except BaseException as error:
            self.fallen = error
        finally:
            self.ready.set()

    def _trained(self) -> Iterator[Progress]:
        reception = self.hub.reception
        self._enter, reception.enter = reception.enter, self._entered  # type: ignore[method-assign]
        self.ready.set()
        while not self.stop.is_set():
            try:
                yield from super()._trained()
                self.stops["all rounds are done"] += 1
            except SplitrelayError as error:
                self.stops[re.sub(r"\d+", "m", f"{type(error).__name__}: {error.what}")] += 1
            self._forget()

    def _entered(self, link: Caller) -> None:
        told = dict(link.context.invocation_metadata())
        link.talk = Watched(self.seen[int(told.get(WHOSE, NONE))], self.slips)
        self._enter(link)

    def _forget(self) -> None:
        """As if the run had not been; but fences only grow, who holds how much stays, and clients must come again."""
        for link in self.hub.here().values():
            self.hub.send(link, Bye("the run begins anew", again=True))
        self.journal.forget(10**9)
        self.directory.rounds.unlink(missing_ok=True)
        self.directory.model.unlink(missing_ok=True)
        shutil.rmtree(self.directory.checkpoints.folder, ignore_errors=True)


@contextmanager
def besieged(house: str) -> Iterator[Besieged]:
    """The server of a house, in a thread of its own."""
    words, offer, _ = HOUSES[house]
    with TemporaryDirectory() as folder:
        spec = load_spec(None, [f"data={_images(Path(folder))}", *SPEC, *words])
        server = Besieged(
            house,
            ServerConfig(
                spec, Path(folder) / "run", policy=POLICY, quorum=1, timeouts=Timeouts(heartbeat=60.0), **offer
            ),
        )  # type: ignore[arg-type]
        server.thread.start()
        server.ready.wait()
        try:
            yield server
        finally:
            server.stop.set()
            server.thread.join(PATIENCE)
            if server.thread.is_alive():
                raise WorkError(f"the server of {house} does not stop", limit=f"{PATIENCE:g} seconds")


def _images(folder: Path) -> Path:
    """Fifty grey images of ten kinds."""
    y = np.arange(50) % 10
    np.savez(folder / "own.npz", x=(np.arange(16)[None] * (y[:, None] + 3)).reshape(-1, 4, 4).astype(np.uint8), y=y)
    return folder / "own.npz"


def place_of(server: ServerProgram) -> Place:
    """What its clients know of it, and a connection of their own."""
    spec, shape, whole = server.spec, server.shape, server.spec.placement == "whole"
    line, classes = channel(f"127.0.0.1:{server.port}", None), len(server.data.train.classes)
    return Place(
        line,
        shape.h,
        spec.optimiser.batch,
        classes,
        shape.size if whole else shape.boundary,
        server.sealed,
        whole,
        compute_spec_digest(spec.identity),
        list_sealed_sizes(tensor_transfer.size_of({"x": shape.boundary}, spec.model.dtype))[0],
    )


class Alarm(logging.Handler):
    """Counts what gRPC and asyncio complain of: exceptions that nobody took."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """By its first line; gRPC also tells of callers that hang up while it says goodbye, which they may."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ != "ExecuteBatchError":
            self.heard[f"{record.getMessage()[:200].splitlines()[0]} {error!r}"] += 1

    def __enter__(self) -> Counter[str]:
        for name in ("grpc", "asyncio"):
            logging.getLogger(name).addHandler(self)
        return self.heard

    def __exit__(self, *_: object) -> None:
        for name in ("grpc", "asyncio"):
            logging.getLogger(name).removeHandler(self)
