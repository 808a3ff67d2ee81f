"""The reference engine: local steps of a network with torch, for a whole or a cut model.

The rules on order, bits and threads are in engine/base.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import torch
from torch import nn

from splitrelay.algorithms.base import Done, Visit
from splitrelay.engine.base import (
    ByteCountingHalf,
    LocalServerHalf,
    Reply,
    accumulate_norm2,
    check_finite,
    check_joint_clip,
    compute_mean_loss,
    get_whole_cost,
    split_visit,
    train_client_half,
)
from splitrelay.engine.vector import CLIP_FLOOR
from splitrelay.errors import WorkError
from splitrelay.models import SubModel, find_cut_index
from splitrelay.models.submodel import copy_to_canonical
from splitrelay.objectives.network import Loss, Name, Network
from splitrelay.randomness import Purpose

Samples = Iterable[tuple[torch.Tensor, torch.Tensor]]


class LocalTraining:
    """The local training of one visit on a range of layers. It starts at the visit's x and updates in place."""

    def __init__(self, layers: SubModel, visit: Visit[torch.Tensor], seed: int) -> None:
        self.layers, self.step, self.start = layers, visit.step, visit.x
        self.name = Name(seed, visit.r, visit.m, visit.i)
        self.velocity: torch.Tensor | None = None
        layers.load(visit.x)

    def forward(self, k: int, h: torch.Tensor, outputs: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Pass h through the layers with the dropout masks of step k; append the output of each layer to `outputs`."""
        for layer, dropout in self.layers.dropouts:
            dropout.source = partial(self._draw_uniform, k, layer)
        try:
            return self.layers.forward(h, outputs)
        except ValueError as error:
            if len(h) > 1:
                raise
            raise self._explain_single_image(h, error) from error

    def _explain_single_image(self, h: torch.Tensor, error: ValueError) -> WorkError:
        """Return the error of a layer, such as batch norm, that cannot train on a batch of one image."""
        entered: list[str] = []
        for name, module in self.layers.layers.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
            module.register_forward_hook(lambda *_: entered.pop() and None)
        with suppress(ValueError):
            self.layers.run_layers(h)
        what = f"layer '{entered[-1] if entered else ''}' cannot train on a batch of one image of client {self.name.m}"
        hint = "drop_last=true leaves out short batches. Otherwise choose another batch, or a layer such as GroupNorm."
        return WorkError(what, limit="at least two images per batch", value=str(error).splitlines()[0], hint=hint)

    @torch.no_grad()
    def shift_gradient(self) -> Sequence[float]:
        """Add the shift to the gradient.

        Returns:
            The squared norm of the gradient of each tensor, from the input on; empty without clipping.
        """
        if self.step.shift is not None:
            self.layers.g.add_(self._without_buffers(self.step.shift))
        return self.layers.norms() if self.step.clip is not None else ()

    @torch.no_grad()
    def apply(self, norm2: float) -> None:
        """Compute x - eta (clipped gradient + decay). norm2 is the squared norm of the gradient of the whole model."""
        g, x, step = self.layers.g, self.layers.x, self.step
        if step.clip is not None:
            g.mul_(min(1.0, step.clip / (math.sqrt(norm2) + CLIP_FLOOR)))
        if step.weight_decay:
            g.add_(self._without_buffers(x), alpha=step.weight_decay)  # after clipping, as in the authors' code
        if step.prox:
            g.add_(self._without_buffers(x - self.start), alpha=step.prox)
        if step.momentum:
            self.velocity = g.clone() if self.velocity is None else self.velocity.mul_(step.momentum).add_(g)
            g = self.velocity
        x.sub_(g, alpha=step.eta)  # type: ignore[arg-type]  # eta is a number here

    def _draw_uniform(self, k: int, layer: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(self.name.rng(Purpose.DROPOUT, k, layer).random(shape, dtype="float32"))

    def _without_buffers(self, x: torch.Tensor) -> torch.Tensor:
        """Set the buffers in x to 0: running values of batch norm are neither decayed nor shifted."""
        return x if self.layers.mask is None else x * self.layers.mask


class TorchClientHalf:
    """The client half of one visit (engine.base.ClientHalf)."""

    def __init__(self, training: LocalTraining, samples: Samples) -> None:
        self.training, self.step = training, training.step
        self._samples: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(samples)
        self._next: list[tuple[torch.Tensor, torch.Tensor]] = []  # at most one batch
        self._h = torch.empty(0)

    def prepare_next(self) -> None:
        """Load the next batch, unless it is loaded or there is none."""
        if not self._next:
            self._next.extend(islice(self._samples, 1))

    def forward(self, k: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smashed data and the labels of the next batch."""
        self.prepare_next()
        features, labels = self._next.pop()
        self._h = self.training.forward(k, features)
        return copy_to_canonical(self._h), labels

    def backward(self, gradient: torch.Tensor, /) -> Sequence[float]:
        """Compute the client's gradient; return its squared norms."""
        if self._h.requires_grad:  # False if the layers have no parameters
            self._h.backward(gradient)  # type: ignore[no-untyped-call]
        return self.training.shift_gradient()

    def apply(self, norm2: float, /) -> None:
        """Update the weights."""
        self.training.apply(norm2)


class TorchServerLayers:
    """The server's layers during one visit (engine.base.ServerLayers)."""

    def __init__(self, training: LocalTraining, loss: Loss) -> None:
        self.training, self.loss, self.step = training, loss, training.step

    def prepare(self, h: torch.Tensor, labels: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Request the gradient of h."""
        return h.requires_grad_(), labels

    def compute(self, k: int, h: torch.Tensor, labels: torch.Tensor, /) -> Reply[torch.Tensor]:
        """Compute forward and backward."""
        loss = self.loss(self.training.forward(k, h), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        assert h.grad is not None
        return Reply(copy_to_canonical(h.grad), self.training.shift_gradient(), loss.detach())

    def apply(self, norm2: float, /) -> None:
        """Update the weights."""
        self.training.apply(norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Return the outputs as in evaluation."""
        return self.training.layers.predict(h)


class DeferredServerLayers:
    """Server layers that compute the gradient of their own weights in `apply`, after the reply was sent.

    The client waits only for the gradient at the cut. `compute` finds it together with the gradients at the outputs
    of the layers; `apply` computes the gradients of the weights from them, layer by layer. These are the same
    operations on the same numbers, so the bits are the same. With clipping nothing can be deferred, because the reply
    contains the norms of the gradients of the weights.
    """

    def __init__(self, layers: TorchServerLayers) -> None:
        self.layers, self.training, self.step = layers, layers.training, layers.step
        found = [(j, list(layer.parameters())) for j, layer in enumerate(self.training.layers.layers)]
        self._weights = [(j, parameters) for j, parameters in found if parameters]
        self._deferred: list[tuple[torch.Tensor, torch.Tensor, list[nn.Parameter]]] = []  # output, its gradient

    def prepare(self, h: torch.Tensor, labels: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Request the gradient of h."""
        return self.layers.prepare(h, labels)

    def compute(self, k: int, h: torch.Tensor, labels: torch.Tensor, /) -> Reply[torch.Tensor]:
        """Compute the gradient at the cut and defer the gradients of the weights."""
        if self.step.clip is not None:
            return self.layers.compute(k, h, labels)
        outputs: list[torch.Tensor] = []
        loss = self.layers.loss(self.training.forward(k, h, outputs), labels)
        inputs = [h, *(outputs[j] for j, _ in self._weights)]
        gradient, *rest = torch.autograd.grad(loss, inputs, retain_graph=True)
        self._deferred = [(outputs[j], g, weights) for g, (j, weights) in zip(rest, self._weights, strict=True)]
        return Reply(copy_to_canonical(gradient), (), loss.detach())

    def apply(self, norm2: float, /) -> None:
        """Compute the deferred gradients and update the weights."""
        for output, gradient, weights in self._deferred:
            torch.autograd.backward(output, gradient, inputs=weights)
        if self._deferred:
            self.training.shift_gradient()
        self._deferred = []
        self.training.apply(norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Return the outputs as in evaluation."""
        return self.layers.predict(h)


class WholeEngine:
    """Placement `whole`: the whole model is at the client."""

    def __init__(self, network: Network, seed: int) -> None:
        layers = len(network.model_spec.layers())
        self.network, self.seed = network, seed
        self.layers = SubModel(network.model_spec, 0, layers, network.dtype, network.device)

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """Take K local steps. The model travels to the client and back."""
        check_joint_clip(visit.step)
        training = LocalTraining(self.layers, visit, self.seed)
        losses = []
        for k, (features, labels) in enumerate(self.network.samples(training.name, visit.K)):
            loss = self.network.loss(training.forward(k, features), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            training.apply(accumulate_norm2(0.0, training.shift_gradient()))
            losses.append(loss.detach())
        cost = get_whole_cost(visit, compute_mean_loss(losses, visit))
        check_finite(is_finite(self.layers.x), visit)
        return Done(self.layers.x.clone(), cost)


class SplitEngine:
    """Placement `cut`: the model is cut after `cut` layers, and both halves are in this process."""

    def __init__(self, network: Network, seed: int, cut: str | int | None = None) -> None:
        model_spec = network.model_spec
        self.network, self.seed, self.cut = network, seed, find_cut_index(model_spec, cut)
        self.boundary = model_spec.layout(network.dtype).ends[self.cut]
        self.bottom = SubModel(model_spec, 0, self.cut, network.dtype, network.device)
        self.top = SubModel(model_spec, self.cut, len(model_spec.layers()), network.dtype, network.device)

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """Take K local steps. The client half travels to the client and on; every step has two messages."""
        client_visit, server_visit = split_visit(visit, self.boundary)
        training = LocalTraining(self.bottom, client_visit, self.seed)
        client = TorchClientHalf(training, self.network.samples(training.name, visit.K))
        layers = TorchServerLayers(LocalTraining(self.top, server_visit, self.seed), self.network.loss)
        server = ByteCountingHalf(LocalServerHalf(layers))
        loss = compute_mean_loss(train_client_half(client, server, visit.K), visit)
        x = torch.cat([self.bottom.x, self.top.x])
        check_finite(is_finite(x), visit)
        return Done(x, server.get_cost(client_visit, loss))


def is_finite(x: torch.Tensor) -> bool:
    """Return whether all numbers of x are finite."""
    return bool(torch.isfinite(x).all())
