"""One training run on real images: from its settings to a row for every evaluated round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from splitrelay.algorithms import Algorithm, LocalSteps, Step
from splitrelay.clients import Tallied
from splitrelay.clients.pool import Engine, Pool
from splitrelay.clients.reference import InTwo, Whole
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.evaluation import Evaluator, Score, overlapped
from splitrelay.experiments.registry import algorithm
from splitrelay.models import blueprint, cut_index
from splitrelay.models.cut import FlatCut
from splitrelay.models.files import load_weights
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.losses import loss_named
from splitrelay.objectives.network import Network
from splitrelay.orders import Among, Consumed, Fixed, Order, Permutation, Sampled, WithReplacement
from splitrelay.randomness import Purpose, rng
from splitrelay.testing import Ingredients
from splitrelay.training import resume

Holdings = Sequence[npt.NDArray[np.int64]]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
UNSEEN = Score(math.nan, math.nan, ())
ORDERS = ("permutation", "sampled", "consumed", "fixed", "replacement")


@dataclass(frozen=True)
class Trial:
    """All that decides the numbers of a run, beside the data and their partition."""

    algorithm: str = "ssl"
    model: str | Callable[[], nn.Sequential] = "lenet-small"
    eta: float = 0.1
    K: LocalSteps = 5  # one number, or own steps for each client: the paper's tau_m
    S: int | None = None  # clients a round; all of them where it is not said
    order: str = "permutation"
    placement: str = "cut"  # or "whole"
    cut: str | int | None = None  # the model's usual one where it is not said
    weight_decay: float = 1e-4
    clip: float | None = None
    momentum: float = 0.0
    gamma: float = 1.0
    weighted: bool = False  # FedAvg by the clients' sizes
    G: int = 1
    batches: Batches = field(default_factory=Batches)
    augment: bool = True
    loss: str = "cross-entropy"
    init: str | None = None  # a file of weights to start from
    validation: float = 0.0  # share of each client's samples kept from training, scored instead of the test set
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 1234
    per_half: bool = False  # clip each half by its own norm, as the authors' split code does

    def __post_init__(self) -> None:
        for name, holds, limit in (
            ("eta", 0 < self.eta <= 1e30, "0 < eta <= 1e30"),
            ("K", not isinstance(self.K, int) or self.K >= 1, "K >= 1"),
            ("clip", self.clip is None or self.clip > 0, "clip > 0"),
            ("weight_decay", self.weight_decay >= 0, "weight_decay >= 0"),
            ("momentum", 0 <= self.momentum < 1, "0 <= momentum < 1"),
            ("gamma", self.gamma > 0, "gamma > 0"),
        ):
            if not holds:
                raise OutOfRange(name, limit=limit, value=getattr(self, name))


@dataclass(frozen=True)
class Look:
    """What is seen after r rounds: the test score, the bytes so far, the mean training loss since the last look."""

    r: int
    score: Score
    up: int
    down: int
    train_loss: float
    seconds: float


class Learning:
    """A trial made ready: model, clients, algorithm, order, evaluator."""

    def __init__(self, trial: Trial, data: DataSet, partition: Partition, *, workers: int = 1) -> None:
        torch.set_num_threads(1)  # bits depend on it; cores are used by engines, each on its own thread
        self.trial, dtype = trial, _dtype(trial.dtype)
        self.blueprint = blueprint(trial.model, data.train.shape, len(data.train.classes), trial.cut)
        holdings, kept = held_out(partition.indices, trial.validation, trial.seed)
        self.network = Network(
            self.blueprint,
            DeviceImages(data.train, dtype, _device(trial.device)),
            holdings,
            trial.batches,
            data.augmentation if trial.augment else None,
            loss_named(trial.loss),
            dtype,
        )
        engines = [_engine(trial, self.network) for _ in range(workers)]
        self.clients: Tallied[torch.Tensor] = Tallied(Pool(engines))
        self.algorithm = _algorithm(trial, self.network, partition)
        self.order = _order(trial, partition)
        scored = DeviceImages(data.train.part(kept) if trial.validation else data.test, dtype, self.network.device)
        self.evaluator = Evaluator(self.blueprint, scored, len(data.test.classes), self.network.loss, dtype)

    def run(
        self, R: int, every: int = 1, *, overlap: bool = True, start: tuple[int, Any] | None = None
    ) -> Iterator[tuple[Look, Any]]:
        """(look, state) at the start, after every `every` rounds, and at the end; scored while the next rounds run.

        With start = (r, state) the run goes on from there.
        """
        stops = self._stops(R, every, start or (0, self.algorithm.init(self.x0())))
        for (look, state), score in overlapped(stops, self.evaluator, at_once=overlap):
            yield replace(look, score=score), state

    def own_scores(self, state: Any) -> dict[int, Score]:
        """Where clients keep halves of their own (SplitFed V3): how good the model is as each of them uses it."""
        own_model = getattr(self.algorithm, "own_model", None)
        if own_model is None:
            raise InputError(f"{self.trial.algorithm} has one model for all clients", way_out="Score that.")
        return {m: self.evaluator.score(own_model(state, m)) for m in sorted(state.bottoms)}

    def x0(self) -> torch.Tensor:
        """The start: drawn from the seed, or read from the file that `init` names."""
        if self.trial.init is None:
            return self.blueprint.x0(self.trial.seed, self.network.dtype).to(self.network.device)
        return load_weights(Path(self.trial.init), self.blueprint.layout(self.network.dtype)).to(self.network.device)

    def _stops(self, R: int, every: int, start: tuple[int, Any]) -> Iterator[tuple[tuple[Look, Any], torch.Tensor]]:
        began = time.perf_counter()
        for r, state in resume(self.algorithm, *start, self.order, self.clients, R=R):
            if r % every == 0 or r == R:
                yield (self._look(r, time.perf_counter() - began), state), self.algorithm.model(state)

    def _look(self, r: int, seconds: float) -> Look:
        losses, self.clients.losses = self.clients.losses, []
        mean = math.fsum(losses) / len(losses) if losses else math.nan
        return Look(r, UNSEEN, self.clients.up, self.clients.down, mean, seconds)


def held_out(holdings: Holdings, share: float, seed: int) -> tuple[Holdings, npt.NDArray[np.int64]]:
    """A share of each client's samples kept from training: (what they train on, all that is kept)."""
    if not 0 <= share < 1:
        raise OutOfRange("validation share", limit="0 <= validation < 1", value=share)
    if share == 0:
        return holdings, np.array([], dtype=np.int64)
    kept, rest = [], []
    for m, held in enumerate(holdings):
        shuffled = held[rng(seed, Purpose.PARTITION, m).permutation(len(held))]
        n = int(share * len(held))
        kept.append(shuffled[:n])
        rest.append(np.sort(shuffled[n:]))
    if not sum(map(len, kept)):
        largest = max(map(len, holdings))
        way_out = f"The largest client has {largest}: from validation={1 / largest:.3g} on it keeps one."
        raise InputError("no client has enough samples to keep one back", value=share, way_out=way_out)
    return rest, np.sort(np.concatenate(kept))


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES)
    return DTYPES[name]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name} is not to be had here", value=str(error).splitlines()[0]) from None
    return device


