"""The fast engine at both ends of a connection. Clients need no torch: built-in models are part of the package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, prod

import numpy as np

from splitrelay import kernels
from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet, Samples
from splitrelay.deploy.backend import ClientContext, Inputs, Labels, Shape, TestScore, Vector, get_backend
from splitrelay.engine.base import EvaluationSums, LocalServerHalf, check_finite
from splitrelay.errors import InputError
from splitrelay.kernels.batches import Table, make_draw
from splitrelay.kernels.builtin_models import find_cut, get_builtin_plan
from splitrelay.kernels.ctypes_structs import check_call
from splitrelay.kernels.evaluator import AT_ONCE, SLICE
from splitrelay.kernels.local_steps import KernelClientHalf, KernelServerLayers, LocalTraining, get_smashed_shape
from splitrelay.kernels.network_plan import Flatten, Linear, Plan
from splitrelay.kernels.workspace import Workspace, ensure_workspace, make_zeros
from splitrelay.runs.spec import Spec
from splitrelay.tensor_types import TensorType


def derive_plan(spec: Spec, inputs: Inputs, classes: int, pinned: str = "") -> tuple[Plan, int]:
    """Return the layers of a spec's model and the cut, from what this host itself has; the server has no part in it.

    Built-in models come with the package. The layers of another model are `pinned`, a document that the client's
    operator has accepted, or are made by the user's own function, which needs torch.
    """
    name, images = spec.model.name, get_image_shape(inputs)
    if ":" not in name:
        plan = get_builtin_plan(name, images, classes)
    elif pinned:
        plan = kernels.read_plan(pinned)
    else:
        plan = _convert_model(spec, images, classes)
    if plan.shape != images or plan.classes != classes:
        value, limit = f"{plan.shape}, {plan.classes} classes", f"{images}, {classes} classes"
        raise InputError(f"the layers of {name} are made for other images", value=value, limit=limit)
    return plan, find_cut(plan, name, spec.model.cut)


def write_document(spec: Spec, images: Inputs, classes: int) -> str:
    """Return the layers of a spec's model as JSON. The server, which has torch, sends them."""
    return json.dumps(_convert_model(spec, images, classes).document())


def derive_shape(plan: Plan, cut: int) -> Shape:
    """Return the sizes of a spec's messages, from the plan alone."""
    norms = sum(parameter.layer >= cut for parameter in plan.parameters)
    return Shape(cut, plan.ends[cut], plan.size, get_smashed_shape(plan, cut)[0], norms)


@dataclass(frozen=True, eq=False)
class FeatureArrays:
    """Rows or images of real numbers as the kernels read them (kernels.batches.Images)."""

    x: Vector
    y: Labels
    levels: Vector


def get_arrays(samples: Samples) -> ImageSet | FeatureArrays:
    """Return samples as the kernels read them: images of bytes, or numbers as images of one pixel."""
    if isinstance(samples, ImageSet):
        return samples
    x = samples.arrays[0]
    return FeatureArrays(x if x.ndim == 4 else x[:, :, None, None], samples.y, np.empty((0, 0), np.float32))


def get_image_shape(inputs: Inputs) -> tuple[int, int, int]:
    """Return (C, H, W) of images; rows of d features are images of d channels with one pixel.

    Raises:
        InputError: The layers of the fast engine cannot read these inputs.
    """
    first = inputs[0]
    shape = first.shape if isinstance(first, TensorType) else tuple(side for side in inputs if isinstance(side, int))
    is_float = not isinstance(first, TensorType) or (len(inputs) == 1 and first.is_float)
    if not is_float or len(shape) not in (1, 3):
        limit = "images (C, H, W) or rows (d,) of floats"
        raise InputError("built-in models do not read these inputs", value=", ".join(map(str, inputs)), limit=limit)
    return (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])


