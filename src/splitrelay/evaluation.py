"""Evaluate x on a set of images: loss, accuracy, and accuracy of each class. Evaluation never changes training."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from splitrelay.errors import SplitrelayError
from splitrelay.models import ModelSpec, SubModel
from splitrelay.objectives.network import DeviceImages, Loss

Stop = TypeVar("Stop")
Result = TypeVar("Result")
SLICE = 500  # images per slice: a slice fits into the cache, and the losses are added in one fixed order


@dataclass(frozen=True)
class Score:
    """Mean loss, accuracy, and accuracy of each class (NaN for a class without images)."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...]


class Evaluator:
    """Evaluates x on one set of images with buffers of its own. All available cores evaluate slices in parallel."""

    def __init__(
        self, model_spec: ModelSpec, images: DeviceImages, classes: int, loss: Loss, dtype: torch.dtype
    ) -> None:
        self.submodel = SubModel(model_spec, 0, len(model_spec.layers()), dtype, images.x.device)
        self.submodel.layers.eval()  # set once, because the threads share the layers
        self.slices = list(images.slices(SLICE))  # normalized once, because a test set is evaluated many times
        self.classes, self.loss, self.labels = classes, loss, images.y
        # A sweep pins a process to one core, so count the cores that this process may use.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = ThreadPoolExecutor(cores)

    def score(self, x: torch.Tensor) -> Score:
        """Evaluate x on all images. The losses are added in the order of the images, so the sum has fixed bits."""
        self.submodel.load(x)
        losses, answers = zip(*self.threads.map(self._evaluate_slice, self.slices), strict=True)
        correct = self._count_classes(self.labels[torch.cat(answers) == self.labels])
        counts = self._count_classes(self.labels)
        per_class = tuple(c / n if n else math.nan for c, n in zip(correct, counts, strict=True))
        return Score(math.fsum(losses) / sum(counts), sum(correct) / sum(counts), per_class)

    @torch.no_grad()
    def _evaluate_slice(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, torch.Tensor]:
        """Return the sum of the losses and the predicted classes."""
        features, labels = batch
        out = self.submodel.predict(features)
        return float(self.loss(out, labels)) * len(labels), out.argmax(1)

    def _count_classes(self, labels: torch.Tensor) -> list[int]:
        counts: list[int] = torch.bincount(labels, minlength=self.classes).tolist()
        return counts


def evaluate_in_background(
    stops: Iterable[tuple[Stop, torch.Tensor]],
    evaluate: Callable[[torch.Tensor], Result],
    *,
    in_background: bool = True,
) -> Iterator[tuple[Stop, Result]]:
    """Evaluate each x in a background thread while `stops` trains the next rounds. Yield the results in order.

    The next stop is requested only after the result of the previous one, so at most two models are in memory.

    Args:
        stops: Trains, and yields pairs of anything and the x to evaluate.
        evaluate: Evaluates one x.
        in_background: If False, evaluate in the calling thread.
    """
    if not in_background:
        yield from ((stop, evaluate(x)) for stop, x in stops)
        return
    with ThreadPoolExecutor(1) as thread:
        pending: list[tuple[Stop, Future[Result]]] = []
        try:
            for stop, x in stops:
                yield from _get_results(pending)
                pending = [(stop, thread.submit(evaluate, x))]
        except (SplitrelayError, KeyboardInterrupt):  # training stopped; the last evaluation is still valid
            yield from _get_results(pending)
            raise
        yield from _get_results(pending)


def _get_results(pending: list[tuple[Stop, Future[Result]]]) -> Iterator[tuple[Stop, Result]]:
    return ((stop, future.result()) for stop, future in pending)
