"""An algorithm outside the package: SSL with momentum on the server, clients in a fixed cycle.

A round: SSL starts at x^r and ends at y = x_M^(r,K); then
    v^{r+1} = beta v^r + (x^r - y),   x^{r+1} = x^r - v^{r+1}.
With beta = 0 it is SSL. (With the average instead of SSL it is FedAvgM, Hsu et al. 2019.)

Two rounds by hand, F_0 = x^2/2 + x, F_1 = x^2/2 - x, x0 = 2, eta = 1/2, K = 1, beta = 1/2: client 0 maps x to
(x - 1)/2, client 1 maps that to (x + 1)/2, so y = (x + 1)/4.
    round 0:  x = 2,    y = 3/4,   v = 5/4,                  x^1 = 3/4
    round 1:  x = 3/4,  y = 7/16,  v = 5/8 + 5/16 = 15/16,   x^2 = -3/16
SSL ends at 7/16, FedAvg at 1/2.
"""

from dataclasses import dataclass
from fractions import Fraction as Q
from typing import Any

from splitrelay.algorithms import SSL, Clients, LocalSteps, Step
from splitrelay.engine import InProcess
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Fixed
from splitrelay.testing import Golden, check_algorithm
from splitrelay.training import train


@dataclass(frozen=True)
class SSLWithServerMomentum:
    step: Step[Any]
    K: LocalSteps
    beta: float

    def init(self, x0: Any, /) -> tuple[Any, Any]:
        return x0, x0 - x0  # x^0, v^0 = 0

    def round(self, r: int, state: tuple[Any, Any], order: Any, clients: Clients[Any], /) -> tuple[Any, Any]:
        x, v = state
        y = SSL(self.step, self.K).round(r, x, order, clients)
        v = self.beta * v + (x - y)
        return state if y is x else (x - v, v)  # y is x: no client trained, so nothing changes

    def model(self, state: tuple[Any, Any], /) -> Any:
        return state[0]


BY_HAND = Golden(h=(1, 1), a=(1, -1), eta=Q(1, 2), K=1, x0=Q(2), orders=[(0, 1)] * 2, models=[Q(3, 4), Q(-3, 16)])


def main() -> None:
    check_algorithm(lambda it: SSLWithServerMomentum(it.step, it.K, beta=0.5), [BY_HAND])
    print("the contract holds")
    clients = InProcess(ScalarQuadratics(h=(2.0, 0.0), a=(1.0, -1.0)))  # the paper's group 7; x* = 0
    for beta in (0.0, 0.5):
        algorithm = SSLWithServerMomentum(Step(eta=0.003), K=10, beta=beta)
        errors = [abs(algorithm.model(s)) for _, s in train(algorithm, 10.0, Fixed([0, 1]), clients, R=100)]
        print(f"beta = {beta}: |x - x*| is {errors[20]:.4f} after 20 rounds, {errors[100]:.4f} after 100")


if __name__ == "__main__":
    main()