def compute_shape(spec: Spec, images: Inputs, classes: int, pinned: str = "") -> Shape:
    """Return the sizes of a spec's messages; `pinned` are the agreed layers of a model that is not built in."""
    return derive_shape(*derive_plan(spec, images, classes, pinned))


def get_cpu_level(device: str = "cpu") -> str:
    """Return the level of this CPU, the only device. The results do not depend on it, but it is recorded."""
    return kernels.get_cpu_level()


def find_obstacle() -> str | None:
    """Return why this engine cannot run here, or None."""
    return kernels.find_obstacle()


class Client:
    """The client half or the whole model, with the kernels (backend.ClientEngine)."""

    has_buffers = False  # no layer with buffers has a kernel

    def __init__(self, context: ClientContext) -> None:
        spec = context.spec
        self.spec, self.seed = spec, spec.seed
        images = get_arrays(context.images)
        self.images, self.classes = context.images.inputs, context.images.outputs
        self.plan, cut = derive_plan(spec, self.images, self.classes, context.pinned_plan)
        self.shape = derive_shape(self.plan, cut)
        self.draw = make_draw(context.holdings, context.batches, context.augmentation, spec.seed)
        self.work: Workspace | None = None
        self.engine = kernels.WholeEngine(self.plan, images, self.draw, spec.seed)
        self.table = self.engine.table

    def begin(self, visit: Visit[Vector]) -> KernelClientHalf:
        """Start a visit of the client half."""
        draw = self.draw(visit)
        self.work = ensure_workspace(self.work, self.plan, 0, self.shape.cut, max(draw.sizes))
        return KernelClientHalf(LocalTraining(self.work, visit, self.seed), self.table, draw)

    def get_x(self, visit: Visit[Vector]) -> Vector:
        """Return the client half after a visit."""
        assert self.work is not None
        x, is_finite = self.work.save()
        check_finite(is_finite, visit)
        return x

    def train_whole(self, visit: Visit[Vector]) -> tuple[Vector, float]:
        """Take K steps of the whole model."""
        done = self.engine.run(visit)
        return done.x, done.cost.loss

    def compute_x0(self) -> Vector:
        """Return the client half of x0. Torch draws it; only the first client of a peer-to-peer run needs it."""
        torch_backend = get_backend("reference")
        plan = torch_backend.build_model_spec(self.spec, self.images, self.classes)
        x0: Vector = torch_backend.start(plan, self.seed, torch_backend.torch.float32)
        return x0[: self.shape.boundary]


class Server:
    """The server half of one visit after another, in a workspace of its own (backend.ServerEngine)."""

    def __init__(self, spec: Spec, images: Inputs, classes: int, shape: Shape, batch: int, device: str = "cpu") -> None:
        self.plan, self.seed = _convert_model(spec, images, classes), spec.seed
        self.work = Workspace(self.plan, shape.cut, len(self.plan.layers), batch, input_gradient=True)

    def begin(self, visit: Visit[Vector]) -> LocalServerHalf[Vector, Labels]:
        """Start a visit of the server half."""
        return LocalServerHalf(KernelServerLayers(LocalTraining(self.work, visit, self.seed), defer_gradient=True))

    def get_x(self) -> Vector:
        """Return the half as it is now."""
        return self.work.save()[0]

    def predict(self, x: Vector, h: Vector) -> Vector:
        """Return the outputs of x for smashed data."""
        no_step: Step[Vector] = Step(0.0)
        return KernelServerLayers(LocalTraining(self.work, Visit(0, 0, 0, x, no_step, 1), self.seed)).predict(h)


