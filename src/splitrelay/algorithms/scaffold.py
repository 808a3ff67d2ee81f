"""SCAFFOLD: FedAvg with a correction of each client's drift in every local step.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh.
    ICML 2020. https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Step, Visit, enumerate_visits, global_step, tau
from splitrelay.vectors import Mean, Scalar, X, zero_like


@dataclass(frozen=True)
class ScaffoldState(Generic[X]):
    """The model x, the server's control variate c, and c_m of every client that has trained (zero for all others)."""

    x: X
    c: X
    variates: Mapping[int, X]


@dataclass(frozen=True)
class Scaffold(Generic[X]):
    """Client m adds c - c_m to every local gradient. Then c_m becomes the mean of the gradients of its visit.

    Option II of the SCAFFOLD paper computes this mean without a second pass:
    c_m+ = c_m - c + (x^r - x_m^(r,K)) / (K eta). This holds for plain steps. With weight decay, clipping, momentum or
    a proximal term it is the mean of the corrected directions. c changes by the sum of all changes of c_m, divided by
    M. x changes as in FedAvg, by gamma times the mean change.

    Two rounds by hand, F_1 = x^2 + x, F_2 = -x, so the gradients are 2x + 1 and -1; x0 = 2, eta = 1/4, K = 2, M = 2.
    Round 0 equals FedAvg, because all variates are zero:
        client 1:  2 -> 2 - 5/4 = 3/4 -> 3/4 - 5/8 = 1/8        c_1 = (2 - 1/8) / (1/2) = 15/4
        client 2:  2 -> 2 + 1/4 = 9/4 -> 9/4 + 1/4 = 5/2        c_2 = (2 - 5/2) / (1/2) = -1
        x^1 = (1/8 + 5/2)/2 = 21/16,  c = (15/4 - 1)/2 = 11/8
    Round 1 adds c - c_1 = -19/8 and c - c_2 = 19/8 to the gradients:
        client 1:  21/16 -> 21/16 - (29/8 - 19/8)/4 = 1 -> 1 - (3 - 19/8)/4 = 27/32
        client 2:  21/16 -> 21/16 - (-1 + 19/8)/4 = 31/32 -> 31/32 - 11/32 = 5/8
        x^2 = (27/32 + 5/8)/2 = 47/64
    (FedAvg gives 113/128.)
    """

    step: Step[X]
    K: LocalSteps
    M: int
    gamma: Scalar = 1

    def init(self, x0: X, /) -> ScaffoldState[X]:
        return ScaffoldState(x0, zero_like(x0), {})

    def round(self, r: int, state: ScaffoldState[X], order: Sequence[int], clients: Clients[X], /) -> ScaffoldState[X]:
        x, c = state.x, state.c
        visits = [
            Visit(r, i, m, x, replace(self.step, shift=self._shift(state, m)), tau(self.K, m))
            for i, m in enumerate_visits(order)
        ]
        variates, mean = dict(state.variates), Mean[X]()
        for visit, outcome in zip(visits, clients.run_all(visits), strict=True):
            if isinstance(outcome, Done):
                c_m = (x - outcome.x) / (self.step.eta * visit.K) - self._shift(state, visit.m)  # c_m+
                c = c + (c_m - variates.get(visit.m, zero_like(x))) / self.M  # c remains the mean of all c_m
                variates[visit.m] = c_m
                mean.add(outcome.x)
        return ScaffoldState(global_step(self.gamma, x, mean.value(default=x)), c, variates)

    def model(self, state: ScaffoldState[X], /) -> X:
        return state.x

    def _shift(self, state: ScaffoldState[X], m: int) -> X:
        return state.c - state.variates.get(m, zero_like(state.x))
