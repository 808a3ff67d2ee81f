"""The reference engine at both ends of a wire: torch inside, arrays outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from splitrelay.algorithms.base import Visit
from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import Asked, Labels, Outfit, Shape, Tally, Vector, by_itself
from splitrelay.deploy.tensor_conversion import from_wire, on_wire, to_wire
from splitrelay.engine import base
from splitrelay.engine.torch_engine import Descent, TopHalf, Whole, descend_cut, finite
from splitrelay.errors import WorkError
from splitrelay.evaluation import SLICE
from splitrelay.models import ModelSpec, SubModel, find_cut_index, get_model_spec
from splitrelay.models.submodel import copy_to_canonical
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.runs.spec import Spec

Item = TypeVar("Item")
BUILDING = Lock()  # building a net draws from torch's own generator, and the check for hidden draws watches that


def model_spec_of(spec: Spec, images: tuple[int, int, int], classes: int) -> ModelSpec:
    """The model of a spec."""
    return get_model_spec(spec.model.name, images, classes, spec.model.cut)


def shape_of(spec: Spec, images: tuple[int, int, int], classes: int) -> Shape:
    """The sizes of a spec's messages."""
    plan = model_spec_of(spec, images, classes)
    layout = plan.layout(getattr(torch, spec.model.dtype))
    cut = find_cut_index(plan, spec.model.cut)
    bottom = SubModel(plan, 0, cut, layout.dtype)
    bottom.layers.eval()
    with torch.no_grad():
        h = bottom.run_layers(torch.zeros((1, *images), dtype=layout.dtype))
    norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut)
    return Shape(cut, layout.ends[cut], layout.size, on_wire(tuple(h.shape[1:])), norms)


def has_buffers(spec: Spec, images: tuple[int, int, int], classes: int) -> bool:
    """Whether some numbers of x are not learnt, such as batch norm's running values, and so never clipped."""
    if spec.engine == "fast":  # it has no kernel for layers with buffers
        return False
    with BUILDING:
        layout = model_spec_of(spec, images, classes).layout(getattr(torch, spec.model.dtype))
    return not all(slot.parameter for slot in layout.slots)


def cpu_level() -> str:
    """The instructions that torch uses here: bits may differ between hosts with different ones."""
    return torch.backends.cpu.get_cpu_capability()


def missing() -> str | None:
    """It runs wherever torch does."""
    return None


class Client:
    """The client's half, or the whole model, with torch."""

    def __init__(self, outfit: Outfit) -> None:
        torch.set_num_threads(1)  # bits depend on it
        spec, images = outfit.spec, outfit.images
        with BUILDING:
            self.shape = shape_of(spec, images.shape, len(images.classes))
            self.model_spec = model_spec_of(spec, images.shape, len(images.classes))
            self.dtype, self.seed = getattr(torch, spec.model.dtype), spec.seed
            self.network = Network(
                self.model_spec,
                DeviceImages(images, self.dtype),
                outfit.holdings,
                outfit.batches,
                outfit.augmentation,
                get_loss(spec.model.loss),
                self.dtype,
            )
            self.bottom = SubModel(self.model_spec, 0, self.shape.cut, self.dtype)
            self.has_buffers = self.bottom.mask is not None
            self.engine = Whole(self.network, spec.seed) if spec.placement == "whole" else None

    def cut(self, visit: Visit[Vector], top: Asked) -> Vector:
        """The same loop as in a simulation."""
        here = on_torch(visit)
        descent = Descent(self.bottom, here, self.seed)
        samples = Ahead(self.network.samples(descent.name, visit.K))
        descend_cut(descent, samples, RemoteTop(top, samples.draw))
        half: Vector = finite(self.bottom.x, here).numpy()
        return half

    def whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """FedAvg's part."""
        assert self.engine is not None
        done = self.engine.run(on_torch(visit))
        return done.x.numpy(), done.cost.loss

    def x0(self) -> Vector:
        """Torch's own initialisation, by name."""
        return start(self.model_spec, self.seed, self.dtype)[: self.shape.boundary]


def start(plan: ModelSpec, seed: int, dtype: torch.dtype) -> Vector:
    """x^0."""
    with BUILDING:
        x0: Vector = plan.x0(seed, dtype).numpy()
    return x0


class Ahead(Generic[Item]):
    """Items of an iterator, of which the next may be made before it is asked for."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items, self._held = items, list[Item]()

    def draw(self) -> None:
        """Make the next one now, unless it is there."""
        if not self._held:
            self._held.extend(islice(self._items, 1))

    def __iter__(self) -> Iterator[Item]:
        while True:
            self.draw()
            if not self._held:
                return
            yield self._held.pop()


class RemoteTop:
    """The inner seam of the reference engine, over a wire."""

    def __init__(self, top: Asked, meanwhile: Callable[[], None]) -> None:
        self.top, self.meanwhile = top, meanwhile

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float, /) -> base.Reply:
        """Tensors in and out."""
        reply = self.top.step(k, to_wire(h), labels.int().numpy(), norm2, self.meanwhile)
        return base.Reply(from_wire(reply.gradient), reply.norms, reply.loss)

    def finish(self, norm2: float, /) -> None:
        """One number more."""
        self.top.finish(norm2)

    def predict(self, h: torch.Tensor, /) -> torch.Tensor:
        """Not during a visit."""
        raise WorkError("the server's half cannot be asked in the middle of a visit")


class Server:
    """The server's half of one visit after another, on layers of its own."""

    def __init__(self, spec: Spec, images: tuple[int, int, int], classes: int, shape: Shape, batch: int) -> None:
        with BUILDING:
            plan = model_spec_of(spec, images, classes)
            dtype = getattr(torch, spec.model.dtype)
            self.submodel = SubModel(plan, shape.cut, len(plan.layers()), dtype)
        self.seed, self.loss = spec.seed, get_loss(spec.model.loss)
        found = [(j, list(layer.parameters())) for j, layer in enumerate(self.submodel.layers)]
        self.weights = [(j, some) for j, some in found if some]

    def begin(self, visit: Visit[Vector]) -> Above:
        """A visit of the server's half."""
        top = Prompt(Descent(self.submodel, on_torch(visit), self.seed), self.loss)
        top.weights = self.weights
        return Above(top)

    def predict(self, x: Vector, h: Vector) -> Vector:
        """What comes out above the cut, as in evaluation."""
        self.submodel.load(torch.from_numpy(x))
        out: Vector = self.submodel.predict(from_wire(h)).numpy()
        return out


