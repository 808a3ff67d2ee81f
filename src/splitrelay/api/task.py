"""`sr.SplitTask`: a cut model, data and clients, for your own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from splitrelay.algorithms.base import Clients, Done, Visit
from splitrelay.api.inputs import make_data
from splitrelay.api.objects import name_metrics, name_part
from splitrelay.api.partitions import divide, names_clients
from splitrelay.data.partition import Partition
from splitrelay.engine.base import Engine
from splitrelay.engine.thread_pool import Pool
from splitrelay.engine.torch_threads import limit_torch_threads
from splitrelay.errors import InputError
from splitrelay.models import find_cut_index
from splitrelay.models.layout import FlatCut
from splitrelay.objectives.losses import TARGET_LOSSES
from splitrelay.runs.build import build_engine, build_partition, choose_threads, get_engine_name, load_data
from splitrelay.runs.spec import Spec, make_spec
from splitrelay.runs.trainer import Trainer


class SplitTask:
    """A model that is cut in two, its data, and their division among clients.

    It provides what `sr.train` needs: the start `x0`, the `clients`, and the evaluation of x.

    Args:
        net: A module, a function that returns one, `sr.Stages`, or the name of a built-in model.
        cut: The last layer of the client half. The default is the first possible cut.
        data: A pair (X, y), a data set of torch, a data frame with `label=`, or the name of a known data set.
        test: A pair (X, y), or the share of samples to hold out. The default is 0.2.
        partition: `sr.ExDir(...)`, `sr.IID(...)`, a `Partition`, a function of y, the client of each sample, a file
            (.npz), or the name of a scheme with its settings (M, C, alpha, ...).
        loss: The name of a loss, or a function (outputs, targets). The default follows from the targets.
        metrics: Names of metrics, or functions (outputs, targets).
        device: The torch device.
        settings: Any other key of a spec that concerns local steps: batch, draw, placement, engine, threads, dtype,
            seed, ... `threads=0` measures whether several torch threads are faster.

    Example:
        >>> from splitrelay import ExDir
        >>> task = SplitTask("lenet-small", data="digits", partition=ExDir(M=5, C=2))
        >>> task.M, task.x0(seed=1).shape == task.x0(seed=2).shape
        (5, True)
    """

    def __init__(
        self,
        net: Any,
        *,
        cut: str | int | None = None,
        data: Any,
        test: Any = None,
        partition: Any,
        loss: Any = None,
        metrics: Sequence[Any] | Callable[..., float] | str = (),
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        X, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        samples, keys = make_data(X, y, None, test, settings)
        if y is not None and samples is not None and len(samples.train) < len(y) and names_clients(partition, len(y)):
            samples, keys = make_data(X, y, partition, test, settings)  # hold out evenly over the clients
            partition = None
        self.data = samples or load_data(make_spec(**keys).data)
        keys = {"seed": 0, **keys}
        self.partition = self._divide(partition, keys)
        names = {"model": net, "loss": loss or TARGET_LOSSES[self.data.train.target][0]}
        chosen: dict[str, Any] = {key: name_part(part) for key, part in names.items()}
        chosen["metrics"] = name_metrics(metrics)
        chosen |= {"M": self.partition.M} | ({} if cut is None else {"cut": cut})
        self.spec: Spec = make_spec(**{**keys, **chosen})
        self._trainer = Trainer(self.spec, self.data, self.partition, device=device)
        if not self.spec.threads:
            self.spec = self.spec.model_copy(update={"threads": self._measure_threads()})

    def _divide(self, partition: Any, keys: Mapping[str, Any]) -> Partition:
        if isinstance(partition, str | Path):
            return build_partition(make_spec(**keys, partition=str(partition)), self.data)
        owners = getattr(self.data.train, "clients", None)
        if partition is None and owners is None:
            raise InputError("the partition is missing", hint="For example partition=sr.IID(M=5).")
        return divide(owners if partition is None else partition, self.data.train.y, keys["seed"])

    def _measure_threads(self) -> int:
        network = self._trainer.network
        spec = self.spec.model_copy(update={"engine": get_engine_name(self.spec, network)})
        return choose_threads(spec, lambda: network)[0]

    @property
    def M(self) -> int:
        """The number of clients."""
        return self.partition.M

    @property
    def cut(self) -> FlatCut:
        """The cut of x, for algorithms that treat the halves differently."""
        network = self._trainer.network
        ends = network.model_spec.layout(network.dtype).ends
        return FlatCut(ends[find_cut_index(network.model_spec, self.spec.model.cut)])

    def x0(self, seed: int = 0) -> torch.Tensor:
        """Return the initial weights as one flat vector, drawn from a seed."""
        network = self._trainer.network
        return self._trainer.model_spec.x0(seed, network.dtype).to(network.device)

    def clients(self, seed: int = 0, workers: int = 1) -> Clients[torch.Tensor]:
        """Return the clients. Their batches and dropout masks are drawn from the seed.

        Args:
            seed: The seed.
            workers: Clients that train at the same time, where the algorithm allows it.
        """
        spec = self.spec.model_copy(update={"seed": seed})
        engines = [build_engine(spec, self._trainer.network) for _ in range(workers)]
        return Pool([_LimitedEngine(engine, spec.threads) for engine in engines])

    def evaluate(self, x: torch.Tensor) -> dict[str, float]:
        """Return loss, accuracy (unless the targets are real numbers) and metrics of x on the test set."""
        with limit_torch_threads():
            score = self._trainer.evaluator.score(x)
        accuracy = {} if score.accuracy != score.accuracy else {"accuracy": score.accuracy}
        return {"loss": score.loss, **accuracy, **score.metrics}

    def model(self, x: torch.Tensor) -> nn.Module:
        """Return a copy of the module with the weights x, in evaluation mode."""
        return build_module(self._trainer, x)

    def __repr__(self) -> str:
        cut = find_cut_index(self._trainer.model_spec, self.spec.model.cut)
        layers = self._trainer.model_spec.layers()
        sizes = f"{len(self.data.train)} samples, {self.M} clients"
        return f"<SplitTask {self._trainer.model_spec.name}, cut after {layers[cut - 1]}: {sizes}>"


class _LimitedEngine:
    """An engine that computes with the number of torch threads of the spec: the bits depend on this number."""

    def __init__(self, engine: Engine[torch.Tensor], threads: int) -> None:
        self.engine, self.threads = engine, threads

    def run(self, visit: Visit[torch.Tensor], /) -> Done[torch.Tensor]:
        """Take K local steps."""
        with limit_torch_threads(self.threads):
            return self.engine.run(visit)


def build_module(trainer: Trainer, x: torch.Tensor) -> nn.Module:
    """Return the user's module with the weights x, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # the initialization draws from torch's generator
        module = deepcopy(trainer.model_spec.build())
    weights = trainer.model_spec.layout(trainer.network.dtype).unpack(x.cpu())
    module.to(trainer.network.dtype)
    module.load_state_dict(weights, strict=False)
    return module.eval()
