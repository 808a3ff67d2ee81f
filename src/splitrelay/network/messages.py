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
    """Anything that is said; a `fence` names the grant of the visit that it belongs to."""

    event: ClassVar[str]  # its name in the table of the protocol, in control.proto and in records

    def __init_subclass__(cls, event: str) -> None:
        cls.event = event


@dataclass(frozen=True, eq=False)
class Step(Message, event="step"):
    """Step k: smashed data, labels, and the client's squared norm that closes step k - 1."""

    fence: int
    k: int
    h: Floats
    labels: Labels
    norm2: float


@dataclass(frozen=True, eq=False)
class Reply(Message, event="reply"):
    """The answer to step k: the gradient at the cut, the squared norms of the server's gradients, the loss."""

    fence: int
    k: int
    gradient: Floats
    norms: tuple[float, ...]
    loss: float


@dataclass(frozen=True)
class Finish(Message, event="finish"):
    """The squared norm that closes the last of K steps."""

    fence: int
    k: int
    norm2: float


@dataclass(frozen=True)
class Chunk(Message, event="chunk"):
    """Piece k of a half."""

    fence: int
    k: int
    data: bytes


@dataclass(frozen=True, eq=False)
class Predict(Message, event="predict"):
    """Slice k of the test set, up to the cut: what comes out above it?"""

    fence: int
    k: int
    h: Floats


@dataclass(frozen=True, eq=False)
class Output(Message, event="output"):
    """What came out for slice k."""

    fence: int
    k: int
    out: Floats


def get_fence(message: Message) -> int:
    """The grant that a message belongs to, 0 for none."""
    fence: int = getattr(message, "fence", 0)
    return fence


@dataclass(frozen=True)
class Hello(Message, event="hello"):
    """The first word of a client."""

    version: int
    client: int
    software: str = ""


@dataclass(frozen=True)
class Terms(Message, event="terms"):
    """What the server asks for: the spec, and how a pixel becomes a number."""

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
    sealed: bool = False  # the server is not to read the clients' half
    judged: bool = False  # an evaluator that is none of the clients scores
    salt: Any = b""  # random bytes of this run, which clients mix into the digest of their data


@dataclass(frozen=True)
class Accept(Message, event="accept"):
    """What the client agrees to, how much it brings (n_m), and the visit that it still holds, answered up to step k."""

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
class Welcome(Message, event="welcome"):
    """Wait for your turn."""

    note: str = ""


@dataclass(frozen=True)
class Resume(Message, event="resume"):
    """The visit that you hold goes on."""

    fence: int


@dataclass(frozen=True)
class Refuse(Message, event="refuse"):
    """No; `final` where trying again makes no sense."""

    why: str
    final: bool = False


@dataclass(frozen=True)
class Lease(Message, event="lease"):
    """A visit: K steps from the half that follows, of `bytes` bytes (0: make x_c^0 yourself)."""

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
    direct: bool = False  # the half comes from the client before
    heir: str = ""  # where the next client is reached


@dataclass(frozen=True)
class HalfRequest(Message, event="want"):
    """The half has not come from the client before: send it."""

    fence: int


@dataclass(frozen=True)
class Ready(Message, event="ready"):
    """The half has come, whole."""

    fence: int


@dataclass(frozen=True)
class HandoverReport(Message, event="handed"):
    """The next client has the half, which will be deposited too; `why` where it could not be handed over."""

    fence: int
    bytes: int
    sha256: Any
    why: str = ""


@dataclass(frozen=True)
class Deposit(Message, event="deposit"):
    """All chunks of the half after the visit have been sent."""

    fence: int
    bytes: int
    sha256: Any
    losses: tuple[float, ...] = ()
    epoch: int = 0


@dataclass(frozen=True)
class Commit(Message, event="commit"):
    """The visit counts."""

    fence: int


@dataclass(frozen=True)
class Cancel(Message, event="cancel"):
    """The visit is taken back: whatever was made of it is void."""

    fence: int
    why: str = ""


@dataclass(frozen=True)
class Fail(Message, event="fail"):
    """The client cannot do the visit: its numbers `diverged`, or it may be able to do it `later`."""

    fence: int
    why: str = ""
    diverged: bool = False
    later: bool = False


@dataclass(frozen=True)
class EvaluationRequest(Message, event="look"):
    """Peer to peer: score this half; where `top_bytes` is not 0 the server's half follows it, to be kept."""

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
    """What the evaluator saw."""

    fence: int
    loss: float
    accuracy: float
    per_class: tuple[float, ...] = ()


@dataclass(frozen=True)
class Heartbeat(Message, event="heartbeat"):
    """I am here."""

    number: int = 0


@dataclass(frozen=True)
class UsageReport(Message, event="paid"):
    """What taking part has cost this client's program so far; `program` is another one after a restart."""

    program: int
    visits: int
    waiting: float  # seconds of its visits
    computing: float
    memory: int  # bytes, at the peak


@dataclass(frozen=True)
class Leave(Message, event="leave"):
    """The client goes."""

    why: str = ""


@dataclass(frozen=True)
class Bye(Message, event="bye"):
    """The server goes; `again` where it comes back."""

    why: str = ""
    again: bool = False


CONTROL_MESSAGES: tuple[type[Message], ...] = (
    Hello, Terms, Accept, Welcome, Resume, Refuse, Lease, HalfRequest, Ready, HandoverReport, Deposit, Commit, Cancel,
    Fail, EvaluationRequest, Score, Heartbeat, UsageReport, Leave, Bye,
)  # fmt: skip
BUFFER_MESSAGES: tuple[type[Message], ...] = (Step, Reply, Finish, Chunk, Predict, Output)
