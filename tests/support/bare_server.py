"""A server without training on a real socket, and clients that stop at a chosen point."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.deploy.quarantine import Quarantine
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import Policy
from splitrelay.deploy.stalls import StallReporter
from splitrelay.deploy.visit_scheduler import VisitContext
from splitrelay.network.client_session import Connection
from splitrelay.network.codec import VERSION, Bounds
from splitrelay.network.grpc_channel import open_channel
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Accept, Hello, Lease, Message, Ready, Step, Terms, Welcome
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.security.authority import Authority, create_authority, open_authority
from splitrelay.security.identity import load_identity

TERMS = Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=60.0)
BOUNDS = Bounds(batch=4, h=(3,), out=2, dtype="float32", classes=10, norms=8, look=4)
WAIT = Policy()
# Nobody sends heartbeats. No timeout passes, however slow the machine is.
QUIET = Timeouts(heartbeat=3600.0, silence=3600.0, handshake=300.0)
H, LABELS = np.ones((4, 3), np.float32), np.zeros(4, np.int32)


class BareServer:
    """A server that listens, the events that it has recorded, and its clients."""

    def __init__(self, credentials: Any = None, client: Timeouts = QUIET, **settings: Any) -> None:
        self.client = client  # timeouts of the clients
        settings = {"timeouts": QUIET, **settings}
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self.network = NetworkServer(
            ServerContext(TERMS, BOUNDS, 10_000, settings.pop("clients", 4), **settings), self._note
        )
        self.port = self.network.start("127.0.0.1:0", credentials)
        self.connection_count: list[Connection] = []

    def _note(self, event: str, **facts: Any) -> None:
        self.noted.append((event, facts))

    def call(self, credentials: Any = None) -> Connection:
        """Open a stream; nothing is sent yet."""
        self.connection_count.append(Connection(open_channel(f"127.0.0.1:{self.port}", credentials), self.client))
        return self.connection_count[-1]

    def joined(self, m: int = 0, credentials: Any = None, check: bool = False) -> Connection:
        """Open a stream and finish the handshake."""
        connection = self.call(credentials)
        connection.send(Hello(VERSION, m))
        assert isinstance(connection.receive(300), Terms)
        connection.send(Accept("h", "fast", "cpu", 5, check=check))
        assert isinstance(connection.receive(300), Welcome)
        return connection

    def leased(self, m: int = 0, credentials: Any = None) -> Connection:
        """Open a stream and begin a visit."""
        connection = self.joined(m, credentials)
        self.say(m, lease(m + 1))
        assert isinstance(connection.receive(300), Lease)
        connection.send(Ready(m + 1))
        return connection

    def say(self, m: int, *words: Message) -> None:
        self.network.connections.send(self.network.connections.get_clients()[m], *words)


@contextmanager
def run_bare_server(credentials: Any = None, **settings: Any) -> Iterator[BareServer]:
    here = BareServer(credentials, **settings)
    try:
        yield here
    finally:
        for connection in here.connection_count:
            connection.close()
        here.network.close("enough", again=False)


class QuietJournal:
    """A journal that records nothing, in a folder that does not exist."""

    events = Path("no-such-folder") / "events.jsonl"

    def note(self, *_: Any, **__: Any) -> None:
        pass

    def skip(self, *_: Any, **__: Any) -> None:
        pass


def make_remote_clients(
    here: BareServer, policy: Policy = WAIT, *, server_visits: Any = None, quarantine: Any = None, **more: Any
) -> RemoteClients:
    """Return the clients of a bare server, without a run."""
    journal: Any = QuietJournal()
    quarantine = quarantine or Quarantine(policy, journal.note)
    stalls = StallReporter(journal.note, lambda text: None, policy.stalled_after)
    context = VisitContext(
        here.network.connections, server_visits, journal, policy, quarantine, stalls, threading.Event()
    )
    return RemoteClients(context, **more)


def lease(fence: int = 1) -> Lease:
    return Lease(fence, 1, 0, 0, 0, 1000, 0.1)


def step(fence: int = 1, k: int = 0) -> Step:
    return Step(fence, k, H, LABELS, 0.0)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until the condition holds, at most five minutes."""
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.01)


def is_closed(line: socket.socket) -> bool:
    """Return whether the other end closes within five minutes."""
    line.settimeout(300)
    try:
        while line.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    finally:
        line.close()
    return True


def issue_keys(place: Path) -> Authority:
    """Issue keys of every role beside those of the authority."""
    authority = create_authority(place / "authority", "tests")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0)
    authority.issue_client("client-9", 9)
    authority.issue_client("judge", evaluator=True)
    authority.issue_client("boss", observer=True)
    authority.issue_client("both", 1, evaluator=True)
    return authority


def copy_authority(issued: Authority, tmp_path: Path) -> Authority:
    shutil.copytree(issued.folder.parent, tmp_path / "here")
    return open_authority(tmp_path / "here" / "authority")


class PeerContext:
    """The context of a connection as gRPC presents it."""

    def __init__(self, folder: Path) -> None:
        self.certificate = load_identity(folder).certificate

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self.certificate]}
