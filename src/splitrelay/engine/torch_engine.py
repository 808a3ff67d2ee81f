"""The reference engine: local steps of a network with torch, for a whole or a cut model.

`ArrayClientHalf` and `ArrayServerLayers` are the halves of a deployed run: torch inside, on any device, and arrays
outside. On the wire images have channels last. Arrays from the wire are read-only and not aligned, so they are copied
once into memory that torch has allocated: the bits of a result depend on the alignment.

The rules on order, bits and threads are in engine/base.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from splitrelay.algorithms.base import Done, Memory, Visit
from splitrelay.engine.base import (
    ByteCountingHalf,
    LocalServerHalf,
    Norm2,
    Norms,
    Reply,
    accumulate_norm2,
    check_finite,
    check_joint_clip,
    compute_mean_loss,
    get_whole_cost,
    split_visit,
    train_client_half,
)
from splitrelay.engine.optimisers import Optimiser
from splitrelay.engine.vector import CLIP_FLOOR
from splitrelay.errors import WorkError
from splitrelay.models import SubModel, find_cut_index
from splitrelay.models.layers import list_trained
from splitrelay.models.submodel import Features, copy_to_canonical, count_samples
from splitrelay.objectives.network import Loss, Name, Network
from splitrelay.randomness import Purpose

Samples = Iterable[tuple[Features, torch.Tensor]]

Array = npt.NDArray[Any]
DTYPES = {np.dtype("f4"): torch.float32, np.dtype("f8"): torch.float64, np.dtype("i4"): torch.int32}
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of axes: channels last, channels first


class LocalTraining:
    """The local training of one visit on a range of layers. It starts at the visit's x and updates in place."""

    def __init__(self, layers: SubModel, visit: Visit[torch.Tensor], seed: int, boundary: int | None = None) -> None:
        """Load x. `boundary` is the size of the client half if the layers are the whole model."""
        self.layers, self.step, self.start = layers, visit.step, visit.x
        self.name = Name(seed, visit.r, visit.m, visit.i)
        self.optimiser = Optimiser(visit.step, layers.x, visit.memory, boundary)
        layers.load(visit.x)

    def forward(self, k: int, h: Features, outputs: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Pass h through the layers with the random numbers of step k; append each layer's output to `outputs`."""
        for layer, dropout in self.layers.dropouts:
            dropout.source = partial(self._draw_uniform, k, layer)
        try:
            return self.layers.forward(h, outputs, partial(self._draw_seed, k))
        except ValueError as error:
            if count_samples(h) > 1:
                raise
            raise self._explain_single_image(h, error) from error

    def _explain_single_image(self, h: Features, error: ValueError) -> WorkError:
        """Return the error of a layer, such as batch norm, that cannot train on a batch of one image."""
        entered: list[str] = []
        for name, module in self.layers.layers.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
            module.register_forward_hook(lambda *_: entered.pop() and None)
        with suppress(ValueError):
            self.layers.run_layers(h, get_seed=lambda layer: layer)
        what = f"layer '{entered[-1] if entered else ''}' cannot train on a batch of one image of client {self.name.m}"
        hint = "drop_last=true leaves out short batches. Otherwise choose another batch, or a layer such as GroupNorm."
        return WorkError(what, limit="at least two images per batch", value=str(error).splitlines()[0], hint=hint)

    @torch.no_grad()
    def shift_gradient(self) -> Norms:
        """Add the shift to the gradient.

        Returns:
            The squared norm of the gradient of each tensor, from the input on; empty without clipping. They stay on
            the device.
        """
        if self.step.shift is not None:
            self.layers.g.add_(self._without_buffers(self.step.shift))
        return self.layers.norms() if self.step.clip is not None else ()

    @torch.no_grad()
    def apply(self, norm2: Norm2) -> None:
        """Compute x - eta (clipped gradient + decay). norm2 is the squared norm of the gradient of the whole model."""
        g, x, step = self.layers.g, self.layers.x, self.step
        if step.clip is not None:
            g.mul_(compute_clip_factor(step.clip, norm2))
        if step.rule.kind == "adamw":
            self.optimiser.decay(self._without_buffers(x))
        elif step.weight_decay:
            g.add_(self._without_buffers(x), alpha=step.weight_decay)  # after clipping, as in the authors' code
        if step.prox:
            g.add_(self._without_buffers(x - self.start), alpha=step.prox)
        self.optimiser.apply(g)

    def _draw_uniform(self, k: int, layer: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(self.name.rng(Purpose.DROPOUT, k, layer).random(shape, dtype="float32"))

    def _draw_seed(self, k: int, layer: int) -> int:
        """Return the seed of the random numbers that a layer draws inside."""
        return int(self.name.rng(Purpose.DROPOUT, k, layer).integers(2**63))

    def _without_buffers(self, x: torch.Tensor) -> torch.Tensor:
        """Set the buffers in x to 0: running values of batch norm are neither decayed nor shifted."""
        return x if self.layers.mask is None else x * self.layers.mask


def compute_clip_factor(clip: float, norm2: Norm2) -> float | torch.Tensor:
    """Return min(1, clip / norm): a float for a float, and a number on the device for one on the device."""
    if not isinstance(norm2, torch.Tensor):
        return min(1.0, clip / (math.sqrt(norm2) + CLIP_FLOOR))
    factor = clip / (norm2.sqrt() + CLIP_FLOOR)
    return torch.where(factor < 1.0, factor, 1.0)  # 1 for NaN, like min


class TorchClientHalf:
    """The client half of one visit (engine.base.ClientHalf)."""

    def __init__(self, training: LocalTraining, samples: Samples) -> None:
        self.training, self.step = training, training.step
        self._samples: Iterator[tuple[Features, torch.Tensor]] = iter(samples)
        self._next: list[tuple[Features, torch.Tensor]] = []  # at most one batch
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

    def backward(self, gradient: torch.Tensor, /) -> Norms:
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


# The gradient of the weights of these layers is an operation of its own. Other layers, such as a residual block, would
# compute their backward pass twice, and torch 2.13 crashes if nn.GroupNorm computes the gradient of its weights only.
DEFERRABLE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm,
)  # fmt: skip


class DeferredServerLayers:
    """Server layers that compute the gradient of their own weights in `apply`, after the reply was sent.

    The client waits only for the gradient at the cut. `compute` finds it together with the gradients at the outputs
    of the layers; `apply` computes the gradients of the weights from them, layer by layer. These are the same
    operations on the same numbers, so the bits are the same. With clipping nothing can be deferred, because the reply
    contains the norms of the gradients of the weights. Layers that are not DEFERRABLE compute all gradients at once.
    """

    def __init__(self, layers: TorchServerLayers) -> None:
        self.layers, self.training, self.step = layers, layers.training, layers.step
        self._later: list[tuple[int, list[nn.Parameter]]] = []
        self._now: list[nn.Parameter] = []
        for j, layer in enumerate(self.training.layers.layers):
            weights = [weight for _, weight in list_trained(layer)]
            if weights and type(layer) in DEFERRABLE:
                self._later.append((j, weights))
            else:
                self._now += weights
        self._deferred: list[tuple[torch.Tensor, torch.Tensor, list[nn.Parameter]]] = []  # output, its gradient
        self._has_shift_to_add = False

    def prepare(self, h: torch.Tensor, labels: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Request the gradient of h."""
        return self.layers.prepare(h, labels)

    def compute(self, k: int, h: torch.Tensor, labels: torch.Tensor, /) -> Reply[torch.Tensor]:
        """Compute the gradient at the cut and defer the gradients of the weights."""
        if self.step.clip is not None:
            return self.layers.compute(k, h, labels)
        outputs: list[torch.Tensor] = []
        loss = self.layers.loss(self.training.forward(k, h, outputs), labels)
        inputs = [h, *(outputs[j] for j, _ in self._later), *self._now]
        gradient, *rest = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=bool(self._now))
        self._deferred = [
            (outputs[j], g, weights) for g, (j, weights) in zip(rest[: len(self._later)], self._later, strict=True)
        ]
        for weight, g in zip(self._now, rest[len(self._later) :], strict=True):
            if g is not None:
                assert weight.grad is not None
                weight.grad.add_(g)
        self._has_shift_to_add = True
        return Reply(copy_to_canonical(gradient), (), loss.detach())

    def apply(self, norm2: float, /) -> None:
        """Compute the deferred gradients and update the weights."""
        for output, gradient, weights in self._deferred:
            torch.autograd.backward(output, gradient, inputs=weights)
        if self._has_shift_to_add:
            self.training.shift_gradient()
        self._deferred, self._has_shift_to_add = [], False
        self.training.apply(norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Return the outputs as in evaluation."""
        return self.layers.predict(h)


def to_wire(h: torch.Tensor) -> Array:
    """Return a tensor as an array of the wire. Nothing is copied if the numbers are already in its order."""
    array: Array = (h.permute(LAST) if h.dim() == 4 else h).detach().contiguous().cpu().numpy()
    return array


def from_wire(array: Array, device: torch.device) -> torch.Tensor:
    """Return an array of the wire as a tensor in memory that torch has allocated, on a device."""
    copy = torch.empty(array.shape, dtype=DTYPES[array.dtype])
    copy.numpy()[...] = array
    moved = copy.to(device)  # the same tensor on the CPU
    return moved.permute(FIRST) if array.ndim == 4 else moved


def move_visit(visit: Visit[torch.Tensor], device: torch.device) -> Visit[torch.Tensor]:
    """Return a visit with its vectors on a device. Nothing is copied if they are there."""
    step = visit.step
    if step.shift is not None:
        step = replace(step, shift=step.shift.to(device))
    return replace(visit, x=visit.x.to(device), step=step)


def read_norms(norms: Sequence[torch.Tensor]) -> list[float]:
    """Return squared norms as numbers of the wire."""
    return torch.stack(list(norms)).tolist() if len(norms) else []


class ArrayClientHalf:
    """A client half on the arrays of the wire."""

    def __init__(self, half: TorchClientHalf) -> None:
        self.half, self.step, self.prepare_next, self.apply = half, half.step, half.prepare_next, half.apply
        self.device = half.training.layers.x.device

    def forward(self, k: int, /) -> tuple[Array, Array]:
        """Return smashed data and labels."""
        h, labels = self.half.forward(k)
        return to_wire(h), labels.cpu().numpy()

    def backward(self, gradient: Array, /) -> Sequence[float]:
        """Compute the client's gradient; return its squared norms."""
        return read_norms(self.half.backward(from_wire(gradient, self.device)))


class ArrayServerLayers:
    """Server layers on the arrays of the wire (engine.base.ServerLayers)."""

    def __init__(self, layers: DeferredServerLayers) -> None:
        self.layers, self.step, self.apply = layers, layers.step, layers.apply
        self.device = layers.training.layers.x.device

    def prepare(self, h: Array, labels: Array, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the batch into tensors."""
        kind = h.dtype if labels.dtype.kind == "f" else np.int64  # real labels have the dtype of the model
        return self.layers.prepare(from_wire(h, self.device), torch.from_numpy(labels.astype(kind)).to(self.device))

    def compute(self, k: int, h: torch.Tensor, labels: torch.Tensor, /) -> Reply[Array]:
        """Compute forward and backward."""
        reply = self.layers.compute(k, h, labels)
        return Reply(to_wire(reply.gradient), read_norms(reply.norms), float(reply.loss))

    def predict(self, h: Array, /) -> Array:
        """Return the outputs as in evaluation."""
        return to_wire(self.layers.predict(from_wire(h, self.device)))


class WholeEngine:
    """Placement `whole`: the whole model is at the client."""

    def __init__(self, network: Network, seed: int, cut: str | int | None = None) -> None:
        """Build the layers. Only a rate of its own for the server half depends on the cut."""
        layers = len(network.model_spec.layers())
        self.network, self.seed, self.cut = network, seed, cut
        self.layers = SubModel(network.model_spec, 0, layers, network.dtype, network.device)

    @cached_property
    def boundary(self) -> int:
        """The size of the client half."""
        model_spec = self.network.model_spec
        return model_spec.layout(self.network.dtype).ends[find_cut_index(model_spec, self.cut)]

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """Take K local steps. The model travels to the client and back."""
        check_joint_clip(visit.step)
        boundary = None if visit.step.eta_server is None else self.boundary
        training = LocalTraining(self.layers, visit, self.seed, boundary)
        losses = []
        for k, (features, labels) in enumerate(self.network.samples(training.name, visit.K)):
            loss = self.network.loss(training.forward(k, features), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            training.apply(accumulate_norm2(0.0, training.shift_gradient()))
            losses.append(loss.detach())
        cost = get_whole_cost(visit, compute_mean_loss(read_losses(losses), visit))
        check_finite(is_finite(self.layers.x), visit)
        return Done(self.layers.x.clone(), cost, training.optimiser.get_memory())


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
        server_training = LocalTraining(self.top, server_visit, self.seed)
        server = ByteCountingHalf(LocalServerHalf(TorchServerLayers(server_training, self.network.loss)))
        loss = compute_mean_loss(read_losses(train_client_half(client, server, visit.K)), visit)
        x = torch.cat([self.bottom.x, self.top.x])
        check_finite(is_finite(x), visit)
        memory = join_memories(training.optimiser.get_memory(), server_training.optimiser.get_memory())
        return Done(x, server.get_cost(client_visit, loss), memory)


def join_memories(bottom: Memory[torch.Tensor] | None, top: Memory[torch.Tensor] | None) -> Memory[torch.Tensor] | None:
    """Return the state of an optimiser on the whole model from those on its halves."""
    if bottom is None or top is None:
        return None
    pairs = zip(bottom.vectors, top.vectors, strict=True)
    return Memory(tuple(torch.cat(pair) for pair in pairs), bottom.steps)


def read_losses(losses: Sequence[Any]) -> list[float]:
    """Copy the losses of a visit from the device. This is the first time that the host waits for its steps."""
    numbers: list[float] = torch.stack(list(losses)).tolist()
    return numbers


def is_finite(x: torch.Tensor) -> bool:
    """Return whether all numbers of x are finite."""
    return bool(torch.isfinite(x).all())
