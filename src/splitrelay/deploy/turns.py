"""The server's part of one visit: what it sends down, what it answers to each step, what it makes of the deposit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.clients.reference import Descent, TopHalf, finite, halved, mean_loss
from splitrelay.clients.traffic import Overheard, message, shift_message
from splitrelay.deploy.tensors import from_wire, to_wire
from splitrelay.deploy.terms import BUILDING, Shape
from splitrelay.errors import WorkError
from splitrelay.models import Stretch
from splitrelay.objectives.losses import loss_named
from splitrelay.wire import halves, messages
from splitrelay.wire.control import BadMessage
from splitrelay.wire.messages import Deposit, Lease


class Turn(Protocol):
    """One visit at the server."""

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """The words that grant it, and the half that goes with them."""
        ...

    def step(self, step: messages.Step) -> messages.Reply:
        """The server's half of a step; asked again, the same answer."""
        ...

    def finish(self, finish: messages.Finish) -> None:
        """The last step is closed."""
        ...

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Both halves, as the visit left them."""
        ...


Turns = Callable[[Visit[Any]], Turn]


class CutTurn:
    """The model is cut, and the client's half travels through the server."""

    def __init__(self, shape: Shape, visit: Visit[torch.Tensor], stretch: Stretch) -> None:
        self.shape, self.visit = shape, visit
        self.below, self.above = halved(visit, shape.boundary)
        self.stretch = stretch
        self.top = TopHalf(Descent(stretch, self.above, shape.trial.seed), loss_named(shape.trial.loss))
        self.line = Overheard(self.top)
        self.losses: list[float] = []
        self.replies: dict[int, messages.Reply] = {}  # the last one: it may have been lost on its way
        self.finished = False

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """The client's half, and its part of the shift."""
        blob = packed(self.below)
        return granted(self.below, fence, visit, blob), blob

    def step(self, step: messages.Step) -> messages.Reply:
        """Forward and backward on the server's half."""
        if step.k in self.replies:
            return self.replies[step.k]
        if step.k >= self.visit.K or self.finished:
            raise BadMessage("too many steps", value=step.k + 1, limit=f"K = {self.visit.K}")
        reply = self.line.step(step.k, from_wire(step.h), from_wire(step.labels).long(), step.norm2)
        self.losses.append(float(reply.loss))
        if not math.isfinite(self.losses[-1]):
            mean_loss(self.losses, self.visit)  # raises, with the round, the client and the step
        norms = tuple(float(square) for square in reply.norms)
        answer = messages.Reply(step.fence, step.k, to_wire(reply.gradient), norms, self.losses[-1])
        self.replies = {step.k: answer}
        return answer

    def finish(self, finish: messages.Finish) -> None:
        """Apply the step that waits; said again over a new link it changes nothing."""
        if len(self.losses) != self.visit.K or finish.k != self.visit.K:
            raise BadMessage("a visit ended too early", value=len(self.losses), limit=f"K = {self.visit.K}")
        if not self.finished:
            self.line.finish(finish.norm2)
        self.finished = True

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """The joined model."""
        if not self.finished:
            raise BadMessage("a half was deposited before the visit was finished")
        bottom = from_wire(halves.unpacked(half, {"x": self.shape.boundary}, self.shape.trial.dtype)["x"])
        return Done(finite(torch.cat([bottom, self.stretch.x]), self.visit), self.cost())

    def cost(self) -> Cost:
        """What the simulation counts, by the same rule."""
        handover = message(self.below.x)
        down = self.line.down + handover + shift_message(self.below.step.shift)
        return Cost(self.line.up + handover, down, mean_loss(self.losses, self.visit))


class WholeTurn:
    """The whole model is at the client: it goes down, and comes back trained."""

    def __init__(self, shape: Shape, visit: Visit[torch.Tensor]) -> None:
        self.shape, self.visit = shape, visit

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """x, and the shift."""
        blob = packed(self.visit)
        return granted(self.visit, fence, visit, blob), blob

    def step(self, step: messages.Step) -> messages.Reply:
        """There is nothing to answer."""
        raise BadMessage("the server has no half of this model")

    def finish(self, finish: messages.Finish) -> None:
        """Nor to finish."""
        raise BadMessage("the server has no half of this model")

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """x as the client left it."""
        if len(deposit.losses) != 1:
            raise BadMessage("a visit has one mean loss", value=len(deposit.losses))
        x = from_wire(halves.unpacked(half, {"x": self.shape.size}, self.shape.trial.dtype)["x"])
        carried = message(self.visit.x)
        cost = Cost(carried, carried + shift_message(self.visit.step.shift), deposit.losses[0])
        return Done(finite(x, self.visit), cost)


class Tops:
    """Turns of a spec; buffers of finished ones are used again."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.free: list[Stretch] = []

    def __call__(self, visit: Visit[torch.Tensor]) -> Turn:
        if self.shape.whole:
            return WholeTurn(self.shape, visit)
        return CutTurn(self.shape, visit, self.stretch())

    def stretch(self) -> Stretch:
        """Layers of the server's half, with memory of their own."""
        if self.free:
            return self.free.pop()
        plan, trial = self.shape.blueprint, self.shape.trial
        with BUILDING:
            return Stretch(plan, self.shape.cut, len(plan.layers()), getattr(torch, trial.dtype))

    def back(self, turn: Turn) -> None:
        """The turn is over, whichever way."""
        stretch = getattr(turn, "stretch", None)
        if stretch is not None:
            self.free.append(stretch)


def packed(visit: Visit[torch.Tensor]) -> bytes:
    """x, and where there is one the shift, as they travel."""
    vectors = {"x": visit.x.numpy()}
    if visit.step.shift is not None:
        vectors["shift"] = visit.step.shift.numpy()
    return halves.packed(**vectors)


def granted(visit: Visit[Any], fence: int, number: int, blob: bytes) -> Lease:
    """The visit in words."""
    step: Step[Any] = visit.step
    if not isinstance(step.eta, int | float):
        raise WorkError("eta must be a number to travel", value=type(step.eta).__name__)
    return Lease(
        fence, number, visit.r, visit.i, visit.m, visit.K,
        eta=float(step.eta), weight_decay=step.weight_decay, clip=step.clip or 0.0, momentum=step.momentum,
        prox=step.prox, per_half=step.per_half, bytes=len(blob), sha256=halves.sha256(blob) if blob else b"",
    )  # fmt: skip


def visit_of(lease: Lease, x: torch.Tensor, shift: torch.Tensor | None) -> Visit[torch.Tensor]:
    """The visit as the client makes it."""
    step: Step[torch.Tensor] = Step(
        lease.eta, lease.weight_decay, lease.clip or None, lease.momentum, lease.prox, shift, lease.per_half
    )
    return Visit(lease.r, lease.i, lease.m, x, step, lease.K)


def vectors_of(blob: bytes, size: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x and shift, from what came with a lease."""
    has_shift = b'"shift"' in blob[:1000]
    sizes = {"x": size, "shift": size} if has_shift else {"x": size}
    found: dict[str, np.ndarray[Any, Any]] = halves.unpacked(blob, sizes, dtype)
    return from_wire(found["x"]), from_wire(found["shift"]) if has_shift else None