def _engine(trial: Trial, network: Network) -> Engine[torch.Tensor]:
    if trial.placement not in ("whole", "cut"):
        raise UnknownName("placement", trial.placement, ("whole", "cut"))
    return Whole(network, trial.seed) if trial.placement == "whole" else InTwo(network, trial.seed, trial.cut)


def _algorithm(trial: Trial, network: Network, partition: Partition) -> Algorithm[torch.Tensor, Any]:
    step: Step[torch.Tensor] = Step(trial.eta, trial.weight_decay, trial.clip, trial.momentum, per_half=trial.per_half)
    sizes = [len(held) for held in network.holdings] if trial.weighted else None
    cut = FlatCut(network.blueprint.layout(network.dtype).ends[cut_index(network.blueprint, trial.cut)])
    M = len(partition.clients)
    made = algorithm(trial.algorithm).make(Ingredients(step, trial.K, M, trial.gamma, sizes, trial.G, cut))
    for name, key, given in (("gamma", "gamma", trial.gamma != 1), ("sizes", "weighted", trial.weighted)):
        if given and not hasattr(made, name):
            raise InputError(f"{trial.algorithm} knows no {key}", way_out=f"Leave {key} out, or take fedavg.")
    return made


def _order(trial: Trial, partition: Partition) -> Order:
    M = len(partition.clients)
    S = M if trial.S is None else trial.S
    orders: dict[str, Any] = {
        "permutation": lambda: Permutation(M, trial.seed) if S == M else Sampled(M, S, trial.seed),
        "sampled": lambda: Sampled(M, S, trial.seed),
        "consumed": lambda: Consumed(M, S, trial.seed),
        "replacement": lambda: WithReplacement(M, S, trial.seed),
        "fixed": lambda: Fixed.first(M, S),
    }
    if trial.order not in orders:
        raise UnknownName("order", trial.order, ORDERS)
    return Among(orders[trial.order](), partition.clients)
