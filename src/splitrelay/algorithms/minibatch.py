"""Minibatch SGD, the baseline of the paper. In the worst case it is better than SSL and FedAvg.

Optimal Distributed Online Prediction Using Mini-Batches
    Ofer Dekel, Ran Gilad-Bachrach, Ohad Shamir, Lin Xiao. JMLR 13, 2012.
    https://arxiv.org/abs/1012.1367
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, LocalSteps, Step, tau
from splitrelay.algorithms.fedavg import FedAvg
from splitrelay.vectors import X


@dataclass(frozen=True)
class MinibatchSGD(Generic[X]):
    """One step per round with the mean of K stochastic gradients of every client in the order, all at x^r.

    The mean of x - eta g over all gradients g is x - eta mean(g). So each gradient is a visit of one step, and the
    average is that of FedAvg with K = 1.

    By hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 2: the four gradients at 2 are 3, 3, 1, 1. Their
    mean is 2, so x^1 = 2 - 1 = 1. (FedAvg gives 1/2.)
    """

    step: Step[X]
    K: LocalSteps

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        gradients = [m for m in order for _ in range(tau(self.K, m))]
        return FedAvg(self.step, K=1).round(r, x, gradients, clients)

    def model(self, x: X, /) -> X:
        return x
