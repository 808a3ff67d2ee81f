"""The reference engine at both ends of a connection. engine/torch_engine.py converts between tensors and arrays.

Each end computes on a device of its own. Vectors and messages are arrays of the host: they are copied to the device
when a visit starts or a message arrives, and back when x or a message leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import torch

from splitrelay.algorithms.base import Visit
from splitrelay.data.images import Samples
from splitrelay.deploy.backend import ClientContext, Inputs, Labels, Shape, TestScore, Vector
from splitrelay.engine.base import EvaluationSums, LocalServerHalf, check_finite
from splitrelay.engine.torch_engine import (
    ArrayClientHalf,
    ArrayServerLayers,
    DeferredServerLayers,
    LocalTraining,
    TorchClientHalf,
    TorchServerLayers,
    WholeEngine,
    from_wire,
    is_finite,
    move_visit,
    to_wire,
)
from splitrelay.errors import InputError
from splitrelay.evaluation import SLICE, compute_accuracy, predict_targets
from splitrelay.kernels.builtin_models import BUILTIN_MODELS
from splitrelay.models import ModelSpec, SubModel, find_cut_index, get_model_spec
from splitrelay.models.layer_checks import make_zeros
from splitrelay.network import limits
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.metrics import get_metrics
from splitrelay.objectives.network import Network, to_device
from splitrelay.runs.spec import Spec

BUILDING = Lock()  # building a net draws from torch's own generator, and the check for hidden draws watches that


def build_model_spec(spec: Spec, images: Inputs, classes: int) -> ModelSpec:
    """Return the model of a spec."""
    return get_model_spec(spec.model.name, images, classes, spec.model.cut)


def write_document(spec: Spec, images: Inputs, classes: int) -> str:
    """Return what a client must have to train this model: the digest of its constants, or nothing."""
    with BUILDING:
        digest = build_model_spec(spec, images, classes).constants_digest
    return f"constants {digest}" if digest else ""


def check_constants(model_spec: ModelSpec, document: str) -> None:
    """Raise InputError if this host has other constants, such as frozen parameters, than the server's terms name."""
    digest = model_spec.constants_digest
    mine = f"constants {digest}" if digest else ""
    if mine != document:
        what = f"the frozen parameters and other constants of model {model_spec.name} are not those of the server"
        hint = "Use the same code and the same file of pretrained weights as the operator of the server."
        raise InputError(what, value=mine or "none", limit=document or "none", hint=hint)


def compute_shape(spec: Spec, images: Inputs, classes: int, pinned: str = "") -> Shape:
    """Return the sizes of a spec's messages; `pinned` layers are for the fast engine only."""
    plan = build_model_spec(spec, images, classes)
    layout = plan.layout(getattr(torch, spec.model.dtype))
    cut = find_cut_index(plan, spec.model.cut)
    bottom = SubModel(plan, 0, cut, layout.dtype)
    bottom.layers.eval()
    with torch.no_grad():
        h = to_wire(bottom.run_layers(make_zeros(plan.inputs, 1, layout.dtype)))
    if not 2 <= len(h.shape) <= limits.AXES:
        what, limit = f"the smashed data at the cut of {plan.name} cannot be sent", f"2 to {limits.AXES} axes"
        raise InputError(what, value=f"{len(h.shape)} axes", limit=limit, hint="Choose another cut.")
    norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut)
    return Shape(cut, layout.ends[cut], layout.size, h.shape[1:], norms)


def has_buffers(spec: Spec, images: Inputs, classes: int) -> bool:
    """Return whether some numbers of x are not trained, such as batch norm's running values, and so never clipped."""
    if spec.engine == "fast" or spec.model.name in BUILTIN_MODELS:  # no layer with buffers has a kernel
        return False
    with BUILDING:
        layout = build_model_spec(spec, images, classes).layout(getattr(torch, spec.model.dtype))
    return not all(slot.parameter for slot in layout.slots)


