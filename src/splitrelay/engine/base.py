"""The inner seam between the two halves of a cut model, and the rules that both engines share.

    client half  --  step(k, h, labels, norm2)  ->  server half
                 <-  Reply(gradient, norms, loss)

`train_client_half` is the client's loop (Algorithm 4 of the paper). It calls a `ServerHalf`: a `LocalServerHalf` in the
same process (Algorithm 3), or `network.client_session.RemoteServerHalf`, which sends messages. The torch engine
(engine/torch_engine.py) and the fast engine (kernels/) implement `ClientHalf` and `ServerLayers`. This module does not
import torch, because clients of the fast engine run without it.

Order of steps
    - Steps arrive as k = 0, 1, 2, ... A repeated step k gets the stored reply and changes nothing, so a connection may
      fail at any moment. Any other k raises WorkError and changes nothing. `finish` may be repeated too.
    - The server half applies the update of step k when it receives step k + 1 or `finish`, because only these carry
      the client's part `norm2` of the gradient norm of step k. Clipping therefore needs no additional message.
    - `apply_early` applies the update before that, if it does not depend on the client's part of the norm.

Bits
    - The squared norm of the gradient is summed tensor by tensor, from the input of the model to its output, in
      float64: first the client's tensors, then the server's. The sum is therefore the same wherever the model is cut.
      It is the same on the host and on a device, because single additions and roots are rounded exactly.
    - Optimisers act on each coordinate alone. They use operations that are rounded in the same way wherever a
      coordinate lies in its vector.
    - The gradient at the cut is computed at the weights before the update of the same step.
    - h and its gradient cross the seam in memory of their own, images with channels last.
    - The mean loss of a visit is an exactly rounded sum divided by K.

Threads
    - An `Engine`, a `ClientHalf` and a `LocalServerHalf` are used by one thread at a time. Parallel visits need one
      engine for each thread (engine/thread_pool.py).
    - A visit carries the names of all its random numbers. It gives the same result on any engine object and any thread.
    - A deployed server runs `step`, `apply_early` and `finish` in its training thread only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, SupportsFloat, TypeVar

from splitrelay.algorithms.base import Cost, Done, Memory, Step, Visit
from splitrelay.errors import Diverged, InputError, WorkError
from splitrelay.vectors import X

HEADER = 64  # bytes before every buffer: its kind, its visit and step, its shape
LABEL, NORM, LOSS = 4, 8, 8  # bytes of one label, of one squared norm, of a loss
STEPS = 8  # bytes of the number of steps in the state of an optimiser
LOWER_ETA = "Lower eta, or set clip."


class Buffer(Protocol):
    """A tensor or an array."""

    @property
    def nbytes(self) -> int: ...


Array = TypeVar("Array", bound=Buffer)
Labels = TypeVar("Labels", bound=Sized)
Labels_contra = TypeVar("Labels_contra", bound=Sized, contravariant=True)
Labels_co = TypeVar("Labels_co", bound=Sized, covariant=True)


Norm2 = Any  # the sum of squared norms: a float, or a float64 number on a device
Norms = Any  # the squared norms of tensors in their order: a sequence of floats, or a float64 vector on a device


class Engine(Protocol[X]):
    """Run the local steps of one visit at a time, for any client."""

    def run(self, visit: Visit[X], /) -> Done[X]:
        """Take K local steps."""
        ...


@dataclass(frozen=True, eq=False)
class Reply(Generic[Array]):
    """Reply of the server half to one step.

    Attributes:
        gradient: The gradient of the loss with respect to h.
        norms: The squared norm of the gradient of each tensor of the server half; empty without clipping.
        loss: The loss of the batch. On the wire it is one float64, which holds every float32 exactly.

    In one process, norms and loss stay on the device until the visit is over: to read them at every step would make
    the host wait for the device.
    """

    gradient: Array
    norms: Norms
    loss: SupportsFloat


class ServerHalf(Protocol[Array, Labels_contra]):
    """The inner seam: the server half during one visit, in this process or on another host."""

    def step(self, k: int, h: Array, labels: Labels_contra, norm2: Norm2, /) -> Reply[Array]:
        """Compute forward and backward on smashed data.

        Args:
            k: The number of the step.
            h: The smashed data of the batch.
            labels: The labels of the batch.
            norm2: The client's part of the squared gradient norm of step k - 1; 0 for k = 0.
        """
        ...

    def finish(self, norm2: Norm2, /) -> None:
        """Apply the update of the last step and end the visit."""
        ...


class ClientHalf(Protocol[Array, Labels_co]):
    """The client's layers during one visit, as an engine implements them."""

    @property
    def step(self) -> Step[Any]:
        """The parameters of a local step."""
        ...

    def forward(self, k: int, /) -> tuple[Array, Labels_co]:
        """Return the smashed data and the labels of step k."""
        ...

    def backward(self, gradient: Array, /) -> Norms:
        """Compute the client's gradient from the one at the cut.

        Returns:
            The squared norm of the gradient of each tensor; empty without clipping.
        """
        ...

    def apply(self, norm2: Norm2, /) -> None:
        """Update the weights. norm2 is the squared norm that clipping uses."""
        ...

    def prepare_next(self) -> None:
        """Prepare the next batch. A remote server half calls this while its reply is on the way; others need not."""
        ...


