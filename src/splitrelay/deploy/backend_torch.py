"""The reference engine at both ends of a connection: torch inside, arrays outside.

On the wire images have channels last. Arrays from the wire are read-only and not aligned, so they are copied once into
memory that torch has allocated: the bits of a result depend on the alignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import torch

from splitrelay.algorithms.base import Visit
from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import ClientContext, Labels, Shape, Vector
from splitrelay.engine.base import EvaluationSums, LocalServerHalf, Reply, check_finite
from splitrelay.engine.torch_engine import (
    DeferredServerLayers,
    LocalTraining,
    TorchClientHalf,
    TorchServerLayers,
    WholeEngine,
    is_finite,
)
from splitrelay.evaluation import SLICE
from splitrelay.models import ModelSpec, SubModel, find_cut_index, get_model_spec
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.runs.spec import Spec

BUILDING = Lock()  # building a net draws from torch's own generator, and the check for hidden draws watches that
DTYPES = {np.dtype("f4"): torch.float32, np.dtype("f8"): torch.float64, np.dtype("i4"): torch.int32}
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of axes: channels last, channels first


def to_wire(h: torch.Tensor) -> Vector:
    """Return a tensor as an array of the wire. Nothing is copied if the numbers are already in its order."""
    array: Vector = (h.permute(LAST) if h.dim() == 4 else h).detach().contiguous().cpu().numpy()
    return array


def from_wire(array: Vector) -> torch.Tensor:
    """Return an array of the wire as a tensor in memory that torch has allocated."""
    copy = torch.empty(array.shape, dtype=DTYPES[array.dtype])
    copy.numpy()[...] = array
    return copy.permute(FIRST) if array.ndim == 4 else copy


def model_spec_of(spec: Spec, images: tuple[int, int, int], classes: int) -> ModelSpec:
    """Return the model of a spec."""
    return get_model_spec(spec.model.name, images, classes, spec.model.cut)


def shape_of(spec: Spec, images: tuple[int, int, int], classes: int, pinned: str = "") -> Shape:
    """Return the sizes of a spec's messages; `pinned` layers are for the fast engine only."""
    plan = model_spec_of(spec, images, classes)
    layout = plan.layout(getattr(torch, spec.model.dtype))
    cut = find_cut_index(plan, spec.model.cut)
    bottom = SubModel(plan, 0, cut, layout.dtype)
    bottom.layers.eval()
    with torch.no_grad():
        h = to_wire(bottom.run_layers(torch.zeros((1, *images), dtype=layout.dtype)))
    norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut)
    return Shape(cut, layout.ends[cut], layout.size, h.shape[1:], norms)


def has_buffers(spec: Spec, images: tuple[int, int, int], classes: int) -> bool:
    """Return whether some numbers of x are not trained, such as batch norm's running values, and so never clipped."""
    if spec.engine == "fast":  # no layer with buffers has a kernel
        return False
    with BUILDING:
        layout = model_spec_of(spec, images, classes).layout(getattr(torch, spec.model.dtype))
    return not all(slot.parameter for slot in layout.slots)


def get_cpu_level() -> str:
    """Return the instructions that torch uses here: bits may differ between hosts with different ones."""
    return torch.backends.cpu.get_cpu_capability()


def find_obstacle() -> str | None:
    """Return None: this engine runs wherever torch does."""
    return None


def start(plan: ModelSpec, seed: int, dtype: torch.dtype) -> Vector:
    """Return x^0."""
    with BUILDING:
        x0: Vector = plan.x0(seed, dtype).numpy()
    return x0


class Client:
    """The client half or the whole model, with torch (backend.ClientEngine)."""

    def __init__(self, context: ClientContext) -> None:
        torch.set_num_threads(1)  # bits depend on it
        spec, images = context.spec, context.images
        with BUILDING:
            self.shape = shape_of(spec, images.shape, len(images.classes))
            self.model_spec = model_spec_of(spec, images.shape, len(images.classes))
            self.dtype, self.seed = getattr(torch, spec.model.dtype), spec.seed
            self.network = Network(
                self.model_spec,
                DeviceImages(images, self.dtype),
                context.holdings,
                context.batches,
                context.augmentation,
                get_loss(spec.model.loss),
                self.dtype,
            )
            self.bottom = SubModel(self.model_spec, 0, self.shape.cut, self.dtype)
            self.has_buffers = self.bottom.mask is not None
            self.engine = WholeEngine(self.network, spec.seed) if spec.placement == "whole" else None

    def begin(self, visit: Visit[Vector]) -> ArrayClientHalf:
        """Start a visit of the client half."""
        training = LocalTraining(self.bottom, convert_visit(visit), self.seed)
        return ArrayClientHalf(TorchClientHalf(training, self.network.samples(training.name, visit.K)))

    def get_x(self, visit: Visit[Vector]) -> Vector:
        """Return the client half after a visit."""
        check_finite(is_finite(self.bottom.x), visit)
        x: Vector = self.bottom.x.numpy()
        return x

    def train_whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """Take K steps of the whole model."""
        assert self.engine is not None
        done = self.engine.run(convert_visit(visit))
        return done.x.numpy(), done.cost.loss

    def compute_x0(self) -> Vector:
        """Return the client half of torch's own initialisation."""
        return start(self.model_spec, self.seed, self.dtype)[: self.shape.boundary]