def get_cpu_level(device: str = "cpu") -> str:
    """Return the instructions that torch uses here, and the device if it is not the CPU.

    Bits may differ between hosts where this text differs.
    """
    level = torch.backends.cpu.get_cpu_capability()
    if device == "cpu":
        return level
    gpu = f" ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else ""
    return f"{level} + {device}{gpu}"


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
        spec, images, self.device = context.spec, context.images, torch.device(context.device)
        with BUILDING:
            self.shape = compute_shape(spec, images.inputs, images.outputs)
            self.model_spec = build_model_spec(spec, images.inputs, images.outputs)
            check_constants(self.model_spec, context.terms.plan)
            self.dtype, self.seed = getattr(torch, spec.model.dtype), spec.seed
            self.network = Network(
                self.model_spec,
                to_device(images, self.dtype, self.device),
                context.holdings,
                context.batches,
                context.augmentation,
                get_loss(spec.model.loss),
                self.dtype,
            )
            self.bottom = SubModel(self.model_spec, 0, self.shape.cut, self.dtype, self.device)
            self.has_buffers = self.bottom.mask is not None
            is_whole = spec.placement == "whole"
            self.engine = WholeEngine(self.network, spec.seed, spec.model.cut) if is_whole else None

    def begin(self, visit: Visit[Vector]) -> ArrayClientHalf:
        """Start a visit of the client half."""
        training = LocalTraining(self.bottom, convert_visit(visit, self.device), self.seed)
        return ArrayClientHalf(TorchClientHalf(training, self.network.samples(training.name, visit.K)))

    def get_x(self, visit: Visit[Vector]) -> Vector:
        """Return the client half after a visit."""
        check_finite(is_finite(self.bottom.x), visit)
        x: Vector = self.bottom.x.cpu().numpy()
        return x

    def train_whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """Take K steps of the whole model."""
        assert self.engine is not None
        done = self.engine.run(convert_visit(visit, self.device))
        return done.x.cpu().numpy(), done.cost.loss

    def compute_x0(self) -> Vector:
        """Return the client half of torch's own initialisation."""
        return start(self.model_spec, self.seed, self.dtype)[: self.shape.boundary]


class Server:
    """The server half of one visit after another, on layers of its own (backend.ServerEngine)."""

    def __init__(self, spec: Spec, images: Inputs, classes: int, shape: Shape, batch: int, device: str = "cpu") -> None:
        self.device = torch.device(device)
        with BUILDING:
            plan = build_model_spec(spec, images, classes)
            dtype = getattr(torch, spec.model.dtype)
            self.submodel = SubModel(plan, shape.cut, len(plan.layers()), dtype, self.device)
        self.seed, self.loss = spec.seed, get_loss(spec.model.loss)

    def begin(self, visit: Visit[Vector]) -> LocalServerHalf[Vector, Labels]:
        """Start a visit of the server half."""
        training = LocalTraining(self.submodel, convert_visit(visit, self.device), self.seed)
        return LocalServerHalf(ArrayServerLayers(DeferredServerLayers(TorchServerLayers(training, self.loss))))

    def get_x(self) -> Vector:
        """Return the half as it is now."""
        x: Vector = self.submodel.x.cpu().numpy().copy()
        return x

    def predict(self, x: Vector, h: Vector) -> Vector:
        """Return the outputs of x for smashed data."""
        self.submodel.load(torch.from_numpy(x))
        out: Vector = self.submodel.predict(from_wire(h, self.device)).cpu().numpy()
        return out


class TestSet:
    """A test set at the evaluator (backend.TestSet)."""

    def __init__(self, context: ClientContext, test: Samples) -> None:
        torch.set_num_threads(1)
        with BUILDING:
            plan = build_model_spec(context.spec, test.inputs, test.outputs)
            dtype, self.device = getattr(torch, context.spec.model.dtype), torch.device(context.device)
            check_constants(plan, context.terms.plan)
            self.bottom = SubModel(plan, 0, find_cut_index(plan, context.spec.model.cut), dtype, self.device)
        self.images, self.classes = to_device(test, dtype, self.device), test.outputs
        self.loss = get_loss(context.spec.model.loss)
        self.metrics = get_metrics(context.spec.metrics, test.target, test.outputs)

    @torch.no_grad()
    def compute_smashed(self, x: Vector) -> Iterator[Vector]:
        """Yield the smashed data, slice by slice."""
        self.bottom.load(torch.from_numpy(x.copy()))
        for features, _ in self.images.slices(SLICE):
            yield to_wire(self.bottom.predict(features))

    @torch.no_grad()
    def compute_score(self, outputs: Sequence[Vector]) -> TestScore:
        """Add the losses in the order of splitrelay.evaluation: within a slice, then all slices."""
        losses, y, target = [], self.images.y, self.images.target
        for out, (_, labels) in zip(outputs, self.images.slices(SLICE), strict=True):
            losses.append(float(self.loss(from_wire(out, self.device), labels)) * len(labels))
        together = torch.cat([from_wire(out, self.device) for out in outputs])
        metrics = tuple(metric(together.cpu().numpy(), y.cpu().numpy()) for metric in self.metrics)
        if target != "classes":
            accuracy = compute_accuracy(predict_targets(together, target), y, target)
            return TestScore(math.fsum(losses) / len(y), accuracy, (), metrics)
        right = y[together.argmax(1) == y]
        counts = [torch.bincount(some, minlength=self.classes).tolist() for some in (right, y)]
        return TestScore(*EvaluationSums(math.fsum(losses), *counts).compute_means(), metrics)


def convert_visit(visit: Visit[Vector], device: torch.device) -> Visit[torch.Tensor]:
    """Return the same visit on torch's vectors, on a device."""
    step: Any = visit.step
    if step.shift is not None:
        step = replace(step, shift=torch.from_numpy(step.shift))
    on_host = Visit(visit.r, visit.i, visit.m, torch.from_numpy(visit.x), step, visit.K)  # its optimiser starts anew
    return move_visit(on_host, device)
