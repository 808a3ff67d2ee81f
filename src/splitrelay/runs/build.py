"""Build the parts of a run from its spec: partition, network, engine, algorithm and order of the clients.

Every function raises InputError if the spec and the data do not fit together, so that a run fails before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from splitrelay import kernels, participation
from splitrelay.algorithms import Algorithm, Averaged, LocalSteps
from splitrelay.algorithms.base import Cut, Step, Visit
from splitrelay.algorithms.optimiser_memory import Remembered
from splitrelay.algorithms.schedules import Scheduled
from splitrelay.data import load, partition
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import load_partition
from splitrelay.data.partition_schemes import SCHEMES, draw_partition, list_settings
from splitrelay.data.samples import SampleSet
from splitrelay.data.user_samples import SHARE, TableFormat, get_client_positions, load_samples, load_table
from splitrelay.engine import select
from splitrelay.engine.base import Engine
from splitrelay.engine.torch_threads import count_cores, measure_threads
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models import ModelSpec as NetworkSpec
from splitrelay.models import find_cut_index, get_model_spec
from splitrelay.models.layout import FlatCut
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.losses import check_target, get_loss
from splitrelay.objectives.network import Network, to_device
from splitrelay.participation import Consumed, Fixed, Order, Permutation, Sampled, SubsetOrder, WithReplacement
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.local_steps import (
    build_schedule,
    build_settings,
    build_step,
    check_optimiser,
    count_local_steps,
    find_fast_engine_obstacle,
)
from splitrelay.runs.registry import algorithm
from splitrelay.runs.spec import PASSES_ON, DataSpec, Spec, is_partition_file
from splitrelay.runs.user_parts import UserOrder, build_part, find_target, list_registered_names
from splitrelay.user_functions import PYTHON, is_user_function, load_user_function

Holdings = Sequence[npt.NDArray[np.int64]]
MakeModel = nn.Module | Callable[[], nn.Module]
DEVICES = ("cpu", "cuda", "mps")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TIMED_STEPS = 3  # local steps that threads=0 times
COLUMN = "column"  # the partition by the clients that the data name
TABLE_KEYS = ("client", "categorical", "ignore", "missing", "standardize")  # keys that only a table has
ORDERS = ("permutation", "sampled", "consumed", "fixed", "replacement")


def load_data(spec: DataSpec) -> DataSet:
    """Load the data set of a spec: a known set, images, a table (if `label` is set), or arrays as they are.

    Raises:
        InputError: The data cannot be read, or a key has no effect on them.
    """
    fields = type(spec).model_fields
    if is_user_function(spec.name):
        return _call_user_data(spec)
    is_table = bool(spec.label)
    for name in TABLE_KEYS:
        hint = f"Remove {name}, or name the column of the targets of a table: label=NAME."
        is_idle = not is_table and getattr(spec, name) != fields[name].default
        _check_effect(name, is_idle, "data that are no table", hint)
    test = SHARE if spec.test is None else spec.test
    if is_table:
        form = TableFormat(
            spec.label, spec.client, spec.categorical, spec.ignore, spec.missing, spec.standardize, spec.target
        )
        return load_table(spec.name, form, test=test)
    if spec.read_as == "samples":
        return load_samples(spec.name, test=test, target=spec.target)
    for name in ("test", "target"):
        _check_effect(name, getattr(spec, name) != fields[name].default, "images")
    return load(spec.name)


def _call_user_data(spec: DataSpec) -> DataSet:
    """Call the user's function `module:function`, which returns a data set or a pair (x, y)."""
    made = load_user_function("data", spec.name)()
    if isinstance(made, DataSet):
        return made
    if not isinstance(made, tuple) or len(made) != 2:
        limit = "a pair (x, y), or a DataSet"
        raise InputError(f"data {spec.name} returned something else", value=type(made).__name__, limit=limit)
    is_default = spec.target == type(spec).model_fields["target"].default
    test = SHARE if spec.test is None else spec.test
    return load_samples(*made, test=test, target=None if is_default else spec.target, name=spec.name)


