"""`sr.fit`: train a model on data of several clients, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from splitrelay.api.inputs import make_data
from splitrelay.api.objects import is_ready_algorithm, name_algorithm, name_metrics, name_object, name_order, name_part
from splitrelay.api.partitions import SCHEMES, divide, list_scheme_settings, names_clients
from splitrelay.api.progress import show_progress
from splitrelay.api.runs import Run
from splitrelay.api.task import build_module
from splitrelay.data.images import DataSet
from splitrelay.engine.torch_threads import limit_torch_threads
from splitrelay.errors import InputError
from splitrelay.models.weights_io import load_weights
from splitrelay.objectives.losses import TARGET_LOSSES
from splitrelay.runs.build import resolve_spec
from splitrelay.runs.execute import build_trainer, execute, keep_threads
from splitrelay.runs.run_directory import RunDirectory, build_row
from splitrelay.runs.spec import Spec, make_spec
from splitrelay.runs.trainer import Trainer

ALGORITHM_KEYS = (  # keys without effect if the algorithm is an object
    "eta", "eta_server", "K", "tau", "momentum", "nesterov", "clip", "per_half", "weight_decay", "optimiser", "beta1",
    "beta2", "epsilon", "state", "schedule", "warmup", "period", "factor", "gamma", "weighted", "G", "prox",
    "server_momentum", "server_beta2", "server_epsilon",
)  # fmt: skip


def fit(
    net: Any,
    X: Any,
    y: Any = None,
    *,
    clients: Any = None,
    partition: Any = None,
    test: Any = None,
    cut: str | int | None = None,
    algorithm: Any = "ssl",
    order: Any = None,
    loss: Any = None,
    metrics: Sequence[Any] | Callable[..., float] | str = (),
    out: str | Path | None = None,
    device: str = "cpu",
    workers: int = 1,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Train a model that is cut in two, on the data of several clients.

    Args:
        net: A module (training starts at its weights), a function that returns one, `sr.Stages`, `module:function`, or
            the name of a built-in model.
        X: Features: an array, a tensor, a tuple of arrays for several inputs, a data frame, a data set of torch
            or Hugging Face, a file, or the name of a known data set.
        y: Targets, unless X contains them.
        clients: The client of each sample, for example the ward of each patient. With a data frame or a file also the
            name of a column.
        partition: How samples are divided if `clients` is not given: `sr.ExDir(...)`, `sr.IID(...)`, a `Partition`, a
            function of y, a file (.npz), or the name of a scheme with its settings (M, C, alpha, ...). Without both,
            all samples belong to one client.
        test: A pair (X, y), or the share of samples to hold out. The default is 0.2.
        cut: The last layer of the client half. The default is the first possible cut.
        algorithm: The name of an algorithm, or an algorithm object, which then decides eta and K.
        order: The name of an order, a function of the round that returns its clients, or one list for every round.
        loss: The name of a loss, or a function (outputs, targets). The default follows from the targets.
        metrics: Names of metrics, or functions (outputs, targets).
        out: A run directory. The same call continues a run that was stopped.
        device: The torch device.
        workers: Clients that train at the same time, where the algorithm allows it.
        progress: Whether to show a progress bar. The default is to show it to a person.
        settings: Any other key of a spec: K, eta, R, S, batch, clip, momentum, seed, label, target, ... `schedule` can
            be a function of the round that returns a factor of eta.

    Returns:
        The run: `run.model`, `run.metrics`, `run.frame()`, `run.plot()`.

    Raises:
        InputError: An argument is not possible. Nothing is written.
        Diverged: A loss or weight became infinite or NaN.

    Example:
        >>> import numpy as np
        >>> from torch import nn
        >>> X = np.random.RandomState(0).randn(200, 4)
        >>> ward = np.arange(200) % 4
        >>> net = lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> run = fit(net, X, (X.sum(axis=1) > 0).astype(int), clients=ward, R=20, eta=0.1, metrics=["auroc"])
        >>> run.metrics["auroc"] > 0.9
        True
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise InputError("workers must be a whole number", value=workers, limit="workers >= 1")
    if out is not None and not isinstance(out, str | Path):
        raise InputError("out must be a path", value=out)
    if y is not None and clients is None and names_clients(partition, len(y)):
        clients, partition = partition, None
    data, keys = make_data(X, y, clients, test, settings)
    if data is not None:
        keys["data"] = name_object(data.train, lambda: data, name="data")
        keys |= _make_partition_keys(data, clients, partition, settings)
        keys.setdefault("loss", TARGET_LOSSES[data.train.target][0])
        if data.train.target != "classes":
            keys["target"] = data.train.target
    elif partition is not None:
        keys |= list_scheme_settings(partition) if isinstance(partition, SCHEMES) else {"partition": partition}
    if isinstance(loss, type):
        raise InputError("a class is no loss", value=loss.__name__, hint=f"Give an object: {loss.__name__}().")
    named = {"model": net, "loss": loss, "schedule": keys.pop("schedule", None)}
    keys |= {key: name_part(each) for key, each in named.items() if each is not None}
    if is_ready_algorithm(algorithm):
        _check_no_algorithm_keys(keys)
    keys |= {"algorithm": name_algorithm(algorithm), "metrics": name_metrics(metrics)}
    if order is not None:
        keys["order"] = name_order(order)
    spec = make_spec(**keys, **({} if cut is None else {"cut": cut}))
    if out is None:
        return _train_in_memory(resolve_spec(spec, device)[0], device, workers, progress)
    directory = RunDirectory(Path(out).expanduser())
    spec, _ = resolve_spec(keep_threads(spec, directory), device)
    return _train_in_directory(spec, directory, device, workers, progress)


def _make_partition_keys(data: DataSet, clients: Any, partition: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the partition of data that are given as objects."""
    if clients is not None and partition is not None:
        raise InputError("clients and partition are both given", hint="Remove one of them.")
    owners = getattr(data.train, "clients", None)
    if owners is not None and partition is None:
        return {"partition": "column", "M": len(set(owners.tolist()))}
    if partition is None:
        return {"partition": "iid", "M": settings.get("M", 1)}
    if isinstance(partition, str | Path):
        return {"partition": str(partition)}
    if isinstance(partition, SCHEMES):
        return list_scheme_settings(partition)
    divided = divide(partition, data.train.y, seed=0)
    return {"partition": name_object(divided.indices, lambda y: divided, name="partition"), "M": divided.M}


