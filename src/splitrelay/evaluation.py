"""How good x is on a set of images: loss, accuracy, accuracy of each class. Looking never changes training."""

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
from splitrelay.objectives.device_images import DeviceImages
from splitrelay.objectives.network import Loss

Stop = TypeVar("Stop")
Seen = TypeVar("Seen")
SLICE = 500  # images at once: they fit the cache, and the sum of losses has one order


@dataclass(frozen=True)
class Score:
    """Mean loss and share of right answers, over all images and over those of each class (NaN where there are none)."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...]


class Evaluator:
    """Scores x on one set of images, on buffers of its own; slices go to as many threads as there are cores."""

    def __init__(
        self, model_spec: ModelSpec, images: DeviceImages, classes: int, loss: Loss, dtype: torch.dtype
    ) -> None:
        self.submodel = SubModel(model_spec, 0, len(model_spec.layers()), dtype, images.x.device)
        self.submodel.layers.eval()  # once for all: threads share it
        self.slices = list(images.slices(SLICE))  # normalised once: a test set is looked at many times
        self.classes, self.loss, self.labels = classes, loss, images.y
        self.threads = ThreadPoolExecutor(_cores())

    def score(self, x: torch.Tensor) -> Score:
        """x on every image. The parts are added up in the order of the images, whoever was faster."""
        self.submodel.load(x)
        losses, answers = zip(*self.threads.map(self._part, self.slices), strict=True)
        right, seen = self._by_class(self.labels[torch.cat(answers) == self.labels]), self._by_class(self.labels)
        per_class = tuple(r / n if n else math.nan for r, n in zip(right, seen, strict=True))
        return Score(math.fsum(losses) / sum(seen), sum(right) / sum(seen), per_class)

    @torch.no_grad()
    def _part(self, piece: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, torch.Tensor]:
        """(sum of losses, answers) of one slice."""
        features, labels = piece
        out = self.submodel.predict(features)
        return float(self.loss(out, labels)) * len(labels), out.argmax(1)

    def _by_class(self, labels: torch.Tensor) -> list[int]:
        counts: list[int] = torch.bincount(labels, minlength=self.classes).tolist()
        return counts


def overlapped(
    stops: Iterable[tuple[Stop, torch.Tensor]], look: Callable[[torch.Tensor], Seen], *, at_once: bool = True
) -> Iterator[tuple[Stop, Seen]]:
    """Look at each x while the caller's next rounds are being trained, on a thread of its own; answers in order.

    The next stop is asked for only when the one before it is answered, so never more than two models are held.
    """
    if not at_once:
        yield from ((stop, look(x)) for stop, x in stops)
        return
    with ThreadPoolExecutor(1) as thread:
        waiting: list[tuple[Stop, Future[Seen]]] = []
        try:
            for stop, x in stops:
                yield from _answers(waiting)
                waiting = [(stop, thread.submit(look, x))]
        except (SplitrelayError, KeyboardInterrupt):  # training stopped: what came before it is still told
            yield from _answers(waiting)
            raise
        yield from _answers(waiting)


def _answers(waiting: list[tuple[Stop, Future[Seen]]]) -> Iterator[tuple[Stop, Seen]]:
    return ((stop, future.result()) for stop, future in waiting)


def _cores() -> int:
    """Those that this process may use: one, where a sweep has pinned it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