class ArrayClientHalf:
    """A client half on the arrays of the wire."""

    def __init__(self, half: TorchClientHalf) -> None:
        self.half, self.step, self.prepare_next, self.apply = half, half.step, half.prepare_next, half.apply

    def forward(self, k: int, /) -> tuple[Vector, Labels]:
        """Return smashed data and labels."""
        h, labels = self.half.forward(k)
        return to_wire(h), labels.numpy()

    def backward(self, gradient: Vector, /) -> Sequence[float]:
        """Compute the client's gradient; return its squared norms."""
        return self.half.backward(from_wire(gradient))


class Server:
    """The server half of one visit after another, on layers of its own (backend.ServerEngine)."""

    def __init__(self, spec: Spec, images: tuple[int, int, int], classes: int, shape: Shape, batch: int) -> None:
        with BUILDING:
            plan = model_spec_of(spec, images, classes)
            dtype = getattr(torch, spec.model.dtype)
            self.submodel = SubModel(plan, shape.cut, len(plan.layers()), dtype)
        self.seed, self.loss = spec.seed, get_loss(spec.model.loss)

    def begin(self, visit: Visit[Vector]) -> LocalServerHalf[Vector, Labels]:
        """Start a visit of the server half."""
        training = LocalTraining(self.submodel, convert_visit(visit), self.seed)
        return LocalServerHalf(ArrayServerLayers(DeferredServerLayers(TorchServerLayers(training, self.loss))))

    def get_x(self) -> Vector:
        """Return the half as it is now."""
        x: Vector = self.submodel.x.numpy().copy()
        return x

    def predict(self, x: Vector, h: Vector) -> Vector:
        """Return the outputs of x for smashed data."""
        self.submodel.load(torch.from_numpy(x))
        out: Vector = self.submodel.predict(from_wire(h)).numpy()
        return out


class ArrayServerLayers:
    """Server layers on the arrays of the wire (engine.base.ServerLayers)."""

    def __init__(self, layers: DeferredServerLayers) -> None:
        self.layers, self.step, self.apply = layers, layers.step, layers.apply

    def prepare(self, h: Vector, labels: Labels, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the batch into tensors."""
        return self.layers.prepare(from_wire(h), torch.from_numpy(labels.astype(np.int64)))

    def compute(self, k: int, h: torch.Tensor, labels: torch.Tensor, /) -> Reply[Vector]:
        """Compute forward and backward."""
        reply = self.layers.compute(k, h, labels)
        return Reply(to_wire(reply.gradient), reply.norms, float(reply.loss))

    def predict(self, h: Vector, /) -> Vector:
        """Return the outputs as in evaluation."""
        return to_wire(self.layers.predict(from_wire(h)))


class TestSet:
    """A test set at the evaluator (backend.TestSet)."""

    def __init__(self, context: ClientContext, test: ImageSet) -> None:
        torch.set_num_threads(1)
        with BUILDING:
            plan, dtype = model_spec_of(context.spec, test.shape, len(test.classes)), context.spec.model.dtype
            self.bottom = SubModel(plan, 0, find_cut_index(plan, context.spec.model.cut), getattr(torch, dtype))
        self.images, self.classes = DeviceImages(test, getattr(torch, dtype)), len(test.classes)
        self.loss = get_loss(context.spec.model.loss)

    @torch.no_grad()
    def compute_smashed(self, x: Vector) -> Iterator[Vector]:
        """Yield the smashed data, slice by slice."""
        self.bottom.load(torch.from_numpy(x.copy()))
        for features, _ in self.images.slices(SLICE):
            yield to_wire(self.bottom.predict(features))

    @torch.no_grad()
    def add_up(self, outputs: Sequence[Vector]) -> EvaluationSums:
        """Add the losses in the order of splitrelay.evaluation: within a slice, then all slices."""
        losses, y = [], self.images.y
        for out, (_, labels) in zip(outputs, self.images.slices(SLICE), strict=True):
            losses.append(float(self.loss(from_wire(out), labels)) * len(labels))
        right = y[torch.cat([from_wire(out).argmax(1) for out in outputs]) == y]
        counts = [torch.bincount(some, minlength=self.classes).tolist() for some in (right, y)]
        return EvaluationSums(math.fsum(losses), *counts)


def convert_visit(visit: Visit[Vector]) -> Visit[torch.Tensor]:
    """Return the same visit on torch's vectors."""
    step: Any = visit.step
    if step.shift is not None:
        step = replace(step, shift=torch.from_numpy(step.shift))
    return Visit(visit.r, visit.i, visit.m, torch.from_numpy(visit.x), step, visit.K)
