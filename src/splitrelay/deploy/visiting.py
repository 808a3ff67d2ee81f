"""A client's part of a visit: the same loops as in a simulation, with the server's half on another host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from splitrelay.algorithms.base import Visit
from splitrelay.clients import traffic
from splitrelay.clients.reference import Descent, Whole, descend_cut, finite
from splitrelay.data.images import ImageSet
from splitrelay.deploy.tensors import from_wire, to_wire
from splitrelay.deploy.terms import Shape, augmentation_in, shape_of, spec_in
from splitrelay.deploy.turns import vectors_of, visit_of
from splitrelay.errors import WorkError
from splitrelay.models import Stretch
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.losses import loss_named
from splitrelay.objectives.network import Network
from splitrelay.wire import halves, limits, messages
from splitrelay.wire.client import Session
from splitrelay.wire.messages import Chunk, Commit, Deposit, Lease, Message, Ready, Terms


class RemoteTop:
    """The server's half during one visit, on another host: the inner seam over a link."""

    def __init__(self, session: Session, fence: int) -> None:
        self.session, self.fence = session, fence
        self.closing: messages.Finish | None = None

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> traffic.Reply:
        """Ask, and wait; over another link, if this one is lost."""
        step = messages.Step(self.fence, k, to_wire(h), labels.int().numpy(), norm2)
        reply = self.session.exchange(lambda: iter([step]), limits.STEP)
        assert isinstance(reply, messages.Reply) and reply.k == k  # the table allows nothing else
        self.session.holding.k = k + 1
        return traffic.Reply(from_wire(reply.gradient), reply.norms, reply.loss)

    def finish(self, norm2: float, /) -> None:
        """It goes up together with the half."""
        self.closing = messages.Finish(self.fence, self.session.holding.k, norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Not during a visit."""
        raise WorkError("the server's half cannot be asked in the middle of a visit")


class Visitor:
    """One client, ready to train: its images, its layers, and who it is."""

    def __init__(self, m: int, terms: Terms, images: ImageSet) -> None:
        torch.set_num_threads(1)  # bits depend on it
        self.spec = spec_in(terms)
        self.shape: Shape = shape_of(self.spec, images.shape, len(images.classes))
        trial = self.shape.trial
        dtype = getattr(torch, trial.dtype)
        held = [np.arange(0)] * m + [np.arange(len(images))]  # batches are positions in the client's own list
        self.network = Network(
            self.shape.blueprint,
            DeviceImages(images, dtype),
            held,
            trial.batches,
            augmentation_in(terms) if trial.augment else None,
            loss_named(trial.loss),
            dtype,
        )
        self.whole = Whole(self.network, trial.seed) if self.shape.whole else None
        self.bottom = Stretch(self.shape.blueprint, 0, self.shape.cut, dtype)

    @property
    def numbers(self) -> int:
        """The length of what travels: the client's half, or all of x."""
        return self.shape.size if self.shape.whole else self.shape.boundary

    def received(self, session: Session, lease: Lease) -> bytes:
        """The half that comes with a lease."""
        assembly, length = halves.Assembly(lease.bytes), 0
        while length < lease.bytes:
            chunk = session.hear(limits.STEP)
            if isinstance(chunk, Chunk):
                length = assembly.add(chunk)
        return assembly.blob(lease.bytes, lease.sha256) if lease.bytes else b""

    def visit(self, session: Session, lease: Lease) -> None:
        """From the lease to the commit."""
        x, shift = vectors_of(self.received(session, lease), self.numbers, self.shape.trial.dtype)
        session.holding = replace(session.holding, fence=lease.fence, k=0)
        session.say(Ready(lease.fence))
        visit = visit_of(lease, x, shift)
        words = self._whole(visit, lease.fence) if self.whole else self._cut(session, visit, lease.fence)
        answer = session.exchange(lambda: iter(words), limits.STEP)
        assert isinstance(answer, Commit)

    def _whole(self, visit: Visit[torch.Tensor], fence: int) -> list[Message]:
        assert self.whole is not None
        done = self.whole.run(visit)
        return list(deposited(fence, halves.packed(x=done.x.numpy()), (done.cost.loss,)))

    def _cut(self, session: Session, visit: Visit[torch.Tensor], fence: int) -> list[Message]:
        top = RemoteTop(session, fence)
        descent = Descent(self.bottom, visit, self.shape.trial.seed)
        descend_cut(descent, self.network.samples(descent.name, visit.K), top)
        assert top.closing is not None
        return [top.closing, *deposited(fence, halves.packed(x=finite(self.bottom.x, visit).numpy()))]


def deposited(fence: int, blob: bytes, losses: tuple[float, ...] = (), epoch: int = 0) -> Iterator[Message]:
    """A half on its way up."""
    yield from halves.chunks(fence, blob)
    yield Deposit(fence, len(blob), halves.sha256(blob), losses, epoch)
