"""An average holds no model longer than it takes to add it, whatever the algorithm."""

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch

from splitrelay.algorithms import SFLG, FedAvg, FedSeq, MinibatchSGD, Scaffold, SplitFedV2, SplitFedV3, Step
from splitrelay.algorithms.base import Done, Visit
from splitrelay.models.layout import FlatCut
from splitrelay.testing import ArrayCut

STEP = Step[Any](0.1)
ORDER = range(20)


class Model(np.ndarray):
    """An array that can be watched."""


class Watched:
    """Clients that answer with models of their own, and note how many of those were ever alive at once."""

    def __init__(self) -> None:
        self.alive: WeakSet[Model] = WeakSet()
        self.most = 0

    def run(self, visit: Visit[Any]) -> Done[Any]:
        x = (visit.x + 1).view(Model)
        self.alive.add(x)
        self.most = max(self.most, len(self.alive))
        return Done(x)

    def run_all(self, visits: Iterable[Visit[Any]]) -> Iterator[Done[Any]]:
        return map(self.run, visits)


class Copied(ArrayCut):
    """Halves of their own, as FlatCut's are."""

    def halves(self, x: Any) -> tuple[Any, Any]:
        bottom, top = super().halves(np.array(x))
        return bottom.copy(), top.copy()


Model.__hash__ = object.__hash__  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        (FedAvg(STEP, 1), 4),
        (FedAvg(STEP, 1, sizes=list(ORDER)), 4),
        (MinibatchSGD(STEP, 3), 4),
        (Scaffold(STEP, 1, M=20), 4),
        (SplitFedV2(STEP, 1, ArrayCut(2)), 4),
        (SplitFedV3(STEP, 1, Copied(2)), 4),
        (SFLG(STEP, 1, ArrayCut(2), G=3), 3 + 4),  # each group is at a model of its own
        (FedSeq(STEP, 1, G=3), 3 + 4),
    ],
)
def test_models_are_added_as_they_come(algorithm: Any, most: int) -> None:
    clients = Watched()
    algorithm.round(0, algorithm.init(np.zeros(5)), ORDER, clients)
    assert clients.most <= most


def test_half_a_model_does_not_keep_the_other_half_alive() -> None:
    bottom, top = FlatCut(2).halves(torch.arange(1000.0))
    assert bottom.untyped_storage().nbytes() == 8 and top.untyped_storage().nbytes() == 3992
