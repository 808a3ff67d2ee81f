"""The server's part of one visit: what it sends down, what it answers to each step, what it makes of the deposit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.deploy.backend import ServerEngine, Shape, Vector, engine_backend
from splitrelay.deploy.deposit_bound import check_move, move_limit
from splitrelay.deploy.reported_numbers import check_loss, is_loss
from splitrelay.engine.base import (
    HEADER,
    LABEL,
    LOSS,
    LOWER_ETA,
    NORM,
    check_finite,
    compute_mean_loss,
    count_message,
    count_shift,
    get_whole_cost,
    split_visit,
)
from splitrelay.engine.torch_engine import is_finite
from splitrelay.errors import Diverged, WorkError
from splitrelay.network import messages, tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.codec import finite as numbers
from splitrelay.network.messages import Deposit, Lease
from splitrelay.runs.spec import Spec


class ServerVisit(Protocol):
    """One visit at the server."""

    @property
    def applied(self) -> int:
        """Steps that were made on the server's half, each counted when it was made."""
        ...

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """The words that grant it, and the half that goes with them."""
        ...

    def step(self, step: messages.Step) -> messages.Reply:
        """The server's half of a step; asked again, the same answer."""
        ...

    def settle(self) -> None:
        """What can be done before the next step comes, now that its answer is on its way."""
        ...

    def finish(self, finish: messages.Finish) -> None:
        """The last step is closed."""
        ...

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Both halves, as the visit left them."""
        ...


class CutVisit:
    """The model is cut, and the client's half travels through the server."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[torch.Tensor], engine: ServerEngine) -> None:
        self.server_visits, self.visit, self.engine = server_visits, visit, engine
        self.below, above = split_visit(visit, server_visits.shape.boundary)
        self.above = to_arrays(above)
        self.top = engine.begin(self.above)
        self.up = self.down = 0
        self.losses: list[float] = []
        self.replies: dict[int, messages.Reply] = {}  # the last one: it may have been lost on its way
        self.finished = False

    @property
    def applied(self) -> int:
        """One loss for each."""
        return len(self.losses)

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """The client's half, and its part of the shift."""
        blob = pack_visit(self.below)
        return build_lease(self.below, fence, visit, blob), blob

    def step(self, step: messages.Step) -> messages.Reply:
        """Forward and backward on the server's half."""
        if step.k in self.replies:
            return self.replies[step.k]
        if step.k >= self.visit.K or self.finished:
            raise BadMessage("too many steps", value=step.k + 1, limit=f"K = {self.visit.K}")
        reply = self.top.step(step.k, step.h, step.labels, step.norm2)
        gradient, norms, loss = reply.gradient, tuple(reply.norms), float(reply.loss)
        self.losses.append(loss if is_loss(loss) else math.nan)  # sums of the largest float64 would overflow
        if not is_loss(loss):
            compute_mean_loss(self.losses, self.visit)  # raises, with the round, the client and the step
        if not numbers(gradient):
            what = f"the gradient at the cut of client {self.visit.m} overflowed"
            where = f"in round {self.visit.r}, step {step.k}, at eta={self.visit.step.eta}"
            raise Diverged(f"{what} {where}", hint=LOWER_ETA)
        self.up += HEADER + step.h.nbytes + LABEL * len(step.labels) + NORM
        self.down += HEADER + gradient.nbytes + NORM * len(norms) + LOSS
        answer = messages.Reply(step.fence, step.k, gradient, norms, loss)
        self.replies = {step.k: answer}
        return answer

    def settle(self) -> None:
        """Apply the step that waits, where nothing that is still to come can change it."""
        self.top.apply_early()

    def finish(self, finish: messages.Finish) -> None:
        """Apply the step that waits; said again over a new link it changes nothing."""
        if len(self.losses) != self.visit.K or finish.k != self.visit.K:
            raise BadMessage("a visit ended too early", value=len(self.losses), limit=f"K = {self.visit.K}")
        if not self.finished:
            self.top.finish(finish.norm2)
            self.up += HEADER + NORM
            whose = f"the server's half after the steps of client {self.visit.m}"
            check_move(self.above.x, self.engine.get_x(), self.server_visits.limit(self.above), whose=whose)
        self.finished = True

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """The joined model."""
        self.check_finished()
        bottom = tensor_transfer.unpacked(
            half, {"x": self.server_visits.shape.boundary}, self.server_visits.spec.model.dtype
        )["x"]
        below = to_arrays(self.below)
        check_move(below.x, bottom, self.server_visits.limit(below), whose=f"the deposit of client {self.visit.m}")
        joined = torch.cat([to_tensor(bottom), to_tensor(self.engine.get_x())])
        check_finite(is_finite(joined), self.visit)
        return Done(joined, self.cost())

    def check_finished(self) -> None:
        """Nothing is deposited before all K steps are made."""
        if not self.finished:
            raise BadMessage("a half was deposited before the visit was finished")

    def cost(self) -> Cost:
        """What the simulation counts, by the same rule."""
        handover = self.handover()
        down = self.down + handover + count_shift(self.get_shift())
        return Cost(self.up + handover, down, compute_mean_loss(self.losses, self.visit))

    def handover(self) -> int:
        """The bytes of the client's half."""
        return count_message(self.below.x)

    def get_shift(self) -> torch.Tensor | None:
        """The client's part of SCAFFOLD's shift."""
        return self.visit.step.shift if self.visit.step.shift is None else self.below.step.shift


