"""A client's part of a visit: from the lease to the commit, with whichever engine the spec names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from splitrelay.deploy.shapes import Labels, Outfit, Vector, below, visit_of
from splitrelay.wire import halves, limits, messages
from splitrelay.wire.client import Session
from splitrelay.wire.messages import Chunk, Commit, Deposit, Lease, Message, Ready


class Calls:
    """The server's half during one visit, on another host."""

    def __init__(self, session: Session, fence: int) -> None:
        self.session, self.fence = session, fence
        self.closing: messages.Finish | None = None

    def step(self, k: int, h: Vector, labels: Labels, norm2: float, /) -> messages.Reply:
        """Ask, and wait; over another link, if this one is lost."""
        step = messages.Step(self.fence, k, h, labels, norm2)
        reply = self.session.exchange(lambda: iter([step]), limits.STEP)
        assert isinstance(reply, messages.Reply) and reply.k == k  # the table allows nothing else
        self.session.holding.k = k + 1
        return reply

    def finish(self, norm2: float, /) -> None:
        """It goes up together with the half."""
        self.closing = messages.Finish(self.fence, self.session.holding.k, norm2)


class Visitor:
    """One client, ready to train."""

    def __init__(self, outfit: Outfit) -> None:
        self.spec, self.engine = outfit.spec, below(outfit)

    @property
    def whole(self) -> bool:
        """Whether the client holds the whole model."""
        return self.spec.placement == "whole"

    def visit(self, session: Session, lease: Lease) -> None:
        """From the lease to the commit."""
        x, shift = self.vectors(received(session, lease.bytes, lease.sha256))
        session.holding = replace(session.holding, fence=lease.fence, k=0)
        session.say(Ready(lease.fence))
        visit = visit_of(lease, x, shift)
        if self.whole:
            after, loss = self.engine.whole(visit)
            words = list(deposited(lease.fence, halves.packed(x=after), (loss,)))
        else:
            calls = Calls(session, lease.fence)
            half = self.engine.cut(visit, calls)
            assert calls.closing is not None
            words = [calls.closing, *deposited(lease.fence, halves.packed(x=half))]
        answer = session.exchange(lambda: iter(words), limits.STEP)
        assert isinstance(answer, Commit)

    def vectors(self, blob: bytes) -> tuple[Vector, Vector | None]:
        """x and shift, from what came with a lease; copies, as what comes from the wire is read-only."""
        size = self.engine.shape.size if self.whole else self.engine.shape.boundary
        names = ("x", "shift") if b'"shift"' in blob[:1000] else ("x",)
        found = halves.unpacked(blob, dict.fromkeys(names, size), self.spec.model.dtype)
        return found["x"].copy(), found["shift"].copy() if "shift" in found else None


def received(session: Session, length: int, digest: bytes) -> bytes:
    """A half on its way down."""
    assembly, come = halves.Assembly(length), 0
    while come < length:
        chunk = session.hear(limits.STEP)
        if isinstance(chunk, Chunk):
            come = assembly.add(chunk)
    return assembly.blob(length, digest) if length else b""


def deposited(fence: int, blob: bytes, losses: tuple[float, ...] = (), epoch: int = 0) -> Iterator[Message]:
    """A half on its way up."""
    yield from halves.chunks(fence, blob)
    yield Deposit(fence, len(blob), halves.sha256(blob), losses, epoch)
