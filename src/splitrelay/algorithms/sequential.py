"""Sequential Split Learning (SSL) and random reshuffling.

Distributed Learning of Deep Neural Network over Multiple Agents
    Otkrist Gupta, Ramesh Raskar. Journal of Network and Computer Applications 116, 2018.
    https://arxiv.org/abs/1810.06060
Random Reshuffling: Simple Analysis with Vast Improvements
    Konstantin Mishchenko, Ahmed Khaled, Peter Richtarik. NeurIPS 2020.
    https://arxiv.org/abs/2006.05988
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Step, Visit, enumerate_visits, global_step, tau
from splitrelay.vectors import Scalar, X


@dataclass(frozen=True)
class SSL(Generic[X]):
    """Algorithm 1 of the paper. The clients train one after another, and each starts at the result of the previous one.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, so the gradients are x + 1 and x - 1; x0 = 2, eta = 1/2, K = 2,
    order (1, 2):
        client 1:  2 -> 2 - 3/2 = 1/2 -> 1/2 - 3/4 = -1/4
        client 2:  -1/4 -> -1/4 + 5/8 = 3/8 -> 3/8 + 5/16 = 11/16
    so x^1 = 11/16; with gamma = 2 it is 2 + 2(11/16 - 2) = -5/8; with tau = (2, 1) client 2 stops at 3/8.
    (FedAvg gives the mean of -1/4 and 2 -> 3/2 -> 5/4, which is 1/2.)
    """

    step: Step[X]
    K: LocalSteps
    gamma: Scalar = 1

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        x_m = x  # x_1^(r,0) = x^r
        for i, m in enumerate_visits(order):  # pi_1, ..., pi_M, in sequence
            outcome = clients.run(Visit(r, i, m, x_m, self.step, tau(self.K, m)))
            if isinstance(outcome, Done):  # a skipped client does not change x
                x_m = outcome.x  # x_{m+1}^(r,0) = x_m^(r,K)
        return global_step(self.gamma, x, x_m)  # x^{r+1} = x_M^(r,K)

    def model(self, x: X, /) -> X:
        return x


@dataclass(frozen=True)
class RandomReshuffling(Generic[X]):
    """One gradient step on each F_m in turn: SSL with K = 1. The usual definition of the method uses full gradients.

    A round by hand on the problem of SSL, order (2, 1):
        client 2:  2 -> 2 - (2 - 1)/2 = 3/2
        client 1:  3/2 -> 3/2 - (3/2 + 1)/2 = 1/4
    so x^1 = 1/4. (FedAvg with K = 1 gives the mean of 3/2 and 2 - 3/2 = 1/2, which is 1.)
    """

    step: Step[X]

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        return SSL(self.step, K=1).round(r, x, order, clients)

    def model(self, x: X, /) -> X:
        return x
