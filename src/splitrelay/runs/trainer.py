"""One training run on real images: from its settings to a row for every evaluated round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import torch

from splitrelay.algorithms.base import Clients
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.data.partition import Partition
from splitrelay.engine import CostCounter
from splitrelay.engine.select import build_evaluator
from splitrelay.engine.thread_pool import Pool, StoppableEngine
from splitrelay.errors import InputError
from splitrelay.evaluation import Evaluator, Score, evaluate_in_background
from splitrelay.models.weights_io import load_weights
from splitrelay.objectives.network import DeviceImages
from splitrelay.runs.build import Trial, algorithm_of, engine_named, engine_of, held_out, network_of, order_of
from splitrelay.training import resume

__all__ = ["Learning", "Look", "Trial", "held_out"]
UNSEEN = Score(math.nan, math.nan, ())


@dataclass(frozen=True)
class Look:
    """What is seen after r rounds: scores, the bytes so far, the mean training loss since the last look."""

    r: int
    score: Score  # on the test set
    validation: Score | None  # on what clients keep from training, if they do
    up: int
    down: int
    train_loss: float
    seconds: float


class Learning:
    """A trial made ready: model, clients, algorithm, order, evaluator."""

    def __init__(
        self,
        trial: Trial,
        data: DataSet,
        partition: Partition,
        *,
        workers: int = 1,
        stop: Event | None = None,
        clients: Clients[torch.Tensor] | None = None,
    ) -> None:
        """`workers` engines here, unless there are clients elsewhere."""
        torch.set_num_threads(1)  # bits depend on it; cores are used by engines, each on its own thread
        self.trial = trial
        self.network, kept = network_of(trial, data, partition)
        self.model_spec = self.network.model_spec
        stop = stop or Event()  # once set, no further visit is begun
        self.clients: CostCounter[torch.Tensor] = CostCounter(clients or self._pool(workers, stop))
        self.algorithm = algorithm_of(trial, self.network, partition)
        self.order = order_of(trial, partition)
        self.evaluator = self._evaluator(data.test)
        self.validator = self._evaluator(data.train.part(kept)) if trial.validation else None

    def run(
        self, R: int, every: int = 1, *, overlap: bool = True, start: tuple[int, Any] | None = None
    ) -> Iterator[tuple[Look, Any]]:
        """(look, state) at the start, after every `every` rounds, and at the end; scored while the next rounds run.

        With start = (r, state) the run goes on from there.
        """
        stops = self._stops(R, every, start or (0, self.algorithm.init(self.x0())))
        for (look, state), (score, validation) in evaluate_in_background(stops, self._scores, in_background=overlap):
            yield replace(look, score=score, validation=validation), state

    def own_scores(self, state: Any) -> dict[int, Score]:
        """Where clients keep halves of their own (SplitFed V3): how good the model is as each of them uses it."""
        own_model = getattr(self.algorithm, "own_model", None)
        if own_model is None:
            raise InputError(f"{self.trial.algorithm} has one model for all clients", hint="Score that.")
        return {m: self.evaluator.score(own_model(state, m)) for m in sorted(state.bottoms)}

    def x0(self) -> torch.Tensor:
        """The start: drawn from the seed, or read from the file that `init` names."""
        if self.trial.init is None:
            return self.model_spec.x0(self.trial.seed, self.network.dtype).to(self.network.device)
        return load_weights(Path(self.trial.init), self.model_spec.layout(self.network.dtype)).to(self.network.device)

    def _pool(self, workers: int, stop: Event) -> Pool[torch.Tensor]:
        return Pool([StoppableEngine(engine_of(self.trial, self.network), stop) for _ in range(workers)])

    def _evaluator(self, images: ImageSet) -> Evaluator:
        net = self.network
        seen = DeviceImages(images, net.dtype, net.device)
        return build_evaluator(engine_named(self.trial, net), self.model_spec, seen, len(images.classes), net)

    def _scores(self, x: torch.Tensor) -> tuple[Score, Score | None]:
        return self.evaluator.score(x), self.validator.score(x) if self.validator else None

    def _stops(self, R: int, every: int, start: tuple[int, Any]) -> Iterator[tuple[tuple[Look, Any], torch.Tensor]]:
        began = time.perf_counter()
        for r, state in resume(self.algorithm, *start, self.order, self.clients, R=R):
            if r % every == 0 or r == R:
                yield (self._look(r, time.perf_counter() - began), state), self.algorithm.model(state)

    def _look(self, r: int, seconds: float) -> Look:
        losses, self.clients.losses = self.clients.losses, []
        mean = math.fsum(losses) / len(losses) if losses else math.nan
        return Look(r, UNSEEN, None, self.clients.up, self.clients.down, mean, seconds)
