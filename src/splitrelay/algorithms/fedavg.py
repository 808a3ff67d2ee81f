"""Federated Averaging. Over a cut model it is SplitFed V1: the same class, another placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Step, Visit, globally, occurrences, tau
from splitrelay.vectors import Mean, Scalar, X

Sizes = Sequence[Scalar] | Mapping[int, Scalar]


@dataclass(frozen=True)
class FedAvg(Generic[X]):
    """Algorithm 2 of the paper. Clients train copies of x^r in parallel; the server averages what they return.

    Full participation, S of M without replacement, or with: the order decides. A client drawn twice trains twice, on
    other batches, and counts twice. sizes = None averages unweighted, as the paper does; else n_m weighs client m.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 2:
        client 1:  2 -> 2 - 3/2 = 1/2 -> 1/2 - 3/4 = -1/4
        client 2:  2 -> 2 - 1/2 = 3/2 -> 3/2 - 1/4 = 5/4
    so x^1 = (-1/4 + 5/4)/2 = 1/2; with sizes 3 and 1 it is (3(-1/4) + 5/4)/4 = 1/8; with gamma = 2 it is
    2 + 2(1/2 - 2) = -1.
    """

    step: Step[X]
    K: LocalSteps
    gamma: Scalar = 1
    sizes: Sizes | None = None

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        visits = [Visit(r, i, m, x, self.step, tau(self.K, m)) for i, m in occurrences(order)]  # x_m^(r,0) = x^r
        mean: Mean[X] = Mean()
        for m, outcome in zip(order, clients.run_all(visits), strict=True):  # in parallel
            if isinstance(outcome, Done):  # the skipped stay out
                mean.add(outcome.x, None if self.sizes is None else self.sizes[m])
        return globally(self.gamma, x, mean.otherwise(x))  # x^{r+1} = (1/M) sum x_m^(r,K)

    def model(self, x: X, /) -> X:
        return x