def resolve_spec(spec: Spec, device: str = "cpu", data: DataSet | None = None) -> tuple[Spec, str]:
    """Return the spec with engine=auto and threads=0 replaced by what will run it, and the reason.

    If the data or a file define the clients, their number replaces M, and partition=column is written out. Engine and
    clients are part of the hash of a spec, so a spec must be resolved before its run is named.
    """
    if spec.data.client is not None or is_partition_file(spec.partition.kind):
        data = data or load_data(spec.data)
        spec = _resolve_clients(spec, data)
    if spec.engine == "reference" and spec.threads:
        return spec, "as requested"
    data, model = data or load_data(spec.data), spec.model
    samples = data.train
    plan = get_model_spec(model.name, samples.inputs, samples.outputs, model.cut)
    name, reason = _choose_engine(spec, plan, device, samples)
    _check_effect("threads", spec.threads > 1 and name == "fast", "engine=fast")
    spec = spec.model_copy(update={"engine": name})
    if spec.threads:
        return spec, reason
    threads, why = choose_threads(
        spec, lambda: build_network(spec, data, build_partition(spec, data), device=device)[0]
    )
    return spec.model_copy(update={"threads": threads}), f"{reason}; threads={threads}: {why}"


def choose_threads(spec: Spec, make_network: Callable[[], Network], cores: int | None = None) -> tuple[int, str]:
    """Return the number of torch threads for threads=0, and the reason.

    Several threads help only if the visits run one after another on the CPU. Whether they do is measured on this
    machine, with local steps of this model.

    Args:
        spec: The spec, with its engine.
        make_network: Builds the objective; called only if something is measured.
        cores: The cores to use. The default is all that this process may use.
    """
    cores = cores or count_cores()
    if spec.engine == "fast":
        return 1, "the fast engine uses one thread for each visit"
    if spec.algorithm not in PASSES_ON and spec.partition.M > 1:
        return 1, f"visits of {spec.algorithm} can run at the same time"
    if cores == 1:
        return 1, "there is one core"
    network = make_network()
    if network.device.type != "cpu":
        return 1, f"the device is {network.device.type}"
    m = max(range(network.M), key=lambda m: len(network.holdings[m]))
    engine, step = build_engine(spec, network), Step[torch.Tensor](eta=0.0)
    visit = Visit(0, 0, m, network.model_spec.x0(spec.seed, network.dtype), step, TIMED_STEPS)
    return measure_threads(lambda: engine.run(visit), cores)


def _resolve_clients(spec: Spec, data: DataSet) -> Spec:
    """Replace the kind of the partition and M by those that the data or the partition file define."""
    kind = spec.partition.kind
    if spec.data.client is not None and kind == type(spec.partition).model_fields["kind"].default:
        kind = COLUMN
    part = spec.partition.model_copy(update={"kind": kind})
    if kind != COLUMN and not is_partition_file(kind):
        return spec.model_copy(update={"partition": part})
    M = build_partition(spec.model_copy(update={"partition": part}), data).M
    if part.M not in (M, type(part).model_fields["M"].default):
        raise OutOfRange("M is not the number of clients of the data", value=part.M, limit=f"M = {M}, or no M")
    for name, value, limit in (("S", spec.S or 1, M), ("evaluator", spec.evaluator, M - 1)):
        if value > limit:
            raise OutOfRange(f"{name} does not fit the clients of the data", value=value, limit=f"{name} <= {limit}")
    return spec.model_copy(update={"partition": part.model_copy(update={"M": M})})


def _build_column_partition(data: DataSet) -> Partition:
    if not isinstance(data.train, SampleSet):
        raise InputError("images name no clients", hint="Use another partition, or a table with client=COLUMN.")
    names, owner = get_client_positions(data.train)
    return partition.build_partition(owner, len(names), data.train.y, COLUMN, {"clients": list(names)})


