"""Many seeds in one array: each slice of x goes its own way through the clients, to the bit as if it were alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms import Done, Outcome, Visit
from splitrelay.engine import take_local_steps
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.randomness import Purpose, rng

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SeedsBeside:
    """The clients of scalar quadratics, for x of shape (seeds, ...).

    To the algorithm every order is 0, ..., M - 1; the j-th visit of round r goes, for each seed, to the client that
    stands j-th in that seed's own order: orders[r, j], one for each seed.
    """

    objective: ScalarQuadratics
    seeds: Sequence[int]
    orders: npt.NDArray[np.intp]  # of shape (R, M, seeds)

    def order(self, r: int) -> range:
        """All places of the order, in their order."""
        return range(self.objective.M)

    def run(self, visit: Visit[Array], /) -> Outcome[Array]:
        """K local steps of every seed's own client."""
        ms = self.orders[visit.r, visit.m]
        h, a = np.asarray(self.objective.h)[ms], np.asarray(self.objective.a)[ms]

        def gradient(_: int, x: Array, xi: Array | None) -> Array:
            exact: Array = h * x + a
            return exact if xi is None else exact + xi

        return Done(take_local_steps(visit, self._noises(visit, ms), gradient))

    def run_all(self, visits: Iterable[Visit[Array]], /) -> Iterator[Outcome[Array]]:
        """One after another."""
        return map(self.run, visits)

    def _noises(self, visit: Visit[Array], ms: npt.NDArray[np.intp]) -> Sequence[Any]:
        """K samples xi, each seed's own, by the name that a single run would give them."""
        if self.objective.sigma2 == 0:
            return [None] * visit.K
        names = [partial(rng, seed, Purpose.BATCHES, visit.r, int(m)) for seed, m in zip(self.seeds, ms, strict=True)]
        drawn = [
            self.objective.draw(int(m), visit.K, partial(name, visit.i)) for name, m in zip(names, ms, strict=True)
        ]
        return list(np.array(drawn, dtype=float).T.reshape(visit.K, -1, *[1] * (visit.x.ndim - 1)))
