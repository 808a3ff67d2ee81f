"""The reference engine: local steps of a network with torch, whole or cut. The loop over k stands here twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import SupportsFloat

import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.engine.base import Overheard, Reply, Top, message, shift_message
from splitrelay.engine.vector_steps import refuse_per_half
from splitrelay.errors import Diverged, WorkError
from splitrelay.models import SubModel, find_cut_index
from splitrelay.models.submodel import copy_to_canonical
from splitrelay.objectives.network import Loss, Name, Network
from splitrelay.randomness import Purpose

CALMER = "Lower eta, or set clip."
CLIP_FLOOR = 1e-6  # torch's clip_grad_norm_

Samples = Iterable[tuple[torch.Tensor, torch.Tensor]]


class Descent:
    """One visit on one submodel: from the start of the visit, step by step, in place."""

    def __init__(self, submodel: SubModel, visit: Visit[torch.Tensor], seed: int) -> None:
        self.submodel, self.step, self.start = submodel, visit.step, visit.x
        self.name = Name(seed, visit.r, visit.m, visit.i)
        self.velocity: torch.Tensor | None = None
        submodel.load(visit.x)

    def forward(self, k: int, h: torch.Tensor, seen: list[torch.Tensor] | None = None) -> torch.Tensor:
        """h through the layers, with the masks that step k of this visit names."""
        for layer, dropout in self.submodel.dropouts:
            dropout.source = partial(self._uniform, k, layer)
        return self.submodel.forward(h, seen)

    @torch.no_grad()
    def norms(self) -> Sequence[float]:
        """The squared norm of each shifted gradient, from the input on; nothing where nothing is clipped."""
        if self.step.shift is not None:
            self.submodel.g.add_(self._parameters(self.step.shift))
        return self.submodel.norms() if self.step.clip is not None else ()

    @torch.no_grad()
    def move(self, norm2: float) -> None:
        """x - eta (clipped gradient + decay), where norm2 is the squared norm of the whole model's gradient."""
        g, x, step = self.submodel.g, self.submodel.x, self.step
        if step.clip is not None:
            g.mul_(min(1.0, step.clip / (math.sqrt(norm2) + CLIP_FLOOR)))
        if step.weight_decay:
            g.add_(self._parameters(x), alpha=step.weight_decay)  # after clipping, as in the authors' code
        if step.prox:
            g.add_(self._parameters(x - self.start), alpha=step.prox)
        if step.momentum:
            self.velocity = g.clone() if self.velocity is None else self.velocity.mul_(step.momentum).add_(g)
            g = self.velocity
        x.sub_(g, alpha=step.eta)  # type: ignore[arg-type]  # eta is a number here

    def _uniform(self, k: int, layer: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(self.name.rng(Purpose.DROPOUT, k, layer).random(shape, dtype="float32"))

    def _parameters(self, x: torch.Tensor) -> torch.Tensor:
        """Without the buffers: batch norm's running values are neither decayed nor shifted."""
        return x if self.submodel.mask is None else x * self.submodel.mask


def descend(descent: Descent, samples: Samples, loss: Loss) -> list[torch.Tensor]:
    """K local steps of the whole model; the loss of each."""
    losses = []
    for k, (features, labels) in enumerate(samples):
        value = loss(descent.forward(k, features), labels)
        value.backward()  # type: ignore[no-untyped-call]
        descent.move(continued(0.0, descent.norms()))
        losses.append(value.detach())
    return losses


def descend_cut(descent: Descent, samples: Samples, top: Top) -> list[SupportsFloat]:
    """K local steps of the client's half against the server's (Algorithm 4); the loss of each.

    The client's part of the joint norm rides on its next message, so clipping costs no further round trip.
    """
    losses: list[SupportsFloat] = []
    own = 0.0
    for k, (features, labels) in enumerate(samples):
        h = descent.forward(k, features)  # smashed data
        reply = top.step(k, copy_to_canonical(h), labels, own)
        if h.requires_grad:  # layers without parameters have nothing to learn
            h.backward(reply.gradient)  # type: ignore[no-untyped-call]
        own = continued(0.0, descent.norms())
        descent.move(own if descent.step.per_half else continued(own, reply.norms))
        losses.append(reply.loss)
    top.finish(own)
    return losses


class TopHalf:
    """The server's half of one visit (Algorithm 3). Its update waits for the client's part of the norm."""

    def __init__(self, descent: Descent, loss: Loss) -> None:
        self.descent, self.loss = descent, loss
        self.k, self.closed = -1, False
        self.reply: Reply | None = None  # to step k, the last one: it may have been lost on its way
        self.norms: Sequence[float] | None = None  # of a step that is not yet applied

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> Reply:
        """Apply step k - 1, then forward and backward on h: the gradient at the cut is taken at the old x_s."""
        if k == self.k and self.reply is not None:
            return self.reply
        if k != self.k + 1 or self.closed:
            again = [] if self.reply is None else [f"step {self.k} again"]
            allowed = again + ([] if self.closed else [f"step {self.k + 1}"])
            raise WorkError("a step of this visit came out of order", limit=" or ".join(allowed) or "none", value=k)
        self._apply(norm2)
        self.reply = self._answered(k, h.requires_grad_(), labels)
        self.k = k
        return self.reply

    def finish(self, norm2: float, /) -> None:
        """Apply the step that waits, if one does; no step comes after it."""
        self._apply(norm2)
        self.closed = True

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """The outputs of the half as it stands between two visits."""
        if self.norms is not None:
            raise WorkError("the server's half cannot be asked in the middle of a visit", hint="Finish it first.")
        return self.descent.submodel.predict(h)

    def _answered(self, k: int, h: torch.Tensor, labels: torch.Tensor) -> Reply:
        value = self.loss(self.descent.forward(k, h), labels)
        value.backward()  # type: ignore[no-untyped-call]
        self.norms = self.descent.norms()
        assert h.grad is not None
        return Reply(copy_to_canonical(h.grad), self.norms, value.detach())

    def _apply(self, norm2: float) -> None:
        if self.norms is not None:
            self.descent.move(continued(0.0 if self.descent.step.per_half else norm2, self.norms))
        self.norms = None


def continued(norm2: float, norms: Sequence[float]) -> float:
    """The joint squared norm, summed tensor by tensor from the input on, wherever the model is cut."""
    for square in norms:
        norm2 += square
    return norm2


def mean_loss(losses: Sequence[SupportsFloat], visit: Visit[torch.Tensor]) -> float:
    """The mean over the visit's steps. NaN or an infinite loss stops the run, with its name."""
    values = [float(loss) for loss in losses]
    for k, loss in enumerate(values):
        if not math.isfinite(loss):
            where = f"the loss of client {visit.m} became {loss} in round {visit.r}, step {k}, at eta={visit.step.eta}"
            raise Diverged(where, hint=CALMER)
    return math.fsum(values) / len(values)


def finite(x: torch.Tensor, visit: Visit[torch.Tensor]) -> torch.Tensor:
    """x, unless the visit's last step overflowed: its loss was still a number, the next client's would not be."""
    if not bool(torch.isfinite(x).all()):
        where = f"the model of client {visit.m} overflowed in round {visit.r}, last step, at eta={visit.step.eta}"
        raise Diverged(where, hint=CALMER)
    return x


class Whole:
    """Placement: the whole model at the client."""

    def __init__(self, network: Network, seed: int) -> None:
        layers = len(network.model_spec.layers())
        self.network, self.seed = network, seed
        self.submodel = SubModel(network.model_spec, 0, layers, network.dtype, network.device)

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """K local steps; the model travels to the client and back."""
        refuse_per_half(visit.step)
        descent = Descent(self.submodel, visit, self.seed)
        losses = descend(descent, self.network.samples(descent.name, visit.K), self.network.loss)
        carried = message(visit.x)
        cost = Cost(carried, carried + shift_message(visit.step.shift), mean_loss(losses, visit))
        return Done(finite(self.submodel.x.clone(), visit), cost)


class InTwo:
    """Placement: cut after `cut` layers, both halves in this process."""

    def __init__(self, network: Network, seed: int, cut: str | int | None = None) -> None:
        model_spec = network.model_spec
        self.network, self.seed, self.cut = network, seed, find_cut_index(model_spec, cut)
        self.boundary = model_spec.layout(network.dtype).ends[self.cut]
        self.bottom = SubModel(model_spec, 0, self.cut, network.dtype, network.device)
        self.top = SubModel(model_spec, self.cut, len(model_spec.layers()), network.dtype, network.device)

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """K local steps; the client's half travels to the client and on, smashed data and gradients at every step."""
        below, above = halved(visit, self.boundary)
        bottom, top = Descent(self.bottom, below, self.seed), Descent(self.top, above, self.seed)
        samples = self.network.samples(bottom.name, visit.K)
        line = Overheard(TopHalf(top, self.network.loss))
        loss = mean_loss(descend_cut(bottom, samples, line), visit)
        handover = message(below.x)
        cost = Cost(line.up + handover, line.down + handover + shift_message(below.step.shift), loss)
        return Done(finite(torch.cat([self.bottom.x, self.top.x]), visit), cost)


def halved(visit: Visit[torch.Tensor], boundary: int) -> tuple[Visit[torch.Tensor], Visit[torch.Tensor]]:
    """The visit as each side sees it: x and shift cut at the same place."""
    return _part(visit, slice(None, boundary)), _part(visit, slice(boundary, None))


def _part(visit: Visit[torch.Tensor], where: slice) -> Visit[torch.Tensor]:
    shift = visit.step.shift
    step: Step[torch.Tensor] = replace(visit.step, shift=None if shift is None else shift[where])
    return replace(visit, x=visit.x[where], step=step)
