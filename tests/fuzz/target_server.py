"""A real server for hostile clients: it trains with all clients, and restarts a run that they have stopped."""

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
from splitrelay.network.grpc_channel import open_channel
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Bye, Message
from splitrelay.network.protocol import Conversation, End, State
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER, ServerConnection
from splitrelay.runs.execute import Progress
from splitrelay.runs.spec import load_spec
from splitrelay.security.encryption import compute_spec_digest
from splitrelay.security.sealing_session import list_sealed_sizes
from tests.fuzz.scripted_client import CONVERSATION_KEY, ServerInfo

CLIENTS = 6  # hostile clients at once; one more number belongs to an honest one
SPEC = (f"M={CLIENTS + 1}", "C=2", "K=2", "R=10", "batch=5", "model=mlp", "clip=1", "eta=0.001")
SERVER_KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any], tuple[int, ...]]] = {  # spec, config, other parties
    "peer-to-peer": (("route=peer-to-peer",), {"has_evaluator": True}, (EVALUATOR_NUMBER,)),
    "centralized": ((), {}, ()),
    "whole": (("placement=whole", "algorithm=fedavg"), {}, ()),
    "fed server": (
        ("algorithm=fedavg", "placement=cut"),
        {"fed": True, "has_evaluator": True},
        (FED_SERVER_NUMBER, EVALUATOR_NUMBER),
    ),
}
POLICY = Policy("skip", lease=0.1, step=0.1, retries=0, strikes=0)  # the fuzzer needs a lease for every hostile client
UNCOUNTED = -1  # the number of conversations that are not counted
TIMEOUT = 30.0  # seconds after which a server that has not done what it should is taken for hung


class ObservedConversation(Conversation):
    """A conversation that records its states, and messages of the server that the table does not allow."""

    def __init__(self, seen: set[State], violations: Counter[str]) -> None:
        self.seen, self.violations = seen, violations
        super().__init__(End.SERVER)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self.seen.add(value)
        super().__setattr__(name, value)

    def record_sent(self, message: Message) -> None:
        """Send a message; record it if the table does not allow it."""
        try:
            super().record_sent(message)
        except BadMessage as error:
            self.violations[error.what] += 1
            raise


class TargetServer(ServerProgram):
    """A server that restarts a run which its clients have stopped, on the same connections."""

    def __init__(self, kind: str, offer: ServerConfig) -> None:
        super().__init__(offer, lambda text: None)
        self.kind = kind
        self.seen: defaultdict[int, set[State]] = defaultdict(set)  # by conversation
        self.run_ends = Counter[str]()  # why runs have ended
        self.violations = Counter[str]()  # messages that the table does not allow
        self.crash: BaseException | None = None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._train_until_stopped, name="target server", daemon=True)

    def _train_until_stopped(self) -> None:
        try:
            for _ in self.rows():
                pass
        except KeyboardInterrupt:  # it was asked to stop
            pass
        except BaseException as error:
            self.crash = error
        finally:
            self.ready.set()

    def _train(self) -> Iterator[Progress]:
        handler = self.network.connections
        self._add, handler.add = handler.add, self._observe_connection  # type: ignore[method-assign]
        self.ready.set()
        while not self.stop.is_set():
            try:
                yield from super()._train()
                self.run_ends["all rounds are done"] += 1
            except SplitrelayError as error:
                self.run_ends[re.sub(r"\d+", "m", f"{type(error).__name__}: {error.what}")] += 1
            self._reset_run()

    def _observe_connection(self, connection: ServerConnection) -> None:
        metadata = dict(connection.context.invocation_metadata())
        connection.conversation = ObservedConversation(
            self.seen[int(metadata.get(CONVERSATION_KEY, UNCOUNTED))], self.violations
        )
        self._add(connection)

    def _reset_run(self) -> None:
        """Delete the run. Fences keep growing, the sizes of clients remain, and clients must reconnect."""
        for connection in self.network.connections.get_clients().values():
            self.network.connections.send(connection, Bye("the run begins anew", again=True))
        self.journal.remove_rounds(10**9)
        self.directory.rounds.unlink(missing_ok=True)
        self.directory.model.unlink(missing_ok=True)
        shutil.rmtree(self.directory.checkpoints.folder, ignore_errors=True)


@contextmanager
def run_target_server(kind: str) -> Iterator[TargetServer]:
    """Run a server of this kind in a thread of its own."""
    words, offer, _ = SERVER_KINDS[kind]
    with TemporaryDirectory() as folder:
        spec = load_spec(None, [f"data={_write_images(Path(folder))}", *SPEC, *words])
        server = TargetServer(
            kind,
            ServerConfig(
                spec,
                Path(folder) / "run",
                policy=POLICY,
                quorum=1,
                timeouts=Timeouts(heartbeat=60.0, server_tick=0.05),
                **offer,
            ),
        )
        server.thread.start()
        server.ready.wait()
        try:
            yield server
        finally:
            server.stop.set()
            server.thread.join(TIMEOUT)
            if server.thread.is_alive():
                raise WorkError(f"the server ({kind}) does not stop", limit=f"{TIMEOUT:g} seconds")


def _write_images(folder: Path) -> Path:
    """Write fifty grey images of ten classes."""
    y = np.arange(50) % 10
    np.savez(folder / "own.npz", x=(np.arange(16)[None] * (y[:, None] + 3)).reshape(-1, 4, 4).astype(np.uint8), y=y)
    return folder / "own.npz"


def describe_server(server: ServerProgram) -> ServerInfo:
    """Return what its clients know of it, with a channel of their own."""
    spec, shape, whole = server.spec, server.shape, server.spec.placement == "whole"
    connection, classes = open_channel(f"127.0.0.1:{server.port}", None), len(server.data.train.classes)
    return ServerInfo(
        connection,
        shape.h,
        spec.optimiser.batch,
        classes,
        shape.size if whole else shape.boundary,
        server.sealed,
        whole,
        compute_spec_digest(spec.identity),
        list_sealed_sizes(tensor_transfer.compute_packed_size({"x": shape.boundary}, spec.model.dtype))[0],
    )


class ErrorLog(logging.Handler):
    """Counts the exceptions that gRPC and asyncio log because nobody handled them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Count the record by its first line. ExecuteBatchError is allowed: a client hung up while gRPC closed."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ != "ExecuteBatchError":
            self.errors[f"{record.getMessage()[:200].splitlines()[0]} {error!r}"] += 1

    def __enter__(self) -> Counter[str]:
        for name in ("grpc", "asyncio"):
            logging.getLogger(name).addHandler(self)
        return self.errors

    def __exit__(self, *_: object) -> None:
        for name in ("grpc", "asyncio"):
            logging.getLogger(name).removeHandler(self)
