"""Build the parts of a run from its spec: partition, network, engine, algorithm and order of the clients.

Every function raises InputError if the spec and the data do not fit together, so that a run fails before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from splitrelay import kernels, participation
from splitrelay.algorithms import Algorithm, AlgorithmSettings, LocalSteps, Step
from splitrelay.algorithms.base import Cut
from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import SCHEMES, draw_partition, list_settings
from splitrelay.engine import select
from splitrelay.engine.base import Engine
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models import find_cut_index, get_model_spec
from splitrelay.models.layout import FlatCut
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.participation import Consumed, Fixed, Order, Permutation, Sampled, SubsetOrder, WithReplacement
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.registry import algorithm
from splitrelay.runs.spec import Spec

Holdings = Sequence[npt.NDArray[np.int64]]
MakeModel = Callable[[], nn.Sequential]
DEVICES = ("cpu", "cuda", "mps")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ORDERS = ("permutation", "sampled", "consumed", "fixed", "replacement")


def resolve_spec(spec: Spec, device: str = "cpu", data: DataSet | None = None) -> tuple[Spec, str]:
    """Return the spec with engine=auto replaced by the engine that will run it, and the reason for this engine.

    The engine is part of the hash of a spec, so a spec must be resolved before its run is named.
    """
    if spec.engine == "reference":
        return spec, "as requested"
    images, model = (data or load(spec.data.name)).train, spec.model
    plan = get_model_spec(model.name, images.shape, len(images.classes), model.cut)
    name, reason = select.resolve_engine(spec.engine, plan, dtype=model.dtype, loss=model.loss, device=device)
    return spec.model_copy(update={"engine": name}), reason


def build_partition(spec: Spec, data: DataSet) -> Partition:
    """Divide the training set among the clients."""
    part = spec.partition
    if part.kind not in SCHEMES:
        raise UnknownName("partition", part.kind, SCHEMES)
    settings = {**part.model_dump(), "seed": spec.seed if part.seed is None else part.seed}
    known = {name: value for name, value in settings.items() if name in list_settings(part.kind)}
    for name in ("C", "alpha", "shards", "form"):
        is_set = getattr(part, name) != type(part).model_fields[name].default
        _check_effect(name, is_set and name not in known, f"partition={part.kind}")
    return draw_partition(part.kind, data.train.y, **known)


def split_validation(holdings: Holdings, share: float, seed: int) -> tuple[Holdings, npt.NDArray[np.int64]]:
    """Split off a share of each client's samples for validation.

    Returns:
        The samples that each client trains on, and the validation samples of all clients together.
    """
    if not 0 <= share < 1:
        raise OutOfRange("validation share", limit="0 <= validation < 1", value=share)
    if share == 0:
        return holdings, np.array([], dtype=np.int64)
    validation, training = [], []
    for m, samples in enumerate(holdings):
        shuffled = samples[rng(seed, Purpose.VALIDATION, m).permutation(len(samples))]
        n = int(share * len(samples))
        validation.append(shuffled[:n])
        training.append(np.sort(shuffled[n:]))
    if not sum(map(len, validation)):
        largest = max(map(len, holdings))
        hint = f"The largest client has {largest} samples, so the smallest useful share is {1 / largest:.3g}."
        raise InputError("no client has enough samples for validation", value=share, hint=hint)
    return training, np.sort(np.concatenate(validation))


def _check_effect(key: str, is_idle: bool, setting: str) -> None:
    """Refuse a key that has no effect: with it, equal runs would have different names.

    This is checked when a run is built, not when a spec is read, so that older records can still be read.
    """
    if is_idle:
        raise InputError(f"{key} has no effect with {setting}", hint=f"Remove {key}.")


def get_dtype(name: str) -> torch.dtype:
    """Return the torch type with this name."""
    if name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES)
    return DTYPES[name]


def get_device(name: str) -> torch.device:
    """Return the torch device with this name, after a check that it works on this machine."""
    if not isinstance(name, str) or name.partition(":")[0] not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' is not available on this machine", value=reason) from None
    return device


def build_network(
    spec: Spec, data: DataSet, partition: Partition, *, device: str = "cpu", model: MakeModel | None = None
) -> tuple[Network, npt.NDArray[np.int64]]:
    """Build the objective that the clients minimise.

    Args:
        spec: The spec of the run.
        data: The images.
        partition: The samples of each client.
        device: The torch device.
        model: A function that makes the model, instead of the name in the spec.

    Returns:
        The objective, and the samples that are kept for validation.
    """
    dtype, step = get_dtype(spec.model.dtype), spec.optimiser
    _check_effect("batch", step.draw == "full" and step.batch != type(step).model_fields["batch"].default, "draw=full")
    _check_effect("drop_last", step.drop_last and step.draw != "passes", f"draw={step.draw}")
    plan = get_model_spec(model or spec.model.name, data.train.shape, len(data.train.classes), spec.model.cut)
    holdings, validation = split_validation(partition.indices, spec.data.validation, spec.seed)
    images = DeviceImages(data.train, dtype, get_device(device))
    augmentation = data.augmentation if spec.data.augment else None
    batches = Batches(step.batch, step.draw, step.drop_last)
    return Network(plan, images, holdings, batches, augmentation, get_loss(spec.model.loss), dtype), validation


def get_engine_name(spec: Spec, network: Network) -> str:
    """Return the engine that runs the spec: reference or fast."""
    model, device = spec.model, network.device.type
    return select.resolve_engine(spec.engine, network.model_spec, dtype=model.dtype, loss=model.loss, device=device)[0]


def build_engine(spec: Spec, network: Network) -> Engine[torch.Tensor]:
    """Build an engine for the visits of all clients."""
    return select.build_engine(get_engine_name(spec, network), network, spec.seed, spec.placement, spec.model.cut)


def build_algorithm(
    spec: Spec,
    network: Network,
    partition: Partition,
    K: LocalSteps | None = None,
    cut: Cut[Any] | None = None,
) -> Algorithm[torch.Tensor, Any]:
    """Build the algorithm. K replaces the local steps of the spec, `cut` the flat cut of its model."""
    optimiser, M = spec.optimiser, len(partition.clients)
    step: Step[torch.Tensor] = Step(
        optimiser.eta, optimiser.weight_decay, optimiser.clip, optimiser.momentum, per_half=optimiser.per_half
    )
    sizes = [len(samples) for samples in network.holdings] if spec.weighted else None
    ends = network.model_spec.layout(network.dtype).ends
    cut = cut or FlatCut(ends[find_cut_index(network.model_spec, spec.model.cut)])
    steps = compute_local_steps(spec, network.holdings) if K is None else K
    made = algorithm(spec.algorithm).make(AlgorithmSettings(step, steps, M, cut, spec.gamma, sizes, spec.G))
    for name, key, is_set, lacks in (
        ("gamma", "gamma", spec.gamma != 1, "has no global step"),
        ("sizes", "weighted", spec.weighted, "does not weight clients by their samples"),
    ):
        if is_set and not hasattr(made, name):
            raise InputError(f"{spec.algorithm} {lacks}", hint=f"Remove {key}, or use fedavg.")
    _check_effect("G", spec.G != 1 and not hasattr(made, "G"), f"algorithm={spec.algorithm}")
    S = spec.S or M
    if hasattr(made, "G") and spec.G > S:  # the last groups would have no client in any round
        raise OutOfRange("number of groups G", limit=f"1 <= G <= {S} clients a round", value=spec.G)
    return made


def compute_local_steps(spec: Spec, holdings: Holdings) -> LocalSteps:
    """Return K, or with tau=proportional the steps of each client in proportion to its samples."""
    if spec.tau == "same":
        return spec.K
    sizes = [len(samples) for samples in holdings]
    return [max(1, round(spec.K * n * len(sizes) / sum(sizes))) for n in sizes]


def build_order(spec: Spec, partition: Partition) -> Order:
    """Build the rule that chooses the clients of each round."""
    M, seed = len(partition.clients), spec.seed
    S = M if spec.S is None else spec.S
    shuffled = participation.draw_permutation if kernels.find_obstacle() else kernels.draw_clients
    makers: dict[str, Callable[[], Order]] = {
        "permutation": lambda: Permutation(M, seed, shuffled) if S == M else Sampled(M, S, seed, shuffled),
        "sampled": lambda: Sampled(M, S, seed, shuffled),
        "consumed": lambda: Consumed(M, S, seed, shuffled),
        "replacement": lambda: WithReplacement(M, S, seed),
        "fixed": lambda: Fixed.first(M, S),
    }
    if spec.order not in makers:
        raise UnknownName("order", spec.order, ORDERS)
    return SubsetOrder(makers[spec.order](), partition.clients)