class WholeVisit:
    """The whole model is at the client: it goes down, and comes back trained."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[torch.Tensor]) -> None:
        self.server_visits, self.visit = server_visits, visit

    @property
    def applied(self) -> int:
        """All steps are made at the client."""
        return 0

    def lease(self, fence: int, visit: int) -> tuple[Lease, bytes]:
        """x, and the shift."""
        blob = pack_visit(self.visit)
        return build_lease(self.visit, fence, visit, blob), blob

    def step(self, step: messages.Step) -> messages.Reply:
        """There is nothing to answer."""
        raise BadMessage("the server has no half of this model")

    def settle(self) -> None:
        """Nor to apply."""

    def finish(self, finish: messages.Finish) -> None:
        """Nor to finish."""
        raise BadMessage("the server has no half of this model")

    def done(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """x as the client left it."""
        if len(deposit.losses) != 1:
            raise BadMessage("a visit has one mean loss", value=len(deposit.losses))
        check_loss(deposit.losses[0])
        after = tensor_transfer.unpacked(
            half, {"x": self.server_visits.shape.size}, self.server_visits.spec.model.dtype
        )["x"]
        before = to_arrays(self.visit)
        check_move(before.x, after, self.server_visits.limit(before), whose=f"the deposit of client {self.visit.m}")
        x = to_tensor(after)
        check_finite(is_finite(x), self.visit)
        return Done(x, get_whole_cost(self.visit, deposit.losses[0]))


class ServerVisits:
    """Turns of a spec; engines of finished ones are used again."""

    def __init__(self, spec: Spec, shape: Shape, images: tuple[int, int, int], classes: int, batch: int) -> None:
        self.spec, self.shape, self.images, self.classes, self.batch = spec, shape, images, classes, batch
        self.free: list[ServerEngine] = []

    @property
    def whole(self) -> bool:
        """Whether clients hold the whole model."""
        return self.spec.placement == "whole"

    @cached_property
    def has_buffers(self) -> bool:
        """Whether a part of x is never clipped."""
        return bool(engine_backend("reference").has_buffers(self.spec, self.images, self.classes))

    def limit(self, visit: Visit[Vector]) -> float:
        """Derive how far this visit may move the weights that it begins from."""
        clipped = visit.step.clip is not None
        return move_limit(visit.step, visit.K, visit.x, has_buffers=clipped and self.has_buffers)

    def __call__(self, visit: Visit[Any]) -> ServerVisit:
        return WholeVisit(self, visit) if self.whole else CutVisit(self, visit, self.engine())

    def engine(self) -> ServerEngine:
        """Layers of the server's half, with memory of their own."""
        if self.free:
            return self.free.pop()
        build: Callable[..., ServerEngine] = engine_backend(self.spec.engine).Server
        return build(self.spec, self.images, self.classes, self.shape, self.batch)

    def release(self, server_visit: ServerVisit) -> None:
        """The server_visit is over, whichever way."""
        engine = getattr(server_visit, "engine", None)
        if engine is not None:
            self.free.append(engine)


def to_arrays(visit: Visit[torch.Tensor]) -> Visit[Vector]:
    """The same visit on arrays that share torch's memory."""
    shift = visit.step.shift
    step = visit.step
    moved: Step[Vector] = Step(
        step.eta, step.weight_decay, step.clip, step.momentum, step.prox,
        None if shift is None else shift.numpy(), step.per_half,
    )  # fmt: skip
    return Visit(visit.r, visit.i, visit.m, visit.x.numpy(), moved, visit.K)


def to_tensor(vector: Vector) -> torch.Tensor:
    """A copy of its own: what comes from the wire is read-only."""
    return torch.from_numpy(vector.copy())


def pack_visit(visit: Visit[torch.Tensor]) -> bytes:
    """x, and where there is one the shift, as they travel."""
    vectors = {"x": visit.x.numpy()}
    if visit.step.shift is not None:
        vectors["shift"] = visit.step.shift.numpy()
    return tensor_transfer.packed(**vectors)


def build_lease(visit: Visit[Any], fence: int, number: int, blob: bytes) -> Lease:
    """The visit in words."""
    step: Step[Any] = visit.step
    if not isinstance(step.eta, int | float):
        raise WorkError("eta must be a number to travel", value=type(step.eta).__name__)
    return Lease(
        fence, number, visit.r, visit.i, visit.m, visit.K,
        eta=float(step.eta), weight_decay=step.weight_decay, clip=step.clip or 0.0, momentum=step.momentum,
        prox=step.prox, per_half=step.per_half, bytes=len(blob), sha256=tensor_transfer.sha256(blob) if blob else b"",
    )  # fmt: skip
