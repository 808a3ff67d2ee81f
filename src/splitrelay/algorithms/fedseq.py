"""FedSeq: sequential training in groups of clients, and averaging over the groups.

Speeding up Heterogeneous Federated Learning with Sequentially Trained Superclients
    Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone, Barbara Caputo. ICPR 2022.
    https://arxiv.org/abs/2201.10899
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Done, LocalSteps, Step, Visit, global_step, iterate_groups, tau
from splitrelay.vectors import Scalar, X, mean


@dataclass(frozen=True)
class FedSeq(Generic[X]):
    """SSL within each of G groups, and FedAvg over the groups.

    G = 1 is SSL. One client per group is FedAvg. The clients 1, G+1, 2G+1, ... of the order form the first group.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, F_3 = F_1, x0 = 2, eta = 1/2, K = 1, G = 2, order (1, 2, 3): the
    groups are (1, 3) and (2).
        group 1:  client 1:  2 -> 2 - 3/2 = 1/2;  client 3:  1/2 -> 1/2 - 3/4 = -1/4
        group 2:  client 2:  2 -> 2 - 1/2 = 3/2
    so x^1 = (-1/4 + 3/2)/2 = 5/8. (FedAvg gives (1/2 + 3/2 + 1/2)/3 = 5/6.)
    """

    step: Step[X]
    K: LocalSteps
    G: int
    gamma: Scalar = 1

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        x_g: dict[int, X] = {}  # the models of all groups in which a client has trained
        for clients_of_groups in iterate_groups(order, self.G):  # the next client of every group, in parallel
            visits = [
                Visit(r, i, m, x_g.get(g, x), self.step, tau(self.K, m)) for g, (i, m) in enumerate(clients_of_groups)
            ]
            for g, outcome in enumerate(clients.run_all(visits)):
                if isinstance(outcome, Done):
                    x_g[g] = outcome.x
        return global_step(self.gamma, x, mean(x_g[g] for g in sorted(x_g)) if x_g else x)

    def model(self, x: X, /) -> X:
        return x
