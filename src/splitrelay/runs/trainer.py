"""Train one spec in this process and evaluate the model after some of its rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import torch

from splitrelay.algorithms import LocalSteps
from splitrelay.algorithms.base import Algorithm, Clients, Cut
from splitrelay.algorithms.optimiser_memory import Remembered
from splitrelay.algorithms.schedules import Scheduled
from splitrelay.data.images import DataSet, Samples
from splitrelay.data.partition import Partition
from splitrelay.engine import CostCounter
from splitrelay.engine.select import build_evaluator
from splitrelay.engine.thread_pool import Pool, StoppableEngine
from splitrelay.engine.torch_threads import limit_torch_threads
from splitrelay.errors import InputError
from splitrelay.evaluation import Evaluator, FullGradient, Score, evaluate_in_background
from splitrelay.models.weights_io import load_weights
from splitrelay.objectives.metrics import get_metrics
from splitrelay.objectives.network import to_device
from splitrelay.runs.build import MakeModel, build_algorithm, build_engine, build_network, build_order, get_engine_name
from splitrelay.runs.spec import Spec
from splitrelay.training import resume

NOT_EVALUATED = Score(math.nan, math.nan, ())


class Scorer(Protocol):
    """Evaluates x on a test set."""

    def score(self, x: Any, /) -> Score:
        """Return loss and accuracy."""
        ...


@dataclass(frozen=True)
class EvaluationRow:
    """The results after r rounds."""

    r: int
    score: Score  # on the test set
    validation: Score | None  # on the validation samples of all clients, if there are any
    up: int  # bytes from the clients so far
    down: int  # bytes to the clients so far
    train_loss: float  # mean of the visits since the last evaluation
    seconds: float  # since the start of this process
    gradient_norm: float | None = None  # of F at x, if the spec asks for it


@contextmanager
def set_deterministic(device: torch.device) -> Iterator[None]:
    """Switch off TF32 and all algorithms of cuDNN that give different bits, if the device is a GPU. Restore them later.

    The CPU has no such switches.
    """
    if device.type != "cuda":
        yield
        return
    flags = torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with flags:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def describe_computation(device: torch.device, threads: int) -> dict[str, Any]:
    """Return what environment.json says of device, threads, determinism and TF32."""
    facts: dict[str, Any] = {"device": str(device), "threads": threads}
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "deterministic": True, "tf32": False}
    return facts


class Trainer:
    """The parts of a run: network, clients, algorithm, order of the clients, evaluator.

    Example:

        trainer = Trainer(make_spec(algorithm="fedavg", eta=0.3), data, partition)
        for row, state in trainer.run(R=4):
            print(row.r, row.score.accuracy)
    """

    def __init__(
        self,
        spec: Spec,
        data: DataSet,
        partition: Partition,
        *,
        device: str = "cpu",
        workers: int = 1,
        stop: Event | None = None,
        clients: Clients[torch.Tensor] | None = None,
        model: MakeModel | None = None,
        K: LocalSteps | None = None,
        evaluator: Scorer | None = None,
        cut: Cut[Any] | None = None,
    ) -> None:
        """Build all parts.

        Args:
            spec: The settings. `spec.data` and `spec.partition` are not used: the next two arguments replace them.
            data: The images.
            partition: The samples of each client.
            device: The torch device.
            workers: The number of clients that train at the same time, where the algorithm allows it.
            stop: Once set, no further visit starts and `run` raises KeyboardInterrupt.
            clients: Where visits are made, instead of engines in this process.
            model: A module, or a function that makes one, instead of the name in the spec.
            K: Local steps of each client, instead of those in the spec.
            evaluator: Evaluates x on the test set, instead of an evaluator in this process.
            cut: Cuts x into halves, instead of the flat cut of the spec.
        """
        self.spec = spec
        self.network, validation = build_network(spec, data, partition, device=device, model=model)
        self.model_spec = self.network.model_spec
        stop = stop or Event()
        self.clients: CostCounter[torch.Tensor] = CostCounter(
            clients or Pool([StoppableEngine(build_engine(spec, self.network), stop) for _ in range(workers)])
        )
        self.algorithm: Algorithm[torch.Tensor, Any] = build_algorithm(spec, self.network, partition, K, cut)
        self.order = build_order(spec, partition)
        self.evaluator: Scorer = evaluator or self._build_evaluator(data.test)
        self.validator = self._build_evaluator(data.train.part(validation)) if spec.data.validation else None
        self.gradient = FullGradient(self.network) if spec.gradient_norm else None

    def run(
        self, R: int, every: int = 1, *, overlap: bool = True, start: tuple[int, Any] | None = None
    ) -> Iterator[tuple[EvaluationRow, Any]]:
        """Train for R rounds. Evaluate before the first round, after every `every` rounds, and at the end.

        Args:
            R: The last round.
            every: Rounds between two evaluations.
            overlap: Evaluate on a second thread while the next rounds run. Results do not depend on it.
            start: (r, state) to continue from, instead of the initial state.

        Yields:
            The evaluation, and the state of the algorithm at that round.
        """
        if start is None:  # a second run of this trainer must not begin with the bytes of the first
            self.clients.up, self.clients.down, self.clients.losses = 0, 0, []
        threads = self.spec.threads or 1
        with limit_torch_threads(threads), set_deterministic(self.network.device):
            stops = self._train(R, every, start or (0, self.algorithm.init(self.x0())))
            for (row, state), (score, validation, norm) in evaluate_in_background(
                stops,
                self._evaluate,
                in_background=overlap and threads == 1,  # otherwise training uses the cores
            ):
                yield replace(row, score=score, validation=validation, gradient_norm=norm), state

    def evaluate_clients(self, state: Any) -> dict[int, Score]:
        """Evaluate the own model of each client, for algorithms in which clients keep own halves (SplitFed V3)."""
        algorithm = self.algorithm
        if isinstance(algorithm, Remembered):
            algorithm, state = algorithm.algorithm, state.inner
        if isinstance(algorithm, Scheduled):
            algorithm = algorithm.build(0)
        own_model = getattr(algorithm, "own_model", None)
        if own_model is None:
            hint = "Use the evaluator of the run."
            raise InputError(f"all clients of {self.spec.algorithm} have the same model", hint=hint)
        with limit_torch_threads():
            return {m: self.evaluator.score(own_model(state, m)) for m in sorted(state.bottoms)}

    def x0(self) -> torch.Tensor:
        """Return the initial weights: drawn from the seed, or read from the file `model.init`."""
        if self.spec.model.init is None:
            return self.model_spec.x0(self.spec.seed, self.network.dtype).to(self.network.device)
        layout = self.model_spec.layout(self.network.dtype)
        return load_weights(Path(self.spec.model.init), layout).to(self.network.device)

    def _build_evaluator(self, samples: Samples) -> Evaluator:
        network = self.network
        on_device = to_device(samples, network.dtype, network.device)
        engine = get_engine_name(self.spec, network)
        metrics = get_metrics(self.spec.metrics, samples.target, samples.outputs)
        return build_evaluator(engine, self.model_spec, on_device, samples.outputs, network, metrics)

    def _evaluate(self, x: torch.Tensor) -> tuple[Score, Score | None, float | None]:
        limit = limit_torch_threads() if self.spec.threads > 1 else nullcontext()  # one thread for each slice
        with limit:
            validation = self.validator.score(x) if self.validator else None
            return self.evaluator.score(x), validation, self.gradient.compute_norm(x) if self.gradient else None

    def _train(
        self, R: int, every: int, start: tuple[int, Any]
    ) -> Iterator[tuple[tuple[EvaluationRow, Any], torch.Tensor]]:
        """Yield a row without scores, the state and the model, at every round that is to be evaluated."""
        started = time.perf_counter()
        for r, state in resume(self.algorithm, *start, self.order, self.clients, R=R):
            if r % every == 0 or r == R:
                losses, self.clients.losses = self.clients.losses, []
                loss = math.fsum(losses) / len(losses) if losses else math.nan
                seconds = time.perf_counter() - started
                row = EvaluationRow(r, NOT_EVALUATED, None, self.clients.up, self.clients.down, loss, seconds)
                yield (row, state), self.algorithm.model(state)
