"""No local step makes the host wait for the device: losses, norms and clipping stay there until the visit ends.

A deployed step waits only for what it sends.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from splitrelay.algorithms import Step, UpdateRule, Visit
from splitrelay.deploy import backend_torch
from splitrelay.deploy.backend import ClientContext
from splitrelay.deploy.deployed_run import DeployedRun
from splitrelay.deploy.handshake import build_terms
from splitrelay.deploy.server_visit import ServerVisits, to_arrays
from splitrelay.engine.base import split_visit, train_client_half
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.runs import build
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec
from tests.support.deployment import small_spec
from tests.support.engines import make_network

# What copies a number from the device to the host. Some of them on the CPU skip the dispatcher, so both modes watch.
OPERATIONS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item", "masked_select")
METHODS = ("tolist", "item", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__", "__array__")


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in OPERATIONS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in METHODS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def count_waits(engine: WholeEngine | SplitEngine, step: Step[torch.Tensor], K: int) -> int:
    """Count the copies to the host during a whole visit."""
    x = engine.network.model_spec.x0(7)
    with Dispatched() as dispatched, Called() as called:
        engine.run(Visit(0, 0, 0, x, step, K))
    return len(dispatched.found) + len(called.found)


@pytest.mark.parametrize("rule", [UpdateRule(), UpdateRule("adamw"), UpdateRule("adagrad")], ids=lambda rule: rule.kind)
@pytest.mark.parametrize("kind", [WholeEngine, SplitEngine])
def test_the_number_of_waits_does_not_depend_on_the_number_of_steps(kind: Any, rule: UpdateRule) -> None:
    momentum = 0.9 if rule.kind == "sgd" else 0.0
    step = Step[torch.Tensor](0.01, 1e-3, clip=0.1, momentum=momentum, prox=0.1, rule=rule)
    engine = kind(make_network(), 5)
    assert 0 < count_waits(engine, step, 2) == count_waits(engine, step, 9) < 5


# Deployed runs. No GPU is here, so torch's device `meta` stands for one: its tensors have no values. As on a GPU, no
# operation but a copy may have tensors of both devices. Copies to the host give ones and are counted.
DEVICE = "meta"


class CopiedToHost(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        assert name == "copy_" or len({tensor.device for tensor in tensors}) <= 1, name
        if name == "_to_copy" and args[0].device.type == DEVICE and kwargs.get("device") == torch.device("cpu"):
            self.found.append(name)
            return torch.ones_like(args[0], device="cpu", dtype=kwargs.get("dtype"))
        if name == "_local_scalar_dense" and args[0].device.type == DEVICE:
            self.found.append(name)
            return args[0].dtype == torch.bool or 1.0
        if name == "index" and args[0].device.type == DEVICE and args[1][0].dtype == torch.bool:
            return args[0]  # all are true
        if name == "bincount" and args[0].device.type == DEVICE:
            return args[0].new_empty(args[2])
        return func(*args, **kwargs)


class Ends:
    """Both ends of a deployed run, on the device that stands for a GPU."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.spec: Spec = small_spec(folder, "engine=reference", *words)
        self.data = build.load_data(self.spec.data)
        train = self.data.train
        self.context = ClientContext(0, self.spec, build_terms(self.spec, self.data), train, device=DEVICE)
        self.client = backend_torch.Client(self.context)
        self.server_visits = ServerVisits(
            self.spec, self.client.shape, train.inputs, train.outputs, self.spec.optimiser.batch, device=DEVICE
        )
        self.server: Any = self.server_visits.engine()

    def make_visit(self, step: Step[torch.Tensor], K: int) -> Visit[torch.Tensor]:
        """Return a visit of the whole model, with SCAFFOLD's shift. Its vectors are on the host."""
        x = torch.ones(self.client.shape.size)
        return Visit(0, 0, 0, x, replace(step, shift=x), K)

    def train(self, step: Step[torch.Tensor], K: int) -> int:
        """Make a visit over the cut, and count the copies to the host."""
        low, high = map(to_arrays, split_visit(self.make_visit(step, K), self.client.shape.boundary))
        with CopiedToHost() as copied:
            train_client_half(self.client.begin(low), self.server.begin(high), K)
            assert self.client.get_x(low).shape == low.x.shape
            assert self.server.get_x().shape == high.x.shape
        return len(copied.found)


@pytest.mark.parametrize(("clip", "copies"), [(None, 4), (0.1, 6)])
def test_a_deployed_step_copies_only_its_messages_to_the_host(clip: float | None, copies: int, tmp_path: Path) -> None:
    """Smashed data, labels, the gradient at the cut and the loss; with clipping the norms of both halves."""
    ends = Ends(tmp_path, "model=lenet-small", "cut=pool1")
    step = Step[torch.Tensor](0.01, 1e-3, clip=clip, momentum=0.9, prox=0.1)
    assert ends.train(step, 5) - ends.train(step, 2) == 3 * copies


def test_a_deployed_visit_of_the_whole_model_copies_nothing_to_the_host_between_its_steps(tmp_path: Path) -> None:
    ends = Ends(tmp_path, "model=lenet-small", "placement=whole")
    step = Step[torch.Tensor](0.01, 1e-3, clip=0.1, prox=0.1)

    def count(K: int) -> int:
        with CopiedToHost() as copied:
            ends.client.train_whole(to_arrays(ends.make_visit(step, K)))
        return len(copied.found)

    assert 0 < count(2) == count(9) < 5


@pytest.mark.parametrize("words", ["placement=cut", "placement=whole"])
def test_the_server_and_the_evaluator_of_a_deployed_run_compute_on_its_device(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DEVICES", (DEVICE,))
    ends = Ends(tmp_path, words, "K=2")
    clients: Any = SimpleNamespace(server_visits=ends.server_visits, journal=None, disputes=None, handover=None)
    sizes = dict.fromkeys(range(ends.spec.partition.M), 40)
    spec = ends.spec.model_copy(update={"metrics": ("f1",)})
    tests = backend_torch.TestSet(replace(ends.context, spec=spec), ends.data.test)
    with CopiedToHost() as copied:
        directory = RunDirectory(tmp_path / "run")
        run = DeployedRun(ends.spec, directory, ends.data, lambda *_: clients, sizes, evaluator=0)
        assert run.trainer.network.device.type == DEVICE
        assert run.examiner is not None
        assert run.examiner.start[1].device.type == "cpu"  # x before the first round
        found = len(copied.found)
        assert run.examiner.visits.get_lifetime(ends.make_visit(Step(0.01, prox=0.1), 2), 2) == 2
        assert len(copied.found) > found
        smashed = list(tests.compute_smashed(np.ones(ends.client.shape.boundary, np.float32)))
        high = np.ones(ends.client.shape.size - ends.client.shape.boundary, np.float32)
        score = tests.compute_score([ends.server.predict(high, h) for h in smashed])
    assert score.accuracy == 1.0 and len(score.metrics) == 1
