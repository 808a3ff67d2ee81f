"""How good x is on a set of images: loss, accuracy, accuracy of each class. Looking never changes training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from splitrelay.errors import SplitrelayError
from splitrelay.models import Blueprint, Stretch
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.network import Loss

Stop = TypeVar("Stop")
SLICE = 500  # images at once: they fit the cache, and the sum of losses has one order


@dataclass(frozen=True)
class Score:
    """Mean loss and share of right answers, over all images and over those of each class (NaN where there are none)."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...]


class Evaluator:
    """Scores x on one set of images, on buffers of its own."""

    def __init__(
        self, blueprint: Blueprint, images: DeviceImages, classes: int, loss: Loss, dtype: torch.dtype
    ) -> None:
        self.stretch = Stretch(blueprint, 0, len(blueprint.layers()), dtype, images.x.device)
        self.slices = list(images.slices(SLICE))  # normalised once: a test set is looked at many times
        self.classes, self.loss = classes, loss

    @torch.no_grad()
    def score(self, x: torch.Tensor) -> Score:
        """x on every image."""
        self.stretch.load(x)
        losses, right, seen = 0.0, torch.zeros(self.classes), torch.zeros(self.classes)
        for features, labels in self.slices:
            out = self.stretch.predict(features)
            losses += float(self.loss(out, labels)) * len(labels)
            hits = labels[out.argmax(1) == labels]
            right += torch.bincount(hits, minlength=self.classes).cpu()
            seen += torch.bincount(labels, minlength=self.classes).cpu()
        return _score(losses, right.tolist(), seen.tolist())


def _score(losses: float, right: list[float], seen: list[float]) -> Score:
    per_class = tuple(r / n if n else math.nan for r, n in zip(right, seen, strict=True))
    return Score(losses / sum(seen), sum(right) / sum(seen), per_class)


def overlapped(
    stops: Iterable[tuple[Stop, torch.Tensor]], evaluator: Evaluator, *, at_once: bool = True
) -> Iterator[tuple[Stop, Score]]:
    """Score each x while the caller's next rounds are being trained, on a thread of its own; answers in order.

    The next stop is asked for only when the one before it is scored, so never more than two models are held.
    """
    if not at_once:
        yield from ((stop, evaluator.score(x)) for stop, x in stops)
        return
    with ThreadPoolExecutor(1) as thread:
        waiting: list[tuple[Stop, Future[Score]]] = []
        try:
            for stop, x in stops:
                yield from _answers(waiting)
                waiting = [(stop, thread.submit(evaluator.score, x))]
        except SplitrelayError:  # training failed: what came before it is still told
            yield from _answers(waiting)
            raise
        yield from _answers(waiting)


def _answers(waiting: list[tuple[Stop, Future[Score]]]) -> Iterator[tuple[Stop, Score]]:
    return ((stop, future.result()) for stop, future in waiting)
