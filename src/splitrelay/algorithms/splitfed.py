"""SplitFed and related algorithms. They treat the two halves of x differently.

SplitFed: When Federated Learning Meets Split Learning (V1, V2)
    Chandra Thapa, M.A.P. Chamikara, Seyit Camtepe, Lichao Sun. AAAI 2022.
    https://arxiv.org/abs/2004.12088
Comparison of Privacy-Preserving Distributed Deep Learning Methods in Healthcare (V3)
    Manish Gawali et al. MIUA 2021. https://arxiv.org/abs/2012.12591
Evaluation and Optimization of Distributed Machine Learning Techniques for Internet of Things (SFLG)
    Yansong Gao et al. 2021. https://arxiv.org/abs/2103.02762

SplitFed V1 has no class here, because it is FedAvg with a cut model. The main server averages the server halves, and
the fed server averages the client halves. The mean of the whole models is the same.

The examples use x = (x_c; x_s) and clients with F_m = h_m (x_c^2 + x_s^2)/2 + a_m x_c + 2 a_m x_s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import (
    Clients,
    Cut,
    Done,
    LocalSteps,
    Step,
    Visit,
    enumerate_visits,
    iterate_groups,
    tau,
)
from splitrelay.vectors import Mean, X, mean


@dataclass(frozen=True)
class SplitFedV2(Generic[X]):
    """The server half is trained with all clients in sequence. The client halves are averaged.

    Each client starts at [x_c^r; the server half after the previous client] and makes all its local steps.

    A round by hand, h = (1, 1), a = (1, -1), x0 = (2; 4), eta = 1/2, K = 1, order (1, 2):
        client 1:  (2; 4) -> (2 - 3/2; 4 - 6/2) = (1/2; 1)
        client 2:  (2; 1) -> (2 - 1/2; 1 + 1/2) = (3/2; 3/2)
    so x^1 = (1; 3/2). (FedAvg gives (1; 2): client 2 would start at 4 and end at 3.)
    """

    step: Step[X]
    K: LocalSteps
    cut: Cut[X]

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        return SFLG(self.step, self.K, self.cut, G=1).round(r, x, order, clients)

    def model(self, x: X, /) -> X:
        return x


@dataclass(frozen=True)
class SFLG(Generic[X]):
    """SplitFed V2 within each of G groups. At the end of a round the server halves of the groups are averaged.

    G = 1 is SplitFed V2. One client per group is SplitFed V1. The clients 1, G+1, 2G+1, ... form the first group.

    A round by hand, h = (1, 1, 1), a = (1, -1, 1), x0 = (2; 4), eta = 1/2, K = 1, G = 2, order (1, 2, 3): the groups
    are (1, 3) and (2).
        client 1:  (2; 4) -> (1/2; 1),  client 3:  (2; 1) -> (1/2; 1 - 3/2) = (1/2; -1/2)
        client 2:  (2; 4) -> (3/2; 3)
    so x^1 = ((1/2 + 1/2 + 3/2)/3; (-1/2 + 3)/2) = (5/6; 5/4). (FedAvg gives (5/6; 5/3).)
    """

    step: Step[X]
    K: LocalSteps
    cut: Cut[X]
    G: int

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        x_c, x_s = self.cut.halves(x)
        bottoms = Mean[X]()
        tops: dict[int, X] = {}  # the server halves of all groups in which a client has trained
        for clients_of_groups in iterate_groups(order, self.G):  # the next client of every group, in parallel
            visits = [
                Visit(r, i, m, self.cut.join(x_c, tops.get(g, x_s)), self.step, tau(self.K, m))
                for g, (i, m) in enumerate(clients_of_groups)
            ]
            for g, outcome in enumerate(clients.run_all(visits)):
                if isinstance(outcome, Done):
                    bottom, tops[g] = self.cut.halves(outcome.x)
                    bottoms.add(bottom)
        if not tops:
            return x
        return self.cut.join(bottoms.value(default=x_c), mean(tops[g] for g in sorted(tops)))

    def model(self, x: X, /) -> X:
        return x


@dataclass(frozen=True)
class SplitFedV3State(Generic[X]):
    """The server half, and the client half of every client that has trained. All other clients have `start`."""

    top: X
    start: X
    bottoms: Mapping[int, X]


@dataclass(frozen=True)
class SplitFedV3(Generic[X]):
    """Every client keeps its own client half. Only the server halves are averaged.

    The global model joins the server half with the mean of the client halves of all clients that have trained so far.
    Client m itself uses `own_model`.

    Two rounds by hand, h = (2, 0), a = (1, -1), x0 = (2; 4), eta = 1/4, K = 1, both clients each round:
        client 1:  (2; 4) -> (2 - 5/4; 4 - 10/4) = (3/4; 3/2)        client 2:  (2; 4) -> (9/4; 9/2)
        x_s = (3/2 + 9/2)/2 = 3, and the model is ((3/4 + 9/4)/2; 3) = (3/2; 3)
        client 1:  (3/4; 3) -> (3/4 - 5/8; 3 - 2) = (1/8; 1)         client 2:  (9/4; 3) -> (5/2; 7/2)
        x_s = 9/4, and the model is ((1/8 + 5/2)/2; 9/4) = (21/16; 9/4)
    (FedAvg from (3/2; 3) gives (9/8; 9/4).)
    """

    step: Step[X]
    K: LocalSteps
    cut: Cut[X]

    def init(self, x0: X, /) -> SplitFedV3State[X]:
        start, top = self.cut.halves(x0)
        return SplitFedV3State(top, start, {})

    def round(
        self, r: int, state: SplitFedV3State[X], order: Sequence[int], clients: Clients[X], /
    ) -> SplitFedV3State[X]:
        visits = [
            Visit(r, i, m, self.own_model(state, m), self.step, tau(self.K, m)) for i, m in enumerate_visits(order)
        ]
        bottoms, tops = dict(state.bottoms), Mean[X]()
        for visit, outcome in zip(visits, clients.run_all(visits), strict=True):
            if isinstance(outcome, Done):
                bottoms[visit.m], top = self.cut.halves(outcome.x)
                tops.add(top)
        return SplitFedV3State(tops.value(default=state.top), state.start, bottoms)

    def model(self, state: SplitFedV3State[X], /) -> X:
        bottoms = Mean[X]()
        for m in sorted(state.bottoms):
            bottoms.add(state.bottoms[m])
        return self.cut.join(bottoms.value(default=state.start), state.top)

    def own_model(self, state: SplitFedV3State[X], m: int) -> X:
        """Return the model of client m: its own client half and the server half."""
        return self.cut.join(state.bottoms.get(m, state.start), state.top)
