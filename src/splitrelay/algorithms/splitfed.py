"""SplitFed and its relatives: algorithms that treat the two halves of x differently.

SplitFed V1 (Thapa et al., 2020) has no class: it is FedAvg over a cut. The main server averages the server halves, the
fed server the client halves, and the mean of whole models is both at once.

The worked rounds use halves x = (x_c; x_s) and clients F_m = h_m (x_c^2 + x_s^2)/2 + a_m x_c + 2 a_m x_s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Clients, Cut, Done, LocalSteps, Step, Visit, occurrences, tau, turns
from splitrelay.vectors import Mean, X, mean


@dataclass(frozen=True)
class SplitFedV2(Generic[X]):
    """Thapa et al., 2020. The server's half goes through all clients in sequence, the clients' halves are averaged.

    Each client starts at [x_c^r; the server's half as the client before it left it] and makes its whole visit.

    A round by hand, h = (1, 1), a = (1, -1), x0 = (2; 4), eta = 1/2, K = 1, order (1, 2):
        client 1:  (2; 4) -> (2 - 3/2; 4 - 6/2) = (1/2; 1)
        client 2:  (2; 1) -> (2 - 1/2; 1 + 1/2) = (3/2; 3/2)
    so x^1 = (1; 3/2). (FedAvg makes (1; 2): client 2 would start at 4 and end at 3.)
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
    """Gao et al., 2021. SplitFed V2 inside each of G groups; the groups' server halves are averaged in the end.

    G = 1 is SplitFed V2, one client a group is SplitFed V1. The order is dealt to the groups like cards.

    A round by hand, h = (1, 1, 1), a = (1, -1, 1), x0 = (2; 4), eta = 1/2, K = 1, G = 2, order (1, 2, 3): the groups
    are (1, 3) and (2).
        client 1:  (2; 4) -> (1/2; 1),  client 3:  (2; 1) -> (1/2; 1 - 3/2) = (1/2; -1/2)
        client 2:  (2; 4) -> (3/2; 3)
    so x^1 = ((1/2 + 1/2 + 3/2)/3; (-1/2 + 3)/2) = (5/6; 5/4). (FedAvg makes (5/6; 5/3).)
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
        tops: dict[int, X] = {}  # of the groups in which somebody trained
        for turn in turns(order, self.G):  # the next client of every group, in parallel
            starts = [self.cut.join(x_c, tops.get(g, x_s)) for g in range(len(turn))]
            visits = [
                Visit(r, i, m, start, self.step, tau(self.K, m)) for (i, m), start in zip(turn, starts, strict=True)
            ]
            for g, outcome in enumerate(clients.run_all(visits)):
                if isinstance(outcome, Done):
                    bottom, tops[g] = self.cut.halves(outcome.x)
                    bottoms.add(bottom)
        if not tops:
            return x
        return self.cut.join(bottoms.otherwise(x_c), mean(tops[g] for g in sorted(tops)))

    def model(self, x: X, /) -> X:
        return x


@dataclass(frozen=True)
class SplitFedV3State(Generic[X]):
    """The server's half, and the own half of every client that has trained; the others' is still `start`."""

    top: X
    start: X
    bottoms: Mapping[int, X]


@dataclass(frozen=True)
class SplitFedV3(Generic[X]):
    """Gawali et al., 2021. Every client keeps a half of its own; only the server's halves are averaged.

    Its global model joins the server's half with the mean of the own halves of all clients that have trained so far;
    `own_model` is what client m uses.

    Two rounds by hand, h = (2, 0), a = (1, -1), x0 = (2; 4), eta = 1/4, K = 1, both clients each round:
        client 1:  (2; 4) -> (2 - 5/4; 4 - 10/4) = (3/4; 3/2)        client 2:  (2; 4) -> (9/4; 9/2)
        x_s = (3/2 + 9/2)/2 = 3, and the model is ((3/4 + 9/4)/2; 3) = (3/2; 3)
        client 1:  (3/4; 3) -> (3/4 - 5/8; 3 - 2) = (1/8; 1)         client 2:  (9/4; 3) -> (5/2; 7/2)
        x_s = 9/4, and the model is ((1/8 + 5/2)/2; 9/4) = (21/16; 9/4)
    (FedAvg, from (3/2; 3), makes (9/8; 9/4).)
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
        visits = [Visit(r, i, m, self.own_model(state, m), self.step, tau(self.K, m)) for i, m in occurrences(order)]
        bottoms, tops = dict(state.bottoms), Mean[X]()
        for visit, outcome in zip(visits, clients.run_all(visits), strict=True):
            if isinstance(outcome, Done):
                bottoms[visit.m], top = self.cut.halves(outcome.x)
                tops.add(top)
        return SplitFedV3State(tops.otherwise(state.top), state.start, bottoms)

    def model(self, state: SplitFedV3State[X], /) -> X:
        bottoms = Mean[X]()
        for m in sorted(state.bottoms):
            bottoms.add(state.bottoms[m])
        return self.cut.join(bottoms.otherwise(state.start), state.top)

    def own_model(self, state: SplitFedV3State[X], m: int) -> X:
        """The model as client m uses it: its own half and the server's."""
        return self.cut.join(state.bottoms.get(m, state.start), state.top)
