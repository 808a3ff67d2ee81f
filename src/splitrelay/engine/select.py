"""Choose the reference or the fast engine for a run, and adapt the fast engine to torch's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from splitrelay import kernels
from splitrelay.algorithms.base import Done, Step, Visit
from splitrelay.data.images import ImageSet, Samples
from splitrelay.engine.base import Engine
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.errors import InputError, UnknownName
from splitrelay.evaluation import Evaluator, Score
from splitrelay.kernels.batches import make_draw
from splitrelay.models import ModelSpec, find_cut_index
from splitrelay.objectives.metrics import Metric, check_metrics
from splitrelay.objectives.network import DeviceImages, DeviceSamples, Network

ENGINES = ("auto", "reference", "fast")
Floats = npt.NDArray[np.float32]


def resolve_engine(
    choice: str,
    model_spec: ModelSpec,
    *,
    dtype: str = "float32",
    loss: str = "cross-entropy",
    device: str = "cpu",
    samples: Samples | DeviceImages | DeviceSamples | None = None,
    obstacle: str | None = None,
) -> tuple[str, str]:
    """Return the name of the engine that a choice means, and the reason.

    `auto` means the reference engine where the fast engine cannot run or is slower. `obstacle` is a reason why the
    fast engine cannot run, beside those of the model.

    Raises:
        InputError: The choice is `fast`, and the fast engine cannot run here.
    """
    if choice not in ENGINES:
        raise UnknownName("engine", choice, ENGINES)
    if choice == "reference":
        return choice, "as asked"
    obstacle = obstacle or _find_sample_obstacle(samples) or _find_obstacle(model_spec, dtype, loss, device)
    if choice == "fast":
        if obstacle is not None:
            raise InputError(f"engine=fast: {obstacle}", hint="engine=reference, or auto, runs it.")
        return choice, "as asked"
    obstacle = obstacle or kernels.find_layer_for_torch(kernels.convert_net(model_spec.net(), model_spec.input_shape))
    return ("fast", "every layer has a kernel") if obstacle is None else ("reference", obstacle)


def _find_sample_obstacle(samples: Samples | DeviceImages | DeviceSamples | None) -> str | None:
    """Return why the fast engine cannot read these samples, or None."""
    if samples is None or isinstance(samples, ImageSet | DeviceImages):
        return None
    if len(samples.inputs) != 1 or not samples.inputs[0].is_float or samples.target != "classes":
        return "the fast engine reads images, or one input of real numbers with classes"
    return None


def _find_obstacle(model_spec: ModelSpec, dtype: str, loss: str, device: str) -> str | None:
    """Return why the fast engine cannot run this here, or None."""
    for what, value, supported in (
        ("dtype", dtype, "float32"),
        ("loss", loss, "cross-entropy"),
        ("device", device, "cpu"),
    ):
        if value != supported:
            return f"the fast engine has {what} {supported} only, not {value}"
    if len(model_spec.inputs) > 1 or not model_spec.inputs[0].is_float:
        return "the fast engine has one input of floats only"
    return kernels.find_uncovered(model_spec.net(), model_spec.input_shape) or kernels.find_obstacle()


def build_engine(name: str, network: Network, seed: int, placement: str, cut: str | int | None) -> Engine[torch.Tensor]:
    """Return the engine of that name for one thread."""
    if name == "fast":
        return FastEngine(network, seed, placement, cut)
    return WholeEngine(network, seed, cut) if placement == "whole" else SplitEngine(network, seed, cut)


def build_evaluator(
    name: str,
    model_spec: ModelSpec,
    images: DeviceImages | DeviceSamples,
    classes: int,
    network: Network,
    metrics: Sequence[Metric] = (),
) -> Evaluator:
    """Return the evaluator of an engine."""
    if name == "fast":
        return FastEvaluator(model_spec, images, metrics)  # type: ignore[return-value]  # its score() is the same
    return Evaluator(model_spec, images, classes, network.loss, network.dtype, metrics)


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Images that torch holds, as arrays on the same memory (kernels.batches.Images)."""

    x: npt.NDArray[Any]
    y: npt.NDArray[np.int64]
    levels: Floats


def get_arrays(images: DeviceImages | DeviceSamples) -> ImageArrays:
    """Return the arrays of a set of images, or of one input of numbers; a row of features is an image of one pixel."""
    if isinstance(images, DeviceSamples):
        x = images.arrays[0].numpy()
        return ImageArrays(x if x.ndim == 4 else x[:, :, None, None], images.y.numpy(), np.empty((0, 0), np.float32))
    return ImageArrays(images.x.numpy(), images.y.numpy(), images.levels.view(-1, 256).numpy())


class FastEngine:
    """The fast engine on torch's vectors: x goes in and comes out as a tensor, on the same memory."""

    def __init__(self, network: Network, seed: int, placement: str, cut: str | int | None = None) -> None:
        plan = kernels.convert_net(network.model_spec.net(), network.model_spec.input_shape)
        draw = make_draw(network.holdings, network.batches, network.augmentation, seed)
        arrays = get_arrays(network.images)
        self.inner: kernels.WholeEngine | kernels.SplitEngine
        if placement == "whole":
            self.inner = kernels.WholeEngine(plan, arrays, draw, seed)
        else:
            self.inner = kernels.SplitEngine(plan, arrays, draw, seed, find_cut_index(network.model_spec, cut))

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """Take K local steps."""
        step: Step[Any] = visit.step
        if step.shift is not None:
            step = replace(step, shift=step.shift.numpy())
        done = self.inner.run(Visit(visit.r, visit.i, visit.m, visit.x.numpy(), step, visit.K))
        return Done(torch.from_numpy(done.x), done.cost)


class FastEvaluator:
    """Evaluate x with the kernels; the same interface as evaluation.Evaluator."""

    def __init__(
        self, model_spec: ModelSpec, images: DeviceImages | DeviceSamples, metrics: Sequence[Metric] = ()
    ) -> None:
        plan = kernels.convert_net(model_spec.net(), model_spec.input_shape)
        self.inner = kernels.ImageEvaluator(plan, get_arrays(images))
        self.metrics, self.labels = tuple(metrics), images.y.numpy()
        if self.metrics:
            check_metrics(self.metrics, self.inner.predict(model_spec.x0(0).numpy()), self.labels)

    def score(self, x: torch.Tensor) -> Score:
        """Evaluate x on every image."""
        means = self.inner.evaluate(x.numpy()).compute_means()
        if not self.metrics:
            return Score(*means)
        outputs = self.inner.predict(x.numpy())
        return Score(*means, {metric.column: metric(outputs, self.labels) for metric in self.metrics})
