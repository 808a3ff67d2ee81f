"""FedProx: FedAvg with a term that keeps the local steps near x^r.

Federated Optimization in Heterogeneous Networks
    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith. MLSys 2020.
    https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from splitrelay.algorithms.base import Clients, LocalSteps, Sizes, Step
from splitrelay.algorithms.fedavg import FedAvg
from splitrelay.vectors import Scalar, X


@dataclass(frozen=True)
class FedProx(Generic[X]):
    """Client m minimizes F_m(x) + (prox/2) |x - x^r|^2 with K local steps. The rest is FedAvg.

    The term is part of a local step, so it needs no message.

    A round by hand, F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 2, prox = 1/4:
        client 1:  2 -> 2 - 3/2 = 1/2 -> 1/2 - (3/2 + (1/2 - 2)/4)/2 = -1/16
        client 2:  2 -> 2 - 1/2 = 3/2 -> 3/2 - (1/2 + (3/2 - 2)/4)/2 = 21/16
    so x^1 = (-1/16 + 21/16)/2 = 5/8. (FedAvg gives 1/2, minibatch SGD 1.)
    """

    step: Step[X]
    K: LocalSteps
    prox: Any  # the factor of the term
    gamma: Scalar = 1
    sizes: Sizes | None = None

    def init(self, x0: X, /) -> X:
        return x0

    def round(self, r: int, x: X, order: Sequence[int], clients: Clients[X], /) -> X:
        step = replace(self.step, prox=self.prox)
        return FedAvg(step, self.K, self.gamma, self.sizes).round(r, x, order, clients)

    def model(self, x: X, /) -> X:
        return x
