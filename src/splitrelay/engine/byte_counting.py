"""The bytes that go over the inner seam: one count for all engines, here and on other hosts."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Generic, Protocol, TypeVar

HEADER = 64  # bytes before every buffer: what it is, of which visit and step, its shape
LABEL, NORM, LOSS = 4, 8, 8  # bytes of one label, of one squared norm, of a loss


class Buffer(Protocol):
    """A tensor or an array."""

    @property
    def nbytes(self) -> int: ...


class Answer(Protocol):
    """What the server's half answers to a step, as far as it is counted."""

    @property
    def gradient(self) -> Buffer: ...
    @property
    def norms(self) -> Sequence[float]: ...


H = TypeVar("H", bound=Buffer)
Labels = TypeVar("Labels", bound=Sized)
Reply = TypeVar("Reply", bound=Answer)
Labels_in = TypeVar("Labels_in", bound=Sized, contravariant=True)
Reply_out = TypeVar("Reply_out", bound=Answer, covariant=True)


class Seam(Protocol[H, Labels_in, Reply_out]):
    """The server's half during one visit, on whichever kind of numbers."""

    def step(self, k: int, h: H, labels: Labels_in, norm2: float, /) -> Reply_out: ...
    def finish(self, norm2: float, /) -> None: ...
    def predict(self, h: H, /) -> H: ...


class Overheard(Generic[H, Labels, Reply]):
    """A top that counts what passes."""

    def __init__(self, top: Seam[H, Labels, Reply]) -> None:
        self.top, self.up, self.down = top, 0, 0

    def step(self, k: int, h: H, labels: Labels, norm2: float, /) -> Reply:
        """Smashed data and labels up, the gradient at the cut down."""
        self.up += message(h) + LABEL * len(labels) + NORM
        reply = self.top.step(k, h, labels, norm2)
        self.down += message(reply.gradient) + NORM * len(reply.norms) + LOSS
        return reply

    def finish(self, norm2: float, /) -> None:
        """One number more."""
        self.up += HEADER + NORM
        self.top.finish(norm2)

    def predict(self, h: H, /) -> H:
        """Passed on uncounted: a visit's cost is that of training, however often somebody looks."""
        return self.top.predict(h)


def message(buffer: Buffer) -> int:
    """The bytes of a tensor on its way."""
    return HEADER + buffer.nbytes


def shift_message(shift: Buffer | None) -> int:
    """The bytes of SCAFFOLD's c - c_m on its way to a client: with the whole model whole, with its half cut like it.

    Nothing more comes back: the server has x^r and what the visit made of it, and finds the new c_m from them.
    """
    return 0 if shift is None else message(shift)
