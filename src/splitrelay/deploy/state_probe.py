"""Find the deposit that makes later visits overflow, with visits that the server makes on its own test images.

A deposit within the bound of `deposit_bound` can still ruin a run without clip: every visit that begins from it
overflows. The client whose visit fails is then not at fault, and the client that wrote the weights last may be innocent
too, because a client can make its own visit fail on purpose. The server decides between them with its test images:

- The *lifetime* of a state is the number of visits in a row that the server can make from it, up to LIFETIME.
- A state is *sound* if its lifetime is at least SOUND. If a visit fails that began from a sound state, its client is
  to blame.
- If the state is not sound, the server replays the deposits since the last checkpoint from the journal and searches for
  the one that ended the soundness. Its writer is at fault if the state before had the full LIFETIME.
- If the state before was already near its end, the run itself diverges: nobody is at fault. The run ends at the visit
  that failed, as a simulation would.

With clip no step is long enough to overflow, so the states that become checkpoints are not probed. Without clip a probe
costs SOUND visits in process per checkpoint, at most LIFETIME times the logarithm of the deposits if it finds a fault.

Nothing here changes a state or draws shared randomness: the bits of a run without such a deposit are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from splitrelay.algorithms.base import Algorithm, Done, Outcome, Skipped, Visit
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.deploy.deposit_bound import DepositOutOfBounds, check_move
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.server_visit import ServerVisits, to_arrays
from splitrelay.engine.base import split_visit
from splitrelay.engine.torch_engine import move_visit
from splitrelay.errors import Diverged, WorkError
from splitrelay.runs.build import build_engine, build_network
from splitrelay.runs.spec import Spec

SOUND = 3  # visits in a row after which a state counts as sound
LIFETIME = 8  # visits in a row that the state before a faulty deposit allows
IMAGES = 1000  # test images of a probe, at most


class SpoiledDeposit(WorkError):
    """A committed deposit from which no client can go on; the round is run again without it."""

    def __init__(self, visit: Visit[Any]) -> None:
        super().__init__(f"the deposit of client {visit.m} in round {visit.r} makes later visits overflow")
        self.visit = visit


@dataclass(frozen=True)
class Finding:
    """What a probe has found: whether the state is sound and, if it is not, whose deposit is at fault."""

    is_sound: bool
    fault: Visit[Any] | None = None


class TestSetVisits:
    """Visits of the server on its own test images: the same steps, batches and bounds as those of a client."""

    def __init__(self, spec: Spec, data: DataSet, server_visits: ServerVisits) -> None:
        count = len(data.test)
        chosen = np.unique(np.linspace(0, count - 1, min(count, IMAGES)).astype(np.int64))
        M = server_visits.spec.partition.M
        images = Partition((chosen,) * M, kind="probe")
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"validation": 0.0})})
        network, _ = build_network(spec, replace(data, train=data.test), images, device=server_visits.device)
        self.engine, self.server_visits, self.device = build_engine(spec, network), server_visits, network.device

    def get_lifetime(self, visit: Visit[torch.Tensor], most: int) -> int:
        """Count the visits in a row that can be made from the start of `visit`; stop at `most`."""
        for made in range(most):
            try:
                after = self._make(replace(visit, i=visit.i + made))
            except (Diverged, DepositOutOfBounds, ArithmeticError):
                return made
            visit = replace(visit, x=after)
        return most

    def _make(self, visit: Visit[torch.Tensor]) -> torch.Tensor:
        outcome = self.engine.run(move_visit(visit, self.device))
        if not isinstance(outcome, Done):
            raise WorkError("the server could not make a visit on its test images")
        x, boundary = outcome.x.cpu(), self.server_visits.shape.boundary
        halves = [visit] if self.server_visits.whole else split_visit(visit, boundary)
        ends = [x] if self.server_visits.whole else x.tensor_split([boundary])
        for start, end in zip(map(to_arrays, halves), ends, strict=True):
            check_move(start.x, end.numpy(), self.server_visits.limit(start), whose="a visit on test images")
        return x


class Examiner:
    """Decides which deposit since the last checkpoint is at fault, if one is."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        order: Callable[[int], Sequence[int]],
        journal: Journal,
        visits: TestSetVisits,
        start: tuple[int, Any],
    ) -> None:
        self.algorithm, self.order, self.journal, self.visits = algorithm, order, journal, visits
        self.start = start  # the last checkpoint: (round, state)

    def examine_visit(self, visit: Visit[Any]) -> Finding:
        """Examine the weights that a visit, which has failed, began from."""
        if self.visits.get_lifetime(visit, SOUND) >= SOUND:
            return Finding(is_sound=True)
        return Finding(is_sound=False, fault=self._find_fault(visit.r + 1))

    def examine_state(self, r: int, state: Any) -> Finding:
        """Examine the state after r rounds, before it becomes a checkpoint."""
        if self._get_lifetime(r, state, SOUND) >= SOUND:
            return Finding(is_sound=True)
        return Finding(is_sound=False, fault=self._find_fault(r))

    def _find_fault(self, end: int) -> Visit[Any] | None:
        """Find the deposit before round `end` after which the state is not sound although it was before.

        This is a binary search: the state at `low` is always sound, the one at `high` never.
        """
        deposits = self._replay(end, None)[1]

        def get_lifetime(count: int, most: int) -> int:
            return self._get_lifetime(end, self._replay(end, count)[0], most)

        low, high = 0, len(deposits)
        if get_lifetime(low, SOUND) < SOUND or get_lifetime(high, SOUND) >= SOUND:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if get_lifetime(middle, SOUND) < SOUND else (middle, high)
        return deposits[low] if get_lifetime(low, LIFETIME) >= LIFETIME else None

    def _replay(self, end: int, count: int | None) -> tuple[Any, list[Visit[Any]]]:
        """Return the state before round `end` after the first `count` journaled deposits, and these deposits."""
        deposits: list[Visit[Any]] = []

        def answer(visit: Visit[Any]) -> Outcome[Any]:
            found = None if len(deposits) == count else self.journal.find(visit)
            if not isinstance(found, Done):
                return Skipped("not replayed")
            deposits.append(visit)
            return found

        r, state = self.start
        for now in range(r, end):
            state = self.algorithm.round(now, state, self.order(now), FunctionClients(answer))
        return state, deposits

    def _get_lifetime(self, r: int, state: Any, most: int) -> int:
        """Return the lifetime of a state, from the first visit that round r would ask for."""
        asked: list[Visit[Any]] = []

        def answer(visit: Visit[Any]) -> Outcome[Any]:
            asked.append(visit)
            return Skipped("not made")

        self.algorithm.round(r, state, self.order(r), FunctionClients(answer))
        return self.visits.get_lifetime(asked[0], most) if asked else most


@dataclass(frozen=True)
class FunctionClients:
    """Clients whose visits are answered by a function, one by one (algorithms.base.Clients)."""

    answer: Callable[[Visit[Any]], Outcome[Any]]

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """Answer one visit."""
        return self.answer(visit)

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Answer all visits, in their order."""
        return iter([self.answer(visit) for visit in visits])
