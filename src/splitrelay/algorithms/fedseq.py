"""FedSeq (Zaccone et al., 2022): groups of clients train in sequence, the groups in parallel, and are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Step, Visit, globally, tau, turns
from splitrelay.vectors import Scalar, X, mean


@dataclass(frozen=True)
class FedSeq(Generic[X]):
    """SSL inside each of G groups, FedAvg over the groups. G = 1 is SSL, one client a group is FedAvg.

    The round's order is dealt to the groups like cards: clients 1, G+1, 2G+1, ... of the order form the first group.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, F_3 = F_1, x0 = 2, eta = 1/2, K = 1, G = 2, order (1, 2, 3): the
    groups are (1, 3) and (2).
        group 1:  client 1:  2 -> 2 - 3/2 = 1/2;  client 3:  1/2 -> 1/2 - 3/4 = -1/4
        group 2:  client 2:  2 -> 2 - 1/2 = 3/2
    so x^1 = (-1/4 + 3/2)/2 = 5/8. (FedAvg makes (1/2 + 3/2 + 1/2)/3 = 5/6.)
    """

    step: Step[X]
    K: LocalSteps
    G: int
    gamma: Scalar = 1

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        x_g: dict[int, X] = {}  # of the groups in which somebody trained; the others stay out of the mean
        for turn in turns(order, self.G):  # the next client of every group, in parallel
            visits = [Visit(r, i, m, x_g.get(g, x), self.step, tau(self.K, m)) for g, (i, m) in enumerate(turn)]
            for g, outcome in enumerate(clients.run_all(visits)):
                if isinstance(outcome, Done):
                    x_g[g] = outcome.x
        return globally(self.gamma, x, mean(x_g[g] for g in sorted(x_g)) if x_g else x)

    def model(self, x: X, /) -> X:
        return x