class Looking:
    """A test set on its way through the client's half, and what comes back."""

    def __init__(self, outfit: Outfit, test: ImageSet) -> None:
        torch.set_num_threads(1)
        with BUILDING:
            plan, dtype = model_spec_of(outfit.spec, test.shape, len(test.classes)), outfit.spec.model.dtype
            self.bottom = SubModel(plan, 0, find_cut_index(plan, outfit.spec.model.cut), getattr(torch, dtype))
        self.images, self.classes = DeviceImages(test, getattr(torch, dtype)), len(test.classes)
        self.loss = get_loss(outfit.spec.model.loss)

    @torch.no_grad()
    def through(self, bottom: Vector) -> Iterator[Vector]:
        """Smashed data, slice by slice, as the wire has them."""
        self.bottom.load(torch.from_numpy(bottom.copy()))
        for features, _ in self.images.slices(SLICE):
            yield to_wire(self.bottom.predict(features))

    @torch.no_grad()
    def tally(self, outputs: Sequence[Vector]) -> Tally:
        """Losses are added up as in evaluation: within a slice, then all slices."""
        losses, y = [], self.images.y
        for out, (_, labels) in zip(outputs, self.images.slices(SLICE), strict=True):
            losses.append(float(self.loss(from_wire(out), labels)) * len(labels))
        right = y[torch.cat([from_wire(out).argmax(1) for out in outputs]) == y]
        counts = [torch.bincount(some, minlength=self.classes).tolist() for some in (right, y)]
        return Tally(math.fsum(losses), *counts)


class Prompt(TopHalf):
    """The server's half, which answers first: what the client does not wait for is done when the answer is on its way.

    That is the gradient of its own weights, layer by layer, from the gradients at their outputs, which the answer has
    brought about: the same operations on the same numbers, later. And the update, where nothing of the client's is
    needed for it.
    """

    weights: Sequence[tuple[int, list[nn.Parameter]]] = ()  # of each layer that has some
    owed: Sequence[tuple[torch.Tensor, torch.Tensor, list[nn.Parameter]]] = ()  # an output, its gradient, the weights

    def settle(self) -> None:
        """Apply the step that waits."""
        if by_itself(self.descent.step):
            self._apply(0.0)

    def _answered(self, k: int, h: torch.Tensor, labels: torch.Tensor) -> base.Reply:
        if self.descent.step.clip is not None:  # then the norms of those gradients are part of the answer
            return super()._answered(k, h, labels)
        seen: list[torch.Tensor] = []
        loss = self.loss(self.descent.forward(k, h, seen), labels)
        gradient, *rest = torch.autograd.grad(loss, [h, *(seen[j] for j, _ in self.weights)], retain_graph=True)
        self.owed = [(seen[j], g, some) for g, (j, some) in zip(rest, self.weights, strict=True)]
        self.norms = ()
        return base.Reply(copy_to_canonical(gradient), (), loss.detach())

    def _apply(self, norm2: float) -> None:
        for output, gradient, weights in self.owed:
            torch.autograd.backward(output, gradient, inputs=weights)
        if self.owed:
            self.descent.norms()
        self.owed = ()
        super()._apply(norm2)


class Above:
    """One visit of the server's half."""

    def __init__(self, top: Prompt) -> None:
        self.top = top

    def step(self, k: int, h: Vector, labels: Labels, norm2: float) -> tuple[Vector, tuple[float, ...], float]:
        """Forward and backward."""
        reply = self.top.step(k, from_wire(h), torch.from_numpy(labels.astype(np.int64)), norm2)
        return to_wire(reply.gradient), tuple(float(square) for square in reply.norms), float(reply.loss)

    def settle(self) -> None:
        """Apply the step that waits, if it can be."""
        self.top.settle()

    def finish(self, norm2: float) -> None:
        """Apply the step that waits."""
        self.top.finish(norm2)

    def x(self) -> Vector:
        """The half as it stands."""
        x: Vector = self.top.descent.submodel.x.numpy().copy()
        return x


def on_torch(visit: Visit[Vector]) -> Visit[torch.Tensor]:
    """The same visit on torch's vectors."""
    given: Any = visit.step
    step = replace(given, shift=None if given.shift is None else torch.from_numpy(given.shift))
    return Visit(visit.r, visit.i, visit.m, torch.from_numpy(visit.x), step, visit.K)
