"""An algorithm outside the package: FedProx (Li et al., 2020), FedAvg with a term that keeps local steps near x^r.

A round: x_m^(r,0) = x^r; x_m^(r,k+1) = x_m^(r,k) - eta (g_m^(r,k) + prox (x_m^(r,k) - x^r)); x^{r+1} is the
mean of all x_m^(r,K). The proximal term is part of a step here, so the round is the same as in FedAvg.

A round by hand, F_0 = x^2/2 + x, F_1 = x^2/2 - x, x0 = 2, eta = 1/2, K = 2, prox = 2:
    client 0:  2 -> 2 - 3/2 = 1/2 -> 1/2 - (3/2 + 2 (1/2 - 2))/2 = 5/4
    client 1:  2 -> 2 - 1/2 = 3/2 -> 3/2 - (1/2 + 2 (3/2 - 2))/2 = 7/4
so x^1 = 3/2. (FedAvg gives 1/2, minibatch SGD 1.)
"""

from dataclasses import dataclass, replace
from fractions import Fraction as Q
from typing import Any

from splitrelay.algorithms import Clients, FedAvg, LocalSteps, Step
from splitrelay.engine import InProcess
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Permutation
from splitrelay.testing import Golden, check_algorithm
from splitrelay.training import train


@dataclass(frozen=True)
class FedProx:
    step: Step[Any]
    K: LocalSteps
    prox: float

    def init(self, x0: Any, /) -> Any:
        return x0

    def round(self, r: int, x: Any, order: Any, clients: Clients[Any], /) -> Any:
        return FedAvg(replace(self.step, prox=self.prox), self.K).round(r, x, order, clients)

    def model(self, x: Any, /) -> Any:
        return x


BY_HAND = Golden(h=(1, 1), a=(1, -1), eta=Q(1, 2), K=2, x0=Q(2), orders=[(0, 1)], models=[Q(3, 2)])


def main() -> None:
    check_algorithm(lambda it: FedProx(it.step, it.K, prox=2), [BY_HAND])
    print("the contract holds")
    clients = InProcess(ScalarQuadratics(h=(2.0, 0.0), a=(1.0, -1.0)))  # the paper's group 7; x* = 0
    for prox in (0.0, 1.0, 10.0):
        *_, (_, x) = train(FedProx(Step(eta=0.1), K=10, prox=prox), 10.0, Permutation(2, seed=1), clients, R=500)
        print(f"prox = {prox:4}: |x - x*| = {abs(x):.4f}")


if __name__ == "__main__":
    main()
