"""Evaluate x on a set of samples: loss, accuracy (also of each class), metrics. Evaluation never changes training."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from splitrelay.data.samples import NO_TOKEN
from splitrelay.errors import SplitrelayError
from splitrelay.models import ModelSpec, SubModel
from splitrelay.objectives.metrics import Metric, check_metrics
from splitrelay.objectives.network import DeviceImages, DeviceSamples, Features, Loss, Network

Stop = TypeVar("Stop")
Result = TypeVar("Result")
SLICE = 500  # images per slice: a slice fits into the cache, and the losses are added in one fixed order


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    Attributes:
        loss: The mean loss.
        accuracy: The accuracy, or NaN if the targets are real numbers.
        per_class: The accuracy of each class (NaN for a class without samples); empty for other targets.
        metrics: The value of each metric that was asked for, by its column.
    """

    loss: float
    accuracy: float
    per_class: tuple[float, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Evaluator:
    """Evaluates x on one set of samples with buffers of its own. All available cores evaluate slices in parallel."""

    def __init__(
        self,
        model_spec: ModelSpec,
        images: DeviceImages | DeviceSamples,
        classes: int,
        loss: Loss,
        dtype: torch.dtype,
        metrics: Sequence[Metric] = (),
    ) -> None:
        """Prepare the evaluation.

        Args:
            model_spec: The model.
            images: The samples.
            classes: The number of outputs of the model.
            loss: The mean loss of a batch.
            dtype: The type of the numbers.
            metrics: Further metrics. Each is computed once with the initial model, to find errors before a run.

        Raises:
            InputError: A metric fails.
        """
        self.submodel = SubModel(model_spec, 0, len(model_spec.layers()), dtype, images.device)
        self.submodel.layers.eval()  # set once, because the threads share the layers
        self.slices = list(images.slices(SLICE))  # normalized once, because a test set is evaluated many times
        self.classes, self.loss, self.labels, self.target = classes, loss, images.y, images.target
        self.metrics = tuple(metrics)
        # A sweep pins a process to one core, so count the cores that this process may use.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = ThreadPoolExecutor(cores)
        if self.metrics:
            self.submodel.load(model_spec.x0(0, dtype))
            _, _, outputs = self._evaluate_slices()
            check_metrics(self.metrics, torch.cat(outputs).cpu().numpy(), self.labels.cpu().numpy())

    def score(self, x: torch.Tensor) -> Score:
        """Evaluate x on all samples. The losses are added in the order of the samples, so the sum has fixed bits."""
        self.submodel.load(x)
        losses, answers, outputs = self._evaluate_slices()
        loss, values = math.fsum(losses) / len(self.labels), self._compute_metrics(outputs)
        if self.target != "classes":
            accuracy = compute_accuracy(torch.cat(answers), self.labels, self.target)
            return Score(loss, accuracy, (), values)
        correct = self._count_classes(self.labels[torch.cat(answers) == self.labels])
        counts = self._count_classes(self.labels)
        per_class = tuple(c / n if n else math.nan for c, n in zip(correct, counts, strict=True))
        return Score(loss, sum(correct) / sum(counts), per_class, values)

    def _evaluate_slices(self) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
        results = list(self.threads.map(self._evaluate_slice, self.slices))
        losses, answers, outputs = ([result[j] for result in results] for j in range(3))
        return losses, answers, outputs  # type: ignore[return-value]  # the parts of each result have these types

    @torch.no_grad()
    def _evaluate_slice(self, batch: tuple[Features, torch.Tensor]) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Return the sum of the losses, the predictions, and the outputs if a metric needs them."""
        features, labels = batch
        out = self.submodel.predict(features)
        kept = out if self.metrics else out[:0]
        return float(self.loss(out, labels)) * len(labels), predict_targets(out, self.target), kept

    def _compute_metrics(self, outputs: Sequence[torch.Tensor]) -> dict[str, float]:
        if not self.metrics:
            return {}
        together, y = torch.cat(list(outputs)).cpu().numpy(), self.labels.cpu().numpy()
        return {metric.column: metric(together, y) for metric in self.metrics}

    def _count_classes(self, labels: torch.Tensor) -> list[int]:
        counts: list[int] = torch.bincount(labels, minlength=self.classes).tolist()
        return counts


def predict_targets(outputs: torch.Tensor, target: str) -> torch.Tensor:
    """Return the predicted classes, tokens or labels of a batch; for real numbers, nothing."""
    if target == "real":
        return outputs[:0]
    return outputs > 0 if target == "multi-label" else outputs.argmax(-1)


def compute_accuracy(answers: torch.Tensor, labels: torch.Tensor, target: str) -> float:
    """Return the share of right answers: of tokens that count, or of samples whose labels are all right."""
    if target == "real":
        return math.nan
    if target == "multi-label":
        right = (answers == (labels > 0)).all(1)
        return float(right.sum()) / max(len(right), 1)
    counted = labels != NO_TOKEN
    return float((answers == labels)[counted].sum()) / max(int(counted.sum()), 1)


class FullGradient:
    """Computes the gradient of F = (1/M) sum of F_m, the objective of the theory, over all training samples.

    Layers are in evaluation mode: no dropout, batch norm with its running values. Nothing is augmented.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.submodel = SubModel(network.model_spec, 0, len(network.model_spec.layers()), network.dtype, network.device)
        self.submodel.layers.eval()

    def compute_norm(self, x: torch.Tensor) -> float:
        """Return the norm of the gradient of F at x. Clients without samples do not count."""
        self.submodel.load(x)
        holdings = [held for held in self.network.holdings if len(held)]
        total = torch.zeros_like(self.submodel.g, dtype=torch.float64)
        for held in holdings:
            for start in range(0, len(held), SLICE):
                part = torch.from_numpy(held[start : start + SLICE].copy()).to(self.network.device)
                features, labels = self.network.images.batch(part)
                loss = self.network.loss(self.submodel.forward(features), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                total.add_(self.submodel.g, alpha=len(part) / len(held) / len(holdings))
        return float(total.norm())


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
