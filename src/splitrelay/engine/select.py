"""Reference or fast: which engine a run uses and why, and the fast one in torch's clothes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from splitrelay import kernels
from splitrelay.algorithms.base import Done, Step, Visit
from splitrelay.engine.thread_pool import Engine
from splitrelay.engine.torch_engine import InTwo, Whole
from splitrelay.errors import InputError, UnknownName
from splitrelay.evaluation import Evaluator, Score
from splitrelay.kernels.batches import drawing
from splitrelay.kernels.rule import better_elsewhere
from splitrelay.models import ModelSpec, find_cut_index
from splitrelay.objectives.network import DeviceImages, Network

ENGINES = ("auto", "reference", "fast")
Floats = npt.NDArray[np.float32]


def resolve_engine(
    choice: str, model_spec: ModelSpec, *, dtype: str = "float32", loss: str = "cross-entropy", device: str = "cpu"
) -> tuple[str, str]:
    """(engine, why). `fast` where it cannot be is refused; `auto` then means the reference engine."""
    if choice not in ENGINES:
        raise UnknownName("engine", choice, ENGINES)
    if choice == "reference":
        return choice, "as asked"
    obstacle = _obstacle(model_spec, dtype, loss, device)
    if choice == "fast":
        if obstacle is not None:
            raise InputError(f"engine=fast: {obstacle}", hint="engine=reference, or auto, runs it.")
        return choice, "as asked"
    obstacle = obstacle or better_elsewhere(kernels.plan_of(model_spec.net(), model_spec.input_shape))
    return ("fast", "every layer has a kernel") if obstacle is None else ("reference", obstacle)


def _obstacle(model_spec: ModelSpec, dtype: str, loss: str, device: str) -> str | None:
    """Why the fast engine cannot run this here, or None."""
    for what, given, wanted in (
        ("dtype", dtype, "float32"),
        ("loss", loss, "cross-entropy"),
        ("device", device, "cpu"),
    ):
        if given != wanted:
            return f"the fast engine has {what} {wanted} only, not {given}"
    return kernels.why_not(model_spec.net(), model_spec.input_shape) or kernels.missing()


def engine(name: str, network: Network, seed: int, placement: str, cut: str | int | None) -> Engine[torch.Tensor]:
    """The engine of that name for one thread."""
    if name == "fast":
        return Fast(network, seed, placement, cut)
    return Whole(network, seed) if placement == "whole" else InTwo(network, seed, cut)


def evaluator(name: str, model_spec: ModelSpec, images: DeviceImages, classes: int, network: Network) -> Evaluator:
    """The evaluator that belongs to an engine."""
    if name == "fast":
        return FastEvaluator(model_spec, images)  # type: ignore[return-value]  # it scores, which is all that is asked
    return Evaluator(model_spec, images, classes, network.loss, network.dtype)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images that torch holds, as arrays on the same memory."""

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    levels: Floats


def pictures(images: DeviceImages) -> Pictures:
    """The arrays of a set of images."""
    return Pictures(images.x.numpy(), images.y.numpy(), images.levels.view(-1, 256).numpy())


class Fast:
    """The kernels behind torch's vectors: x goes in and comes out as a tensor, on the same memory."""

    def __init__(self, network: Network, seed: int, placement: str, cut: str | int | None = None) -> None:
        plan = kernels.plan_of(network.model_spec.net(), network.model_spec.input_shape)
        draw = drawing(network.holdings, network.batches, network.augmentation, seed)
        shown = pictures(network.images)
        self.inner: kernels.Whole | kernels.InTwo
        if placement == "whole":
            self.inner = kernels.Whole(plan, shown, draw, seed)
        else:
            self.inner = kernels.InTwo(plan, shown, draw, seed, find_cut_index(network.model_spec, cut))

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """K local steps."""
        step: Step[Any] = visit.step
        if step.shift is not None:
            step = replace(step, shift=step.shift.numpy())
        done = self.inner.run(Visit(visit.r, visit.i, visit.m, visit.x.numpy(), step, visit.K))
        return Done(torch.from_numpy(done.x), done.cost)


class FastEvaluator:
    """Scores x with the kernels; the same interface as evaluation.Evaluator."""

    def __init__(self, model_spec: ModelSpec, images: DeviceImages) -> None:
        self.scorer = kernels.Scorer(kernels.plan_of(model_spec.net(), model_spec.input_shape), pictures(images))

    def score(self, x: torch.Tensor) -> Score:
        """x on every image."""
        found = self.scorer.score(x.numpy())
        total = int(found.seen.sum())
        pairs = zip(found.right.tolist(), found.seen.tolist(), strict=True)
        per_class = tuple(r / n if n else math.nan for r, n in pairs)
        return Score(found.loss / total, int(found.right.sum()) / total, per_class)
