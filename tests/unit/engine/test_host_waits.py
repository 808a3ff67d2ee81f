"""No local step makes the host wait for the device: losses, norms and clipping stay there until the visit ends."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from splitrelay.algorithms import Step, UpdateRule, Visit
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
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
