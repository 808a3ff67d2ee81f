"""Every message of the protocol, as a value.

Six messages carry an array or raw bytes and have their own layout (see codec). All others are protobuf messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int32]


class Message:
    """A message of the protocol. Its fence names the lease or the request that it belongs to."""

    event: ClassVar[str]  # its name in the table of the protocol, in control.proto and in records
    fence: int

    def __init_subclass__(cls, event: str = "") -> None:
        cls.event = event


class SessionMessage(Message):
    """A message that belongs to no lease."""

    fence = 0


@dataclass(frozen=True, eq=False)
class Step(Message, event="step"):
    """Client: step k with smashed data, labels, and the client's part of the squared gradient norm of step k - 1."""

    fence: int
    k: int
    h: Floats
    labels: Labels
    norm2: float


@dataclass(frozen=True, eq=False)
class Reply(Message, event="reply"):
    """Server: reply to step k: the gradient at the cut, the squared norms of the server's gradients, the loss."""

    fence: int
    k: int
    gradient: Floats
    norms: tuple[float, ...]
    loss: float


@dataclass(frozen=True)
class Finish(Message, event="finish"):
    """Client: the end of the K steps, with the client's part of the squared gradient norm of the last one."""

    fence: int
    k: int
    norm2: float


@dataclass(frozen=True)
class Chunk(Message, event="chunk"):
    """Both: piece k of a half."""

    fence: int
    k: int
    data: bytes


@dataclass(frozen=True, eq=False)
class Predict(Message, event="predict"):
    """Evaluator: the smashed data of slice k of the test set."""

    fence: int
    k: int
    h: Floats


@dataclass(frozen=True, eq=False)
class Output(Message, event="output"):
    """Server: the outputs of the server half for slice k."""

    fence: int
    k: int
    out: Floats


@dataclass(frozen=True)
class Hello(SessionMessage, event="hello"):
    """Client: the first message of a connection."""

    version: int
    client: int
    software: str = ""


@dataclass(frozen=True)
class Terms(SessionMessage, event="terms"):
    """Server: the spec, and the facts about the data that both ends must share."""

    spec: str
    spec_hash: str
    engine: str
    cpu: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    peak: int
    pad: int = 0
    flip: bool = False
    heartbeat: float = 0.0
    plan: str = ""
    sealed: bool = False  # the server cannot read the client halves
    judged: bool = False  # an evaluator that is no client evaluates
    salt: Any = b""  # random bytes of this run, which clients mix into the digest of their data
    samples: str = ""  # JSON of handshake.SampleTerms if the samples are no images


@dataclass(frozen=True)
class Accept(Message, event="accept"):
    """Client: the spec that it accepts, its samples (n_m), and the visit that it still holds, answered up to step k."""

    spec_hash: str
    engine: str
    cpu: str
    n: int
    fence: int = 0
    k: int = 0
    check: bool = False
    address: str = ""  # where other clients reach it
    data_digest: Any = b""  # salted SHA-256 of its data


@dataclass(frozen=True)
class Welcome(SessionMessage, event="welcome"):
    """Server: the client is accepted. It waits for a lease."""

    note: str = ""


@dataclass(frozen=True)
class Resume(Message, event="resume"):
    """Server: the client continues the visit that it holds."""

    fence: int


@dataclass(frozen=True)
class Refuse(SessionMessage, event="refuse"):
    """Server: the client is refused; `final` if another attempt does not help."""

    why: str
    final: bool = False


@dataclass(frozen=True)
class Lease(Message, event="lease"):
    """Server: a visit of K steps from the half that follows, of `bytes` bytes (0: the client computes x_c^0)."""

    fence: int
    visit: int
    r: int
    i: int
    m: int
    K: int
    eta: float
    weight_decay: float = 0.0
    clip: float = 0.0
    momentum: float = 0.0
    prox: float = 0.0
    per_half: bool = False
    bytes: int = 0
    sha256: Any = b""
    sealed_visit: int = 0
    sealed_fence: int = 0
    epoch: int = 0
    direct: bool = False  # the half comes from the previous client
    heir: str = ""  # where the next client is reached


@dataclass(frozen=True)
class HalfRequest(Message, event="want"):
    """Client: the half has not come from the previous client, and the server must send it."""

    fence: int


@dataclass(frozen=True)
class Ready(Message, event="ready"):
    """Client: the half is complete."""

    fence: int


@dataclass(frozen=True)
class HandoverReport(Message, event="handed"):
    """Client: handover to the next client succeeded, or failed for the reason in `why`. The deposit follows."""

    fence: int
    bytes: int
    sha256: Any
    why: str = ""


@dataclass(frozen=True)
class Deposit(Message, event="deposit"):
    """Client: all chunks of the half after the visit have been sent."""

    fence: int
    bytes: int
    sha256: Any
    losses: tuple[float, ...] = ()
    epoch: int = 0


@dataclass(frozen=True)
class Commit(Message, event="commit"):
    """Server: the visit is committed."""

    fence: int


@dataclass(frozen=True)
class Cancel(Message, event="cancel"):
    """Server: the visit is cancelled. Its results are not used."""

    fence: int
    why: str = ""


@dataclass(frozen=True)
class Fail(Message, event="fail"):
    """Client: it cannot make the visit. Its numbers `diverged`, or it may be able to make it `later`."""

    fence: int
    why: str = ""
    diverged: bool = False
    later: bool = False


@dataclass(frozen=True)
class EvaluationRequest(Message, event="look"):
    """Server: evaluate this half. If `top_bytes` > 0, the server half follows, and the evaluator saves both."""

    fence: int
    r: int
    bytes: int
    sha256: Any
    sealed_visit: int = 0
    sealed_fence: int = 0
    epoch: int = 0
    top_bytes: int = 0
    recipe: str = ""  # for the fed server: how the halves that follow are combined, and their lengths


@dataclass(frozen=True)
class Score(Message, event="score"):
    """Evaluator: the result of an evaluation."""

    fence: int
    loss: float
    accuracy: float
    per_class: tuple[float, ...] = ()
    metrics: tuple[float, ...] = ()  # in the order of the spec


@dataclass(frozen=True)
class Heartbeat(SessionMessage, event="heartbeat"):
    """Both: a sign of life."""

    number: int = 0


@dataclass(frozen=True)
class UsageReport(SessionMessage, event="paid"):
    """Client: the seconds and bytes that its program has used so far. After a restart `program` is another number."""

    program: int
    visits: int
    waiting: float  # seconds of its visits
    computing: float
    memory: int  # bytes, at the peak


@dataclass(frozen=True)
class Leave(SessionMessage, event="leave"):
    """Client: it leaves."""

    why: str = ""


@dataclass(frozen=True)
class Bye(SessionMessage, event="bye"):
    """Server: it stops; `again` if it will come back."""

    why: str = ""
    again: bool = False


CONTROL_MESSAGES: tuple[type[Message], ...] = (
    Hello, Terms, Accept, Welcome, Resume, Refuse, Lease, HalfRequest, Ready, HandoverReport, Deposit, Commit, Cancel,
    Fail, EvaluationRequest, Score, Heartbeat, UsageReport, Leave, Bye,
)  # fmt: skip
BUFFER_MESSAGES: tuple[type[Message], ...] = (Step, Reply, Finish, Chunk, Predict, Output)