def build_partition(spec: Spec, data: DataSet) -> Partition:
    """Divide the training set among the clients: by a scheme, by a column of the data, or as a file says."""
    part = spec.partition
    if is_partition_file(part.kind) or part.kind == COLUMN:
        for name in ("C", "alpha", "shards", "form", "seed"):
            is_set = getattr(part, name) != type(part).model_fields[name].default
            _check_effect(name, is_set, f"partition={part.kind}")
        if part.kind == COLUMN:
            return _build_column_partition(data)
        return load_partition(Path(part.kind).expanduser(), data.train.y)
    if part.kind.startswith(f"{PYTHON}:"):  # an object of a Python program
        divided = load_user_function("partition", part.kind)(data.train.y)
        return partition.collect_partition(divided, data.train.y, part.kind)
    if part.kind not in SCHEMES:
        if find_target("partition", part.kind) is None:
            raise UnknownName("partition", part.kind, [*SCHEMES, COLUMN, *list_registered_names("partition")])
        return _build_user_partition(spec, data)
    if data.train.target != "classes" and part.kind != "iid":
        hint = "Use partition=iid, client=COLUMN of a table, or a partition file."
        raise InputError(f"partition={part.kind} divides classes", value=f"target={data.train.target}", hint=hint)
    settings = {**part.model_dump(), "seed": spec.seed if part.seed is None else part.seed}
    known = {name: value for name, value in settings.items() if name in list_settings(part.kind)}
    for name in ("C", "alpha", "shards", "form"):
        is_set = getattr(part, name) != type(part).model_fields[name].default
        _check_effect(name, is_set and name not in known, f"partition={part.kind}")
    labels = data.train.y if data.train.target == "classes" else np.zeros(len(data.train), dtype=np.int64)
    return draw_partition(part.kind, labels, **known)


def _build_user_partition(spec: Spec, data: DataSet) -> Partition:
    """Call a partition of the user. It returns the client of each sample, or the positions of each client."""
    part, N = spec.partition, len(data.train)
    seed = spec.seed if part.seed is None else part.seed
    values = {"labels": data.train.y, "N": N, "M": part.M, "C": part.C, "alpha": part.alpha, "seed": seed}
    found = build_part("partition", part.kind, {**values, "data": data.train})
    what = f"partition {part.kind} must return the client of each sample, or the positions of each client"
    try:
        if len(found) == N and np.ndim(found[0]) == 0:
            owner = np.asarray(found, dtype=np.int64)
        else:
            owner = np.full(N, -1, dtype=np.int64)
            for m, positions in enumerate(np.asarray(each, dtype=np.int64) for each in found):
                if np.any(positions < 0) or np.any(owner[positions] >= 0):
                    raise ValueError(f"client {m} has samples of another client, or positions below 0")
                owner[positions] = m
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(what, value=str(error).splitlines()[0]) from None
    wrong = np.flatnonzero((owner < 0) | (owner >= part.M))
    if len(wrong):
        value = f"client {owner[wrong[0]]} for sample {wrong[0]}"  # -1 for a sample that no client has
        raise InputError(what, value=value, limit=f"clients 0 to {part.M - 1}, and each of the {N} samples once")
    divided = partition.build_partition(owner, part.M, data.train.y, part.kind, {})
    partition.check_no_empty_client(divided)
    return divided


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