class ServerLayers(Protocol[Array, Labels_contra]):
    """The server's layers during one visit, as an engine implements them. LocalServerHalf calls them in order."""

    @property
    def step(self) -> Step[Any]:
        """The parameters of a local step."""
        ...

    def prepare(self, h: Array, labels: Labels_contra, /) -> tuple[Any, Any]:
        """Check h and labels and convert them for `compute`, before any weight changes."""
        ...

    def compute(self, k: int, h: Any, labels: Any, /) -> Reply[Array]:
        """Compute forward and backward at the present weights."""
        ...

    def apply(self, norm2: Norm2, /) -> None:
        """Update the weights with the gradient of the last `compute`."""
        ...

    def predict(self, h: Array, /) -> Array:
        """Return the outputs for smashed data as in evaluation: nothing is drawn and nothing is updated."""
        ...


class LocalServerHalf(Generic[Array, Labels]):
    """The server half of one visit in this process (Algorithm 3). It keeps the order of the steps."""

    def __init__(self, layers: ServerLayers[Array, Labels]) -> None:
        self.layers = layers
        self._k, self._is_finished = -1, False
        self._reply: Reply[Array] | None = None  # to step _k: the client may ask for it again
        self._norms: Norms | None = None  # of the step whose update is still to be applied

    def step(self, k: int, h: Array, labels: Labels, norm2: Norm2, /) -> Reply[Array]:
        """Apply the update of step k - 1, then compute forward and backward on h."""
        if k == self._k and self._reply is not None:
            return self._reply
        if k != self._k + 1 or self._is_finished:
            again = [] if self._reply is None else [f"step {self._k} again"]
            allowed = again + ([] if self._is_finished else [f"step {self._k + 1}"])
            raise WorkError("a step of this visit came out of order", limit=" or ".join(allowed) or "none", value=k)
        inputs = self.layers.prepare(h, labels)
        self._apply(norm2)
        self._reply = self.layers.compute(k, *inputs)
        self._norms, self._k = self._reply.norms, k
        return self._reply

    def apply_early(self) -> None:
        """Apply the update of the last step now, unless it needs the client's part of the norm."""
        if self.layers.step.clip is None or self.layers.step.per_half:
            self._apply(0.0)

    def finish(self, norm2: Norm2, /) -> None:
        """Apply the update of the last step, if it is not applied yet. No step may follow."""
        self._apply(norm2)
        self._is_finished = True

    def predict(self, h: Array, /) -> Array:
        """Return the outputs of the half as it is between two visits."""
        if self._norms is not None:
            raise WorkError("the server half cannot predict in the middle of a visit", hint="Finish it first.")
        return self.layers.predict(h)

    def _apply(self, norm2: Norm2) -> None:
        if self._norms is not None:
            self.layers.apply(accumulate_norm2(0.0 if self.layers.step.per_half else norm2, self._norms))
        self._norms = None


def train_client_half(
    client: ClientHalf[Array, Labels], server: ServerHalf[Array, Labels], K: int
) -> list[SupportsFloat]:
    """Take K local steps of the client half against the server half (Algorithm 4).

    Returns:
        The loss of each step.
    """
    losses: list[SupportsFloat] = []
    norm2: Norm2 = 0.0
    per_half = client.step.per_half
    for k in range(K):
        h, labels = client.forward(k)
        reply = server.step(k, h, labels, norm2)
        norm2 = accumulate_norm2(0.0, client.backward(reply.gradient))
        client.apply(norm2 if per_half else accumulate_norm2(norm2, reply.norms))
        losses.append(reply.loss)
    server.finish(norm2)
    return losses


def accumulate_norm2(norm2: Norm2, norms: Norms) -> Norm2:
    """Add the squared norms of tensors one by one, in their order."""
    for square in norms:
        norm2 = norm2 + square  # not in place: the sum of the client's part is used again
    return norm2


