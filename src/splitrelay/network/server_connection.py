"""One connection as the server sees it, and what a server accepts.

Only code that runs on the event loop uses a `ServerConnection` (see shared_event_loop).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np

from splitrelay import __version__
from splitrelay.errors import WorkError
from splitrelay.network import limits
from splitrelay.network.codec import HEADER, LABEL, NUMBER, VERSION, Bounds
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Accept, Hello, Message, Terms
from splitrelay.network.protocol import Conversation, End
from splitrelay.network.tensor_transfer import Assembly

EVALUATOR_NUMBER = limits.CLIENTS  # the number of an evaluator that is none of the clients
FED_SERVER_NUMBER = limits.CLIENTS + 1  # that of the fed server


class TooManyConnections(WorkError):
    """There are too many connections now; a later attempt may succeed."""


class ClientRejected(WorkError):
    """This client cannot take part; another attempt does not help."""


@dataclass(eq=False)
class ServerConnection:
    """One connection, as the event loop sees it."""

    number: int
    context: Any
    task: asyncio.Task[None]
    peer: str
    connected_at: float
    received_at: float
    certificate: bytes = b""  # its certificate
    version: int = VERSION  # of the protocol; another one is only refused
    m: int = -1
    hello: Hello | None = None
    address: str = ""  # where other clients reach it
    answered: int = 0  # steps of a resumed visit
    conversation: Conversation = field(default_factory=lambda: Conversation(End.SERVER))
    half: Assembly | None = None
    stale: int = 0  # the last visit of which a word came too late
    why: str = "the connection was lost"  # it is over
    final: bool = False  # and need not be tried again
    refused: bool = False  # for what it said
    sent_at: float = 0.0  # when it last heard from us
    queued_chunks: int = 0  # chunks that are still to be said
    down: int = 0  # bytes of the half that it was last granted, as far as they have left
    outgoing: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue)
    write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the task that writes
    received: int = 0
    sent: int = 0
    messages: int = 0
    descriptor: int = -1  # of its socket, see metering
    bytes: tuple[int, int] | None = None
    counted: int = 0  # of those that came, when they were last looked at
    idle_messages: float = Limits.idle_messages  # that it may still send without getting any further
    idle_since: float = 0.0  # when they were last counted
    paid_fence: int = -1  # of the visit in which it last said what it has cost

    @property
    def transferred(self) -> tuple[int, int]:
        """Bytes of halves, up and down, of what was last granted: it grows while they are on their way."""
        return 0 if self.half is None else self.half.length, self.down

    @cached_property
    def source(self) -> str:
        """Name the peer for the rate limits of events: by its certificate, or by its host where it shows none."""
        if self.certificate:
            return hashlib.sha256(self.certificate).hexdigest()
        return unquote(self.peer).rpartition(":")[0]  # every connection has another port

    def auth_context(self) -> dict[str, list[Any]]:
        """Return the certificate. Do not ask gRPC for it: after the end of the call that crashes the process."""
        return {"x509_pem_cert": [self.certificate]} if self.certificate else {}


@dataclass(frozen=True)
class ServerContext:
    """What a server accepts: its terms, its clients, the sizes of messages, limits and timeouts."""

    terms: Terms
    bounds: Bounds
    half: int  # bytes that a deposit may have
    clients: int  # M
    admit: Callable[[Any, Hello], str | None] = lambda caller, hello: None  # a reason to refuse, or None
    check_accept: Callable[[Hello, Accept], str | None] = lambda hello, accept: None
    has_evaluator: bool = False  # whether an evaluator is expected that is none of the clients
    fed: bool = False  # whether a fed server is
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def largest(self) -> int:
        """The bytes of the longest message that a client may send."""
        bounds = self.bounds
        number = 8 if bounds.dtype is None else np.dtype(bounds.dtype).itemsize
        sample = limits.MESSAGE if bounds.h is None else number * math.prod(bounds.h) + LABEL.itemsize
        buffer = max(limits.CHUNK, limits.CONTROL, max(bounds.batch, bounds.look) * sample + NUMBER.itemsize)
        return min(limits.MESSAGE, HEADER.size + buffer)


def describe_version_conflict(version: int, said: Message | None) -> str:
    """Say which versions the two ends have, and which one to install where."""
    software = said.software if isinstance(said, Hello) and said.software else "another splitrelay"
    ours = f"this server has splitrelay {__version__} with version {VERSION} of the protocol"
    return f"{ours}, this client {software} with version {version}. Install splitrelay {__version__} at the client."
