"""One visit at the server: its lease, the server half, and the client half on its way to the client and back.

A `VisitLease` says who holds a visit and how far it is. A `ServerVisit` computes the server's part: `CutVisit` if the
model is cut, `WholeVisit` if the client trains all of it. A `TransferredHalf` says how the client half travels: the
server can read a `ReadableHalf`; sealed_state.SealedHalf is encrypted. `ServerVisits` makes the visits of a spec.

All of this is used by the training thread only. A repeated message gets the same reply and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from splitrelay.algorithms.base import Done, Step, Visit
from splitrelay.deploy.backend import Inputs, Labels, ServerEngine, Shape, Vector, get_backend
from splitrelay.deploy.deposit_bound import LARGEST_LOSS, check_loss, check_move, compute_move_limit
from splitrelay.engine.base import (
    LOWER_ETA,
    ByteCountingHalf,
    LocalServerHalf,
    check_finite,
    compute_mean_loss,
    get_whole_cost,
    split_visit,
)
from splitrelay.engine.torch_engine import is_finite
from splitrelay.errors import Diverged, WorkError
from splitrelay.network import limits, messages, tensor_transfer
from splitrelay.network.codec import BadMessage, is_finite_array
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Deposit, Finish, HandoverReport, Lease, Message, Ready
from splitrelay.runs.spec import Spec


@dataclass(frozen=True)
class Policy:
    """How long the server waits, and what it does when a client stays away.

    `away` is `wait` (wait for the client), `retry` (stop the run after some leases) or `skip` (skip its visit).
    """

    away: str = "wait"
    lease: float = Timeouts.lease  # seconds that a client may be away before its visit is rolled back
    step: float = Timeouts.step  # seconds that a client may take for one step
    retries: int = 3  # leases or failures of one visit after which the run stops, or the visit is skipped
    visit: float | None = None  # seconds that a visit may take; None: see `deadline`
    strikes: int = 3  # failed visits after which a client is in quarantine; 0: never
    forgive: int = 10  # committed visits in a row that forgive one strike
    probation: tuple[float, float] = (60.0, 3600.0)  # seconds of a client's first quarantine, and of the longest
    stalled: float | None = None  # seconds after which a wait is reported; None: as long as a lease

    def deadline(self, K: int) -> float:
        """Return the seconds that a visit of K steps may take. The default allows K steps and two transfers."""
        return self.step * (K + 2) if self.visit is None else self.visit

    @property
    def stalled_after(self) -> float:
        """The seconds after which a wait is reported."""
        return self.lease if self.stalled is None else self.stalled


@dataclass
class VisitLease:
    """A visit that the algorithm asked for. At first nobody holds it; then it is leased to its client.

    Times are seconds of the monotonic clock.
    """

    index: int  # position of the outcome
    visit: Visit[Any]
    since: float  # when the client was last missed
    server_visit: ServerVisit | None = None  # None: not leased
    fence: int = 0
    connection: int | None = None  # connection of the client; None: it is away
    granted_at: float = 0.0  # first lease since the visit last failed, expired or was postponed
    absent_since: float = 0.0  # when the visit lost its connection, or was asked for without one
    progress_ever: float = 0.0  # when the visit got further than ever before, or was asked for
    has_strike: bool = False  # the visit was counted as a strike of its client
    on: float = 0.0  # start of the connection
    progress_at: float = 0.0  # last progress on a connection
    stage: int = 0  # see get_stage
    transferred: tuple[int, int] = (0, 0)  # bytes of the half on this connection, up and down
    best: int = 0  # highest stage of all leases
    connection_count: int = 0  # connections since then
    is_half_requested: bool = False  # the client has asked for a half that did not reach it directly
    handover_connection: int | None = None  # connection on which the client reported its handover
    tries: int = 0  # leases that ran out
    failures: list[str] = field(default_factory=list)
    unable: float | None = None  # since when the client reports that it cannot make the visit yet
    why: str = ""  # the reason that it gives
    after: float = 0.0  # earliest time of the next lease

    def __post_init__(self) -> None:
        self.absent_since = self.progress_ever = self.since

    def start(self, server_visit: ServerVisit, fence: int, connection: int, now: float) -> None:
        """Lease the visit to the client on this connection."""
        self.server_visit, self.fence, self.connection, self.progress_at, self.on = (
            server_visit,
            fence,
            connection,
            now,
            now,
        )
        self.granted_at = self.granted_at or now  # a client that starts again does not get more time
        self.stage, self.transferred, self.is_half_requested, self.handover_connection = 0, (0, 0), False, None

    def record_message(self, message: Message, now: float) -> None:
        """Record a message. It is progress if the visit was not as far before; a repeated message is not."""
        stage = get_stage(message, self.visit.K)
        if stage > self.stage:
            self.stage, self.progress_at = stage, now
        if stage > self.best:
            self.best, self.connection_count, self.unable, self.why, self.progress_ever = stage, 0, None, "", now

    def record_transfer(self, transferred: tuple[int, int], now: float, piece: int = limits.PIECE) -> None:
        """Record the bytes of a half in transfer. More bytes are progress."""
        if has_grown(self.transferred, transferred, piece):
            self.transferred, self.progress_at = transferred, now

    def resume(self, connection: int, now: float) -> None:
        """Continue on another connection. The time without one does not count."""
        self.progress_at += max(now - self.since, 0.0)
        self.connection, self.on, self.transferred = connection, now, (0, 0)


def has_grown(before: tuple[int, int], now: tuple[int, int], piece: int = limits.PIECE) -> bool:
    """Return whether a half has grown by a piece, up or down. Single bytes do not count."""
    return any(after - then >= piece for then, after in zip(before, now, strict=True))


def get_stage(message: Message, K: int) -> int:
    """Return how far a visit of K steps is with this message; 0 for a message that is allowed at any time."""
    if isinstance(message, messages.Step):
        return message.k + 2
    stages: dict[type[Message], int] = {Ready: 1, Finish: K + 2, HandoverReport: K + 3, Deposit: K + 4}
    return stages.get(type(message), 0)


class ServerVisit(Protocol):
    """The server's part of one visit."""

    @property
    def applied(self) -> int:
        """The number of steps of the server half."""
        ...

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and the half that follows it."""
        ...

    def step(self, step: messages.Step) -> messages.Reply:
        """Take a step of the server half. A repeated step gets the same reply."""
        ...

    def apply_early(self) -> None:
        """Update the server half, now that the reply is on its way, if nothing later can change the update."""
        ...

    def finish(self, finish: messages.Finish) -> None:
        """Apply the update of the last step."""
        ...

    def read_deposit(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Return x after the visit, and its cost.

        Raises:
            BadMessage: The deposit is wrong, or came before the end of the visit.
            Diverged: The weights overflowed.
        """
        ...