def compute_mean_loss(losses: Sequence[SupportsFloat], visit: Visit[Any]) -> float:
    """Return the mean loss over the steps of a visit.

    Raises:
        Diverged: A loss is infinite or not a number.
    """
    values = [float(loss) for loss in losses]
    for k, loss in enumerate(values):
        if not math.isfinite(loss):
            what = f"the loss of client {visit.m} became {loss} in round {visit.r}, step {k}, at eta={visit.step.eta}"
            raise Diverged(what, hint=LOWER_ETA)
    return math.fsum(values) / len(values)


def check_finite(is_finite: bool, visit: Visit[Any]) -> None:
    """Raise Diverged if x is not finite after a visit.

    The loss of the last step may still be a number although its update overflowed.
    """
    if not is_finite:
        what = f"the model of client {visit.m} overflowed in round {visit.r}, last step, at eta={visit.step.eta}"
        raise Diverged(what, hint=LOWER_ETA)


def check_joint_clip(step: Step[Any]) -> None:
    """Raise InputError if a whole model is to be clipped per half: the result would be another one, without a sign."""
    if step.per_half:
        raise InputError("clipping per half needs a model in halves", hint="Use placement=cut, or clip the whole.")


def split_visit(visit: Visit[Any], boundary: int) -> tuple[Visit[Any], Visit[Any]]:
    """Return the visit as the client half and as the server half see it.

    The vectors x and shift and those of the optimiser's state are cut at `boundary`. Each half has its own rate.
    """
    halves, step, memory = [], visit.step, visit.memory
    eta_server = step.eta if step.eta_server is None else step.eta_server
    for part, eta in ((slice(None, boundary), step.eta), (slice(boundary, None), eta_server)):
        shift = None if step.shift is None else step.shift[part]
        cut = None if memory is None else Memory(tuple(vector[part] for vector in memory.vectors), memory.steps)
        is_same = shift is None and step.eta_server is None
        own = step if is_same else replace(step, eta=eta, eta_server=None, shift=shift)
        halves.append(Visit(visit.r, visit.i, visit.m, visit.x[part], own, visit.K, cut))
    return halves[0], halves[1]


class ByteCountingHalf(Generic[Array, Labels]):
    """Wrap a server half and count the bytes of its messages, by the same rule in a simulation and on the wire."""

    def __init__(self, half: ServerHalf[Array, Labels]) -> None:
        self.half, self.up, self.down = half, 0, 0

    def step(self, k: int, h: Array, labels: Labels, norm2: Norm2, /) -> Reply[Array]:
        """Count smashed data and labels up, the gradient at the cut down."""
        self.up += count_message(h) + LABEL * count_labels(labels) + NORM
        reply = self.half.step(k, h, labels, norm2)
        self.down += count_message(reply.gradient) + NORM * len(reply.norms) + LOSS
        return reply

    def finish(self, norm2: Norm2, /) -> None:
        """Count one more number up."""
        self.up += HEADER + NORM
        self.half.finish(norm2)

    def get_cost(self, visit: Visit[Any], loss: float) -> Cost:
        """Return the cost of a visit whose client half travelled down and up; `visit` is the client's part of it."""
        up, down = count_handover(visit)
        return Cost(self.up + up, self.down + down, loss)


def count_labels(labels: Any) -> int:
    """Return the numbers in a batch of labels: one for each sample, or more for several labels and tokens."""
    return math.prod(labels.shape)


def get_whole_cost(visit: Visit[Any], loss: float) -> Cost:
    """Return the cost of a visit whose whole model travelled down and up."""
    return Cost(*count_handover(visit), loss)


def count_handover(visit: Visit[Any]) -> tuple[int, int]:
    """Return the bytes up and down of the weights of a visit, and of all vectors that travel with them."""
    x, step = count_message(visit.x), visit.step
    if step.rule.memory != "handed":
        return x, x + count_shift(step.shift)
    after = x * step.rule.count_vectors(step.momentum) + STEPS
    before = 0 if visit.memory is None else after
    return x + after, x + count_shift(step.shift) + before


def count_message(buffer: Buffer) -> int:
    """Return the bytes of a message with one tensor."""
    return HEADER + buffer.nbytes


def count_shift(shift: Buffer | None) -> int:
    """Return the bytes of SCAFFOLD's c - c_m on its way to a client; it is cut like the model that travels with it.

    Nothing more travels back: the server computes the new c_m from x^r and the result of the visit.
    """
    return 0 if shift is None else count_message(shift)


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over a test set: the losses, and for each class the correct answers and the images."""

    loss: float
    right: list[int]
    seen: list[int]

    def compute_means(self) -> tuple[float, float, tuple[float, ...]]:
        """Return the mean loss, the accuracy, and the accuracy of each class (NaN for a class without images)."""
        n = sum(self.seen)
        per_class = tuple(r / s if s else math.nan for r, s in zip(self.right, self.seen, strict=True))
        return self.loss / n, sum(self.right) / n, per_class
