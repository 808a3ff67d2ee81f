"""The parts of a training run, each made from the trial's words; whatever cannot work is refused here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from splitrelay import kernels, participation
from splitrelay.algorithms import Algorithm, AlgorithmSettings, LocalSteps, Step
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.engine.base import Engine
from splitrelay.engine.select import build_engine, resolve_engine
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models import find_cut_index, get_model_spec
from splitrelay.models.layout import FlatCut
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.participation import Consumed, Fixed, Order, Permutation, Sampled, SubsetOrder, WithReplacement
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.registry import algorithm

Holdings = Sequence[npt.NDArray[np.int64]]
DEVICES = ("cpu", "cuda", "mps")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ORDERS = ("permutation", "sampled", "consumed", "fixed", "replacement")


@dataclass(frozen=True)
class Trial:
    """All that decides the numbers of a run, beside the data and their partition."""

    algorithm: str = "ssl"
    model: str | Callable[[], nn.Sequential] = "lenet-small"
    eta: float = 0.1
    K: LocalSteps = 5  # one number, or own steps for each client: the paper's tau_m
    tau: str = "same"  # or "proportional": K is then the mean, and client m takes K n_m M / N steps
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
    validation: float = 0.0  # share of each client's samples kept from training, and scored too
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 1234
    engine: str = "auto"  # reference, fast, or whichever suits the model
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


def held_out(holdings: Holdings, share: float, seed: int) -> tuple[Holdings, npt.NDArray[np.int64]]:
    """A share of each client's samples kept from training: (what they train on, all that is kept)."""
    if not 0 <= share < 1:
        raise OutOfRange("validation share", limit="0 <= validation < 1", value=share)
    if share == 0:
        return holdings, np.array([], dtype=np.int64)
    kept, rest = [], []
    for m, held in enumerate(holdings):
        shuffled = held[rng(seed, Purpose.VALIDATION, m).permutation(len(held))]
        n = int(share * len(held))
        kept.append(shuffled[:n])
        rest.append(np.sort(shuffled[n:]))
    if not sum(map(len, kept)):
        largest = max(map(len, holdings))
        hint = f"The largest client has {largest}: from validation={1 / largest:.3g} on it keeps one."
        raise InputError("no client has enough samples to keep one back", value=share, hint=hint)
    return rest, np.sort(np.concatenate(kept))


def dtype_named(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES)
    return DTYPES[name]


def device_named(name: str) -> torch.device:
    if name.partition(":")[0] not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name} is not to be had here", value=str(error).splitlines()[0]) from None
    return device


def network_of(trial: Trial, data: DataSet, partition: Partition) -> tuple[Network, npt.NDArray[np.int64]]:
    """What the clients minimise, and the samples that they keep from training."""
    dtype = dtype_named(trial.dtype)
    plan = get_model_spec(trial.model, data.train.shape, len(data.train.classes), trial.cut)
    holdings, kept = held_out(partition.indices, trial.validation, trial.seed)
    images = DeviceImages(data.train, dtype, device_named(trial.device))
    augmentation = data.augmentation if trial.augment else None
    return Network(plan, images, holdings, trial.batches, augmentation, get_loss(trial.loss), dtype), kept


def engine_of(trial: Trial, network: Network) -> Engine[torch.Tensor]:
    if trial.placement not in ("whole", "cut"):
        raise UnknownName("placement", trial.placement, ("whole", "cut"))
    return build_engine(engine_named(trial, network), network, trial.seed, trial.placement, trial.cut)


def engine_named(trial: Trial, network: Network) -> str:
    """Which engine runs the trial."""
    return resolve_engine(
        trial.engine, network.model_spec, dtype=trial.dtype, loss=trial.loss, device=network.device.type
    )[0]


def algorithm_of(trial: Trial, network: Network, partition: Partition) -> Algorithm[torch.Tensor, Any]:
    step: Step[torch.Tensor] = Step(trial.eta, trial.weight_decay, trial.clip, trial.momentum, per_half=trial.per_half)
    sizes = [len(held) for held in network.holdings] if trial.weighted else None
    cut = FlatCut(network.model_spec.layout(network.dtype).ends[find_cut_index(network.model_spec, trial.cut)])
    M = len(partition.clients)
    K = local_steps(trial, network.holdings)
    made = algorithm(trial.algorithm).make(AlgorithmSettings(step, K, M, cut, trial.gamma, sizes, trial.G))
    for name, key, given, lacks in (
        ("gamma", "gamma", trial.gamma != 1, "has no global step"),
        ("sizes", "weighted", trial.weighted, "does not weigh clients by their samples"),
    ):
        if given and not hasattr(made, name):
            raise InputError(f"{trial.algorithm} {lacks}", hint=f"Leave {key} out, or take fedavg.")
    S = trial.S or M
    if hasattr(made, "G") and trial.G > S:  # the last groups would have no client in any round
        raise OutOfRange("number of groups G", limit=f"1 <= G <= {S} clients a round", value=trial.G)
    return made


def local_steps(trial: Trial, holdings: Holdings) -> LocalSteps:
    """K for all, or in proportion to what each client holds."""
    if trial.tau not in ("same", "proportional"):
        raise UnknownName("tau", trial.tau, ("same", "proportional"))
    if trial.tau == "same" or not isinstance(trial.K, int):
        return trial.K
    sizes = [len(held) for held in holdings]
    return [max(1, round(trial.K * n * len(sizes) / sum(sizes))) for n in sizes]


def order_of(trial: Trial, partition: Partition) -> Order:
    M, seed = len(partition.clients), trial.seed
    S = M if trial.S is None else trial.S
    shuffled = (
        participation.draw_permutation if kernels.find_obstacle() else kernels.draw_clients
    )  # the same clients, on either engine
    known: dict[str, Any] = {
        "permutation": lambda: Permutation(M, seed, shuffled) if S == M else Sampled(M, S, seed, shuffled),
        "sampled": lambda: Sampled(M, S, seed, shuffled),
        "consumed": lambda: Consumed(M, S, seed, shuffled),
        "replacement": lambda: WithReplacement(M, S, seed),
        "fixed": lambda: Fixed.first(M, S),
    }
    if trial.order not in known:
        raise UnknownName("order", trial.order, ORDERS)
    return SubsetOrder(known[trial.order](), partition.clients)