def _check_no_algorithm_keys(keys: Mapping[str, Any]) -> None:
    """Raise InputError for settings without effect, because an algorithm object has its own step and K."""
    idle = [key for key in ALGORITHM_KEYS if keys.get(key) is not None]
    if idle:
        hint = "Remove them, or give them to the object: sr.SSL(sr.Step(eta=0.1), K=5)."
        raise InputError("the algorithm is an object with settings of its own", value=", ".join(idle), hint=hint)


def _train_in_memory(spec: Spec, device: str, workers: int, progress: bool | None) -> Run:
    trainer, _ = build_trainer(spec, device=device, workers=workers)
    _check_evaluation(trainer)
    rows: list[dict[str, Any]] = []
    last: list[Any] = []

    def train() -> Iterator[Mapping[str, Any]]:
        for evaluation, state in trainer.run(spec.R, spec.every):
            last[:] = [state]
            yield build_row(evaluation)

    for row in show_progress(train(), spec.R, progress):
        rows.append(dict(row))
    x = trainer.algorithm.model(last[0])
    return Run(spec, rows, x, None, build_module(trainer, x))


def _train_in_directory(spec: Spec, directory: RunDirectory, device: str, workers: int, progress: bool | None) -> Run:
    trainer, _ = build_trainer(spec, device=device)
    if not directory.spec.exists():
        _check_evaluation(trainer)  # before anything is written
    steps = execute(spec, directory, device=device, workers=workers)
    rows = [dict(row) for row in show_progress((step.row for step in steps), spec.R, progress)]
    x = load_weights(directory.model, trainer.model_spec.layout(trainer.network.dtype))
    return Run(spec, rows, x, directory.path, build_module(trainer, x))


def _check_evaluation(trainer: Trainer) -> None:
    """Raise InputError if the initial model cannot be evaluated: its outputs or a metric do not fit the targets."""
    try:
        with limit_torch_threads():
            trainer.evaluator.score(trainer.x0())
    except (IndexError, RuntimeError) as error:
        what = f"the outputs of model {trainer.model_spec.name} do not fit the targets"
        value, is_real = str(error).splitlines()[0], trainer.network.images.target == "real"
        hint = "These targets are real numbers. If they are classes, set target='classes'." if is_real else None
        raise InputError(what, value=value, limit="an output for each class or target", hint=hint) from error