def _check_effect(key: str, is_idle: bool, setting: str, hint: str = "") -> None:
    """Refuse a key that has no effect: with it, equal runs would have different names.

    This is checked when a run is built, not when a spec is read, so that older records can still be read.
    """
    if is_idle:
        raise InputError(f"{key} has no effect with {setting}", hint=hint or f"Remove {key}.")


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
        model: A module, or a function that makes one, instead of the name in the spec.

    Returns:
        The objective, and the samples that are kept for validation.
    """
    dtype, step = get_dtype(spec.model.dtype), spec.optimiser
    _check_effect("batch", step.draw == "full" and step.batch != type(step).model_fields["batch"].default, "draw=full")
    _check_effect("drop_last", step.drop_last and step.draw != "passes", f"draw={step.draw}")
    check_target(spec.model.loss, data.train.target)
    chosen = spec.model.name if model is None else model
    plan = get_model_spec(chosen, data.train.inputs, data.train.outputs, spec.model.cut)
    holdings, validation = split_validation(partition.indices, spec.data.validation, spec.seed)
    images = to_device(data.train, dtype, get_device(device))
    augmentation = data.augmentation if spec.data.augment else None
    batches = Batches(step.batch, step.draw, step.drop_last)
    return Network(plan, images, holdings, batches, augmentation, get_loss(spec.model.loss), dtype), validation


def get_engine_name(spec: Spec, network: Network) -> str:
    """Return the engine that runs the spec: reference or fast."""
    return _choose_engine(spec, network.model_spec, network.device.type, network.images)[0]


def _choose_engine(spec: Spec, model_spec: NetworkSpec, device: str, samples: Any) -> tuple[str, str]:
    obstacle, model = find_fast_engine_obstacle(spec.optimiser), spec.model
    return select.resolve_engine(
        spec.engine,
        model_spec,
        dtype=model.dtype,
        loss=model.loss,
        device=device,
        samples=samples,
        obstacle=obstacle,
    )


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
    check_optimiser(spec)
    step, M = build_step(spec.optimiser), len(partition.clients)
    sizes = [len(samples) for samples in network.holdings] if spec.weighted else None
    ends = network.model_spec.layout(network.dtype).ends
    has_no_cut = spec.placement == "whole" and len(ends) == 2  # a model of one layer can be trained as a whole
    cut = cut or FlatCut(ends[1] if has_no_cut else ends[find_cut_index(network.model_spec, spec.model.cut)])
    steps = compute_local_steps(spec, network.holdings) if K is None else K
    settings = build_settings(spec, step, steps, M, cut, sizes)
    make = algorithm(spec.algorithm).make
    made = make(settings)
    for name, key, is_set, lacks in (
        ("gamma", "gamma", spec.gamma != 1, "has no global step"),
        ("sizes", "weighted", spec.weighted, "does not weight clients by their samples"),
    ):
        if is_set and not hasattr(made, name):
            raise InputError(f"{spec.algorithm} {lacks}", hint=f"Remove {key}, or use fedavg.")
    _check_effect("K", isinstance(spec.tau, tuple) and type(spec).model_fields["K"].default != spec.K, "a list tau")
    _check_effect("output_decay", spec.output == "last" and spec.output_decay != 0, "output=last")
    for key in ("G", "prox", "server_momentum", "server_beta2", "server_epsilon"):
        is_set = getattr(spec, key) != type(spec).model_fields[key].default
        _check_effect(key, is_set and not hasattr(made, key), f"algorithm={spec.algorithm}")
    S = spec.S or M
    if hasattr(made, "G") and spec.G > S:  # the last groups would have no client in any round
        raise OutOfRange("number of groups G", limit=f"1 <= G <= {S} clients a round", value=spec.G)
    if spec.output == "average" and hasattr(made, "own_model"):
        hint = "Use output=last."
        raise InputError(f"clients of {spec.algorithm} keep own halves, so there is no model to average", hint=hint)
    schedule = build_schedule(spec.optimiser)
    if not schedule.is_constant:
        made = Scheduled(lambda step: make(replace(settings, step=step)), step, schedule)
    if step.rule.memory != "reset":
        made = Remembered(made, step.rule, step.momentum)
    return Averaged(made, spec.output_decay) if spec.output == "average" else made


def compute_local_steps(spec: Spec, holdings: Holdings) -> LocalSteps:
    """Return K, or the steps of each client: from a list, in proportion to its samples, or for K passes over them."""
    if spec.tau == "same":
        return spec.K
    if isinstance(spec.tau, tuple):
        if len(spec.tau) != len(holdings):  # the data may decide the number of clients
            limit = f"{len(holdings)} numbers, one for each client"
            raise InputError("tau has the steps of another number of clients", value=len(spec.tau), limit=limit)
        return spec.tau
    sizes = [len(samples) for samples in holdings]
    if spec.tau == "epochs":
        return [count_local_steps(spec, n) for n in sizes]
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
    if spec.order in makers:
        return SubsetOrder(makers[spec.order](), partition.clients)
    if find_target("order", spec.order) is None:
        raise UnknownName("order", spec.order, [*ORDERS, *list_registered_names("order")])
    order = build_part("order", spec.order, {"M": M, "S": S, "seed": seed})
    if not callable(order):
        hint = "An order is a class with a method __call__(self, r), or a function that returns a function of r."
        raise InputError(f"order {spec.order} is no function of r", value=type(order).__name__, hint=hint)
    return SubsetOrder(UserOrder(spec.order, order, M), partition.clients)
