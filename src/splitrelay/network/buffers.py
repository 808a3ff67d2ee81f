"""What is said on the wire with a buffer, as values: these six go raw (see frames), all else is protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int32]


class Message:
    """Anything that is said; a `fence` names the grant of the visit that it belongs to."""

    event: ClassVar[str]  # its name in the table of the protocol

    def __init_subclass__(cls) -> None:
        cls.event = cls.__name__.lower()


@dataclass(frozen=True, eq=False)
class Step(Message):
    """Step k: smashed data, labels, and the client's squared norm that closes step k - 1."""

    fence: int
    k: int
    h: Floats
    labels: Labels
    norm2: float


@dataclass(frozen=True, eq=False)
class Reply(Message):
    """The answer to step k: the gradient at the cut, the squared norms of the server's gradients, the loss."""

    fence: int
    k: int
    gradient: Floats
    norms: tuple[float, ...]
    loss: float


@dataclass(frozen=True)
class Finish(Message):
    """The squared norm that closes the last of K steps."""

    fence: int
    k: int
    norm2: float


@dataclass(frozen=True)
class Chunk(Message):
    """Piece k of a half."""

    fence: int
    k: int
    data: bytes


@dataclass(frozen=True, eq=False)
class Predict(Message):
    """Slice k of the test set, up to the cut: what comes out above it?"""

    fence: int
    k: int
    h: Floats


@dataclass(frozen=True, eq=False)
class Output(Message):
    """What came out for slice k."""

    fence: int
    k: int
    out: Floats


def fence_of(message: Message) -> int:
    """The grant that a message belongs to, 0 for none."""
    fence: int = getattr(message, "fence", 0)
    return fence


BUFFERS: tuple[type[Message], ...] = (Step, Reply, Finish, Chunk, Predict, Output)
