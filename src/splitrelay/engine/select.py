"""Choose the reference or the fast engine for a run, and adapt the fast engine to torch's vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from splitrelay import kernels
from splitrelay.algorithms.base import Done, Step, Visit
from splitrelay.engine.base import Engine
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.errors import InputError, UnknownName
from splitrelay.evaluation import Evaluator, Score
from splitrelay.kernels.batches import make_draw
from splitrelay.models import ModelSpec, find_cut_index
from splitrelay.objectives.network import DeviceImages, Network

ENGINES = ("auto", "reference", "fast")
Floats = npt.NDArray[np.float32]


def resolve_engine(
    choice: str, model_spec: ModelSpec, *, dtype: str = "float32", loss: str = "cross-entropy", device: str = "cpu"
) -> tuple[str, str]:
    """Return the name of the engine that a choice means, and the reason.

    `auto` means the reference engine where the fast engine cannot run or is slower.

    Raises:
        InputError: The choice is `fast`, and the fast engine cannot run here.
    """
    if choice not in ENGINES:
        raise UnknownName("engine", choice, ENGINES)
    if choice == "reference":
        return choice, "as asked"
    obstacle = _find_obstacle(model_spec, dtype, loss, device)
    if choice == "fast":
        if obstacle is not None:
            raise InputError(f"engine=fast: {obstacle}", hint="engine=reference, or auto, runs it.")
        return choice, "as asked"
    obstacle = obstacle or kernels.find_layer_for_torch(kernels.convert_net(model_spec.net(), model_spec.input_shape))
    return ("fast", "every layer has a kernel") if obstacle is None else ("reference", obstacle)


def _find_obstacle(model_spec: ModelSpec, dtype: str, loss: str, device: str) -> str | None:
    """Return why the fast engine cannot run this here, or None."""
    for what, value, supported in (
        ("dtype", dtype, "float32"),
        ("loss", loss, "cross-entropy"),
        ("device", device, "cpu"),
    ):
        if value != supported:
            return f"the fast engine has {what} {supported} only, not {value}"
    return kernels.find_uncovered(model_spec.net(), model_spec.input_shape) or kernels.find_obstacle()


def build_engine(name: str, network: Network, seed: int, placement: str, cut: str | int | None) -> Engine[torch.Tensor]:
    """Return the engine of that name for one thread."""
    if name == "fast":
        return FastEngine(network, seed, placement, cut)
    return WholeEngine(network, seed) if placement == "whole" else SplitEngine(network, seed, cut)


def build_evaluator(
    name: str, model_spec: ModelSpec, images: DeviceImages, classes: int, network: Network
) -> Evaluator:
    """Return the evaluator of an engine."""
    if name == "fast":
        return FastEvaluator(model_spec, images)  # type: ignore[return-value]  # its score() is the same
    return Evaluator(model_spec, images, classes, network.loss, network.dtype)


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Images that torch holds, as arrays on the same memory (kernels.batches.Images)."""

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    levels: Floats


def get_arrays(images: DeviceImages) -> ImageArrays:
    """Return the arrays of a set of images."""
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

    def __init__(self, model_spec: ModelSpec, images: DeviceImages) -> None:
        plan = kernels.convert_net(model_spec.net(), model_spec.input_shape)
        self.inner = kernels.ImageEvaluator(plan, get_arrays(images))

    def score(self, x: torch.Tensor) -> Score:
        """Evaluate x on every image."""
        return Score(*self.inner.evaluate(x.numpy()).compute_means())