class TransferredHalf(Protocol):
    """The client half of one visit on its way between server and client."""

    client_part: Visit[Any]  # x has at least the size of the client half
    server_part: Visit[torch.Tensor]

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and the half that follows it."""
        ...

    def read_deposit(self, half: bytes, fence: int, top: torch.Tensor) -> Any:
        """Return x: the half from the client, and the server half `top`. Raise BadMessage if the half is wrong."""
        ...


class ReadableHalf:
    """A client half that the server can read: it sends and receives weights."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[torch.Tensor]) -> None:
        self.server_visits = server_visits
        self.client_part, self.server_part = split_visit(visit, server_visits.shape.boundary)

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and the weights with the client's part of SCAFFOLD's shift."""
        blob = pack_visit(self.client_part)
        return build_lease(self.client_part, fence, number, blob), blob

    def read_deposit(self, half: bytes, fence: int, top: torch.Tensor) -> torch.Tensor:
        """Return both halves joined. Raise Diverged or DepositOutOfBounds if the client half moved too far."""
        visit, dtype = self.client_part, self.server_visits.spec.model.dtype
        bottom = tensor_transfer.unpack_vectors(half, {"x": self.server_visits.shape.boundary}, dtype)["x"]
        before = to_arrays(visit)
        check_move(before.x, bottom, self.server_visits.limit(before), whose=f"the deposit of client {visit.m}")
        joined = torch.cat([to_tensor(bottom), top])
        check_finite(is_finite(joined), visit)
        return joined


class CutVisit:
    """The server's part of a visit if the model is cut."""

    def __init__(
        self, server_visits: ServerVisits, visit: Visit[Any], engine: ServerEngine, half: TransferredHalf
    ) -> None:
        self.server_visits, self.visit, self.engine, self.half = server_visits, visit, engine, half
        self.start = to_arrays(half.server_part)
        self.server_half: LocalServerHalf[Vector, Labels] = engine.begin(self.start)
        self.counter = ByteCountingHalf(self.server_half)
        self.losses: list[float] = []
        self.is_finished = False

    @property
    def applied(self) -> int:
        """The number of steps: each has one loss."""
        return len(self.losses)

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and the client half that follows it."""
        return self.half.build_lease(fence, number)

    def step(self, step: messages.Step) -> messages.Reply:
        """Compute forward and backward pass of the server half."""
        k = step.k
        if k >= self.visit.K or (self.is_finished and k < self.visit.K - 1):
            raise BadMessage("too many steps", value=k + 1, limit=f"K = {self.visit.K}")
        half = self.server_half if k < self.applied else self.counter  # bytes of a repeated step do not count
        reply = half.step(k, step.h, step.labels, step.norm2)
        loss = float(reply.loss)
        if k == self.applied:
            self._check_numbers(k, loss, reply.gradient)
        return messages.Reply(step.fence, k, reply.gradient, tuple(reply.norms), loss)

    def _check_numbers(self, k: int, loss: float, gradient: Vector) -> None:
        """Record the loss of step k. Raise Diverged if it or the gradient is not finite."""
        is_valid = abs(loss) <= LARGEST_LOSS
        self.losses.append(loss if is_valid else math.nan)  # sums of the largest float64 would overflow
        if not is_valid:
            compute_mean_loss(self.losses, self.visit)  # raises, with the round, the client and the step
        if not is_finite_array(gradient):
            what = f"the gradient at the cut of client {self.visit.m} overflowed"
            where = f"in round {self.visit.r}, step {k}, at eta={self.visit.step.eta}"
            raise Diverged(f"{what} {where}", hint=LOWER_ETA)

    def apply_early(self) -> None:
        """Apply the update of the last step, if the client's part of the norm cannot change it."""
        self.server_half.apply_early()

    def finish(self, finish: messages.Finish) -> None:
        """Apply the update of the last step. A repeated message changes nothing."""
        if self.applied != self.visit.K or finish.k != self.visit.K:
            raise BadMessage("a visit ended too early", value=self.applied, limit=f"K = {self.visit.K}")
        if not self.is_finished:
            self.counter.finish(finish.norm2)
            whose = f"the server's half after the steps of client {self.visit.m}"
            check_move(self.start.x, self.engine.get_x(), self.server_visits.limit(self.start), whose=whose)
        self.is_finished = True

    def read_deposit(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Return both halves after the visit, and its cost."""
        x = self.half.read_deposit(half, fence, self.get_top())
        return self.build_outcome(x)

    def get_top(self) -> torch.Tensor:
        """Return the server half after the last step. Raise Diverged if that step overflowed."""
        if not self.is_finished:
            raise BadMessage("a half was deposited before the visit was finished")
        x = to_tensor(self.engine.get_x())
        check_finite(is_finite(x), self.visit)
        return x

    def build_outcome(self, x: Any) -> Done[Any]:
        """Return x with the cost that a simulation counts."""
        return Done(x, self.counter.get_cost(self.half.client_part, compute_mean_loss(self.losses, self.visit)))


class WholeVisit:
    """The server's part of a visit if the client trains the whole model."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[torch.Tensor]) -> None:
        self.server_visits, self.visit = server_visits, visit

    @property
    def applied(self) -> int:
        """No step: the client takes all of them."""
        return 0

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, and x with SCAFFOLD's shift."""
        blob = pack_visit(self.visit)
        return build_lease(self.visit, fence, number, blob), blob

    def step(self, step: messages.Step) -> messages.Reply:
        """Raise BadMessage."""
        raise BadMessage("the server has no half of this model")

    def apply_early(self) -> None:
        """Do nothing."""

    def finish(self, finish: messages.Finish) -> None:
        """Raise BadMessage."""
        raise BadMessage("the server has no half of this model")

    def read_deposit(self, deposit: Deposit, half: bytes, fence: int) -> Done[Any]:
        """Return x from the client, and the cost of the visit."""
        if len(deposit.losses) != 1:
            raise BadMessage("a visit has one mean loss", value=len(deposit.losses))
        check_loss(deposit.losses[0])
        size, dtype = self.server_visits.shape.size, self.server_visits.spec.model.dtype
        after = tensor_transfer.unpack_vectors(half, {"x": size}, dtype)["x"]
        before = to_arrays(self.visit)
        whose = f"the deposit of client {self.visit.m}"
        check_move(before.x, after, self.server_visits.limit(before), whose=whose)
        x = to_tensor(after)
        check_finite(is_finite(x), self.visit)
        return Done(x, get_whole_cost(self.visit, deposit.losses[0]))


class ServerVisits:
    """Makes the server's part of each visit of a spec. Engines of visits that ended are used again."""

    def __init__(
        self,
        spec: Spec,
        shape: Shape,
        images: Inputs,
        classes: int,
        batch: int,
        transfer: Callable[[ServerVisits, Visit[Any]], TransferredHalf] = ReadableHalf,
        device: str = "cpu",
    ) -> None:
        """Remember the sizes.

        Args:
            spec: The settings.
            shape: The sizes of messages.
            images: The shape of a sample.
            classes: The number of outputs of the model.
            batch: The samples of the largest step.
            transfer: How the client half travels.
            device: The torch device of the server half.
        """
        self.spec, self.shape, self.images, self.classes, self.batch = spec, shape, images, classes, batch
        self.transfer, self.device = transfer, device
        self.free: list[ServerEngine] = []

    @property
    def whole(self) -> bool:
        """Whether clients train the whole model."""
        return self.spec.placement == "whole"

    @cached_property
    def has_buffers(self) -> bool:
        """Whether a part of x is never clipped."""
        return bool(get_backend("reference").has_buffers(self.spec, self.images, self.classes))

    def limit(self, visit: Visit[Vector]) -> float:
        """Return how far this visit may move the weights that it starts from."""
        is_bounded = visit.step.clip is not None or visit.step.rule.kind != "sgd"
        return compute_move_limit(visit.step, visit.K, visit.x, has_buffers=is_bounded and self.has_buffers)

    def __call__(self, visit: Visit[Any]) -> ServerVisit:
        if self.whole:
            return WholeVisit(self, visit)
        return CutVisit(self, visit, self.engine(), self.transfer(self, visit))

    def engine(self) -> ServerEngine:
        """Return an engine of the server half with memory of its own."""
        if self.free:
            return self.free.pop()
        build: Callable[..., ServerEngine] = get_backend(self.spec.engine).Server
        return build(self.spec, self.images, self.classes, self.shape, self.batch, self.device)

    def release(self, server_visit: ServerVisit) -> None:
        """Take the engine of a visit back, however the visit ended."""
        if isinstance(server_visit, CutVisit):
            self.free.append(server_visit.engine)


def to_arrays(visit: Visit[torch.Tensor]) -> Visit[Vector]:
    """Return the same visit on arrays that share torch's memory."""
    shift = visit.step.shift
    step: Any = visit.step
    moved: Step[Vector] = step if shift is None else replace(step, shift=shift.numpy())
    return Visit(visit.r, visit.i, visit.m, visit.x.numpy(), moved, visit.K)


def to_tensor(vector: Vector) -> torch.Tensor:
    """Copy a vector. Vectors from the network are read-only."""
    return torch.from_numpy(vector.copy())


def pack_visit(visit: Visit[torch.Tensor]) -> bytes:
    """Return the bytes of x and, if there is one, of SCAFFOLD's shift."""
    vectors = {"x": visit.x.numpy()}
    if visit.step.shift is not None:
        vectors["shift"] = visit.step.shift.numpy()
    return tensor_transfer.pack_vectors(**vectors)


def build_lease(visit: Visit[Any], fence: int, number: int, blob: bytes) -> Lease:
    """Return the message that grants a visit whose half is `blob`."""
    step: Step[Any] = visit.step
    if not isinstance(step.eta, int | float):
        raise WorkError("eta must be a number to travel", value=type(step.eta).__name__)
    return Lease(
        fence, number, visit.r, visit.i, visit.m, visit.K,
        eta=float(step.eta), weight_decay=step.weight_decay, clip=step.clip or 0.0, momentum=step.momentum,
        prox=step.prox, per_half=step.per_half, bytes=len(blob),
        sha256=tensor_transfer.compute_sha256(blob) if blob else b"",
    )  # fmt: skip
