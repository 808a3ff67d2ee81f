"""Federated Averaging.

Communication-Efficient Learning of Deep Networks from Decentralized Data
    Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Aguera y Arcas. AISTATS 2017.
    https://arxiv.org/abs/1602.05629

With a cut model it is SplitFed V1: the same class with another placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Sizes, Step, Visit, enumerate_visits, global_step, tau
from splitrelay.vectors import Mean, Scalar, X


@dataclass(frozen=True)
class FedAvg(Generic[X]):
    """Algorithm 2 of the paper. The clients train copies of x^r in parallel, and the server averages their results.

    The order decides about the participation: all clients, S of M without replacement, or S with replacement. A client
    that occurs twice trains twice on different batches and counts twice.

    Attributes:
        gamma: The size of the global step.
        sizes: The weights n_m of the clients in the average. None gives an unweighted average, as in the paper.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 2:
        client 1:  2 -> 2 - 3/2 = 1/2 -> 1/2 - 3/4 = -1/4
        client 2:  2 -> 2 - 1/2 = 3/2 -> 3/2 - 1/4 = 5/4
    so x^1 = (-1/4 + 5/4)/2 = 1/2; with sizes 3 and 1 it is (3(-1/4) + 5/4)/4 = 1/8; with gamma = 2 it is
    2 + 2(1/2 - 2) = -1. With K = 1 the mean of both clients is x/2, so x^1 = 1 and x^2 = 1/2.
    """

    step: Step[X]
    K: LocalSteps
    gamma: Scalar = 1
    sizes: Sizes | None = None

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        visits = [Visit(r, i, m, x, self.step, tau(self.K, m)) for i, m in enumerate_visits(order)]  # x_m^(r,0) = x^r
        mean: Mean[X] = Mean()
        for m, outcome in zip(order, clients.run_all(visits), strict=True):  # in parallel
            if isinstance(outcome, Done):  # skipped clients do not count
                mean.add(outcome.x, None if self.sizes is None else self.sizes[m])
        return global_step(self.gamma, x, mean.value(default=x))  # x^{r+1} = (1/M) sum x_m^(r,K)

    def model(self, x: X, /) -> X:
        return x