class TestSet:
    """A test set at the evaluator (backend.TestSet), with the kernels of a simulation and therefore its bits."""

    def __init__(self, context: ClientContext, test: Samples) -> None:
        self.plan, cut = derive_plan(context.spec, test.inputs, test.outputs, context.pinned_plan)
        self.table, self.shape = Table(get_arrays(test), self.plan), derive_shape(self.plan, cut).h
        self.work = Workspace(self.plan, 0, cut, AT_ONCE, trains=False)
        self.loss = LossOfOutputs(self.plan.classes)
        self.metrics = _load_metrics(context.spec, test) if context.spec.metrics else ()

    def compute_smashed(self, x: Vector) -> Iterator[Vector]:
        """Yield the smashed data, slice by slice."""
        self.work.load(x)
        for first in range(0, len(self.table), SLICE):
            features = self.table.load(first, first + SLICE)
            yield np.concatenate([self._pass(features[b : b + AT_ONCE]) for b in range(0, len(features), AT_ONCE)])

    def _pass(self, features: Vector) -> Vector:
        out = np.empty((len(features), prod(self.shape)), np.float32)
        arguments = (features.ctypes.data, features.size, 0, out.ctypes.data, out.size)
        check_call(self.work.kernels.top_predict(self.work.at, len(features), *arguments))
        if len(self.shape) == 1:
            return out
        height, width, channels = self.shape
        return out.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)

    def compute_score(self, outputs: Sequence[Vector]) -> TestScore:
        """Compare the outputs with the labels."""
        sums, together = self._add_up(outputs), np.concatenate(outputs)
        metrics = tuple(metric(together, self.table.y) for metric in self.metrics)
        return TestScore(*sums.compute_means(), metrics)

    def _add_up(self, outputs: Sequence[Vector]) -> EvaluationSums:
        """Add the losses in the order of kernels.evaluator: within a call, within a slice, then all slices."""
        out, y, classes = np.concatenate(outputs), self.table.y, self.plan.classes
        losses = np.zeros(-(-len(y) // SLICE) * SLICE)
        losses[: len(y)] = [self.loss.compute(*pair) for pair in zip(out, y, strict=True)]
        calls = np.cumsum(losses.reshape(-1, AT_ONCE), axis=1)[:, -1]
        slices = np.cumsum(calls.reshape(-1, SLICE // AT_ONCE), axis=1)[:, -1]
        right, seen = (np.bincount(some, minlength=classes) for some in (y[out.argmax(1) == y], y))
        return EvaluationSums(fsum(slices), right.tolist(), seen.tolist())


def _load_metrics(spec: Spec, test: Samples) -> Sequence[Callable[[Vector, Vector], float]]:
    """Return the metrics of a spec. They need torch's packages, which only the evaluator has."""
    metrics: Sequence[Callable[[Vector, Vector], float]] = get_backend("reference").get_metrics(
        spec.metrics, test.target, test.outputs
    )
    return metrics


class LossOfOutputs:
    """Compute the kernels' loss of one image from its outputs, behind a linear layer that changes nothing."""

    def __init__(self, classes: int) -> None:
        plan = Plan((classes, 1, 1), (Flatten("flat"), Linear("same", classes)))
        self.work = Workspace(plan, 1, 2, 1, input_gradient=True)
        x = np.zeros(self.work.size, np.float32)
        x[: classes * classes] = np.eye(classes, dtype=np.float32).ravel()  # W = I, b = 0
        no_step: Step[Vector] = Step(0.0)
        self.training = LocalTraining(self.work, Visit(0, 0, 0, x, no_step, 1), 0)
        self.training.begin()
        self.out, self.label, self.gradient = make_zeros(classes), np.zeros(1, np.int64), make_zeros(classes)

    def compute(self, out: Vector, label: int) -> float:
        """Return the loss of one image."""
        self.out[:], self.label[0] = out, label
        h, labels, g = (array.ctypes.data for array in (self.out, self.label, self.gradient))
        arguments = (0, 1, h, self.out.size, 1, labels, g, 0)
        check_call(self.work.kernels.top_step(self.work.at, self.training.at, *arguments))
        return float(self.training.visit.loss)


def _convert_model(spec: Spec, images: Inputs, classes: int) -> Plan:
    model = get_backend("reference").build_model_spec(spec, images, classes)
    return kernels.convert_net(model.net(), model.input_shape)
