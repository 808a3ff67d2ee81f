"""FedAvg with an optimiser at the server: the mean change of the clients takes the place of a gradient.

Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification (FedAvgM)
    Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown. 2019. https://arxiv.org/abs/1909.06335
Adaptive Federated Optimization (FedAdam)
    Sashank Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konecny, Sanjiv Kumar,
    H. Brendan McMahan. ICLR 2021. https://arxiv.org/abs/2003.00295

The examples use F_1 = x^2/2 + x, F_2 = x^2/2 - x, x0 = 2, eta = 1/2, K = 1. The mean of both clients is x/2, so the
mean change is Delta = -x/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from splitrelay.algorithms.base import Clients, LocalSteps, Sizes, Step
from splitrelay.algorithms.fedavg import FedAvg
from splitrelay.vectors import Scalar, X, root, zero_like


@dataclass(frozen=True)
class FedAvgMState(Generic[X]):
    """The model and the velocity of the server."""

    x: X
    velocity: X


@dataclass(frozen=True)
class FedAvgM(Generic[X]):
    """FedAvg with momentum at the server: v = momentum v + Delta, x^{r+1} = x^r + gamma v.

    Three rounds by hand, momentum = 1/2:
        Delta = -1, v = -1, x^1 = 1;  Delta = -1/2, v = -1, x^2 = 0;  Delta = 0, v = -1/2, x^3 = -1/2
    (FedAvg gives 1, 1/2, 1/4.) A round without a result changes nothing.
    """

    step: Step[X]
    K: LocalSteps
    server_momentum: Scalar
    gamma: Scalar = 1
    sizes: Sizes | None = None

    def init(self, x0: X, /) -> FedAvgMState[X]:
        return FedAvgMState(x0, zero_like(x0))

    def round(self, r: int, state: FedAvgMState[X], order: Sequence[int], clients: Clients[X], /) -> FedAvgMState[X]:
        mean = FedAvg(self.step, self.K, sizes=self.sizes).round(r, state.x, order, clients)
        if mean is state.x:  # no client has trained
            return state
        velocity = self.server_momentum * state.velocity + (mean - state.x)
        return FedAvgMState(state.x + self.gamma * velocity, velocity)

    def model(self, state: FedAvgMState[X], /) -> X:
        return state.x


@dataclass(frozen=True)
class FedAdamState(Generic[X]):
    """The model, and the means of the changes and of their squares."""

    x: X
    mean: X
    square: X


@dataclass(frozen=True)
class FedAdam(Generic[X]):
    """FedAvg with Adam at the server, without the correction of its bias, as in its paper.

    d = beta1 d + (1 - beta1) Delta, v = beta2 v + (1 - beta2) Delta^2, x^{r+1} = x^r + gamma d / (sqrt(v) + epsilon),
    each coordinate alone. x needs products of its coordinates: numbers, arrays and networks have them.

    Two rounds by hand, beta1 = 1/2, beta2 = 0, epsilon = 1/2:
        Delta = -1, d = -1/2, v = 1:            x^1 = 2 - (1/2) / (1 + 1/2) = 5/3
        Delta = -5/6, d = -1/4 - 5/12 = -2/3, v = 25/36:  x^2 = 5/3 - (2/3) / (5/6 + 1/2) = 7/6
    and one round with beta1 = 0, beta2 = 3/4, gamma = 2: d = -1, v = 1/4, x^1 = 2 - 2 / (1/2 + 1/2) = 0.
    (FedAvg gives 1, 1/2.) A round without a result changes nothing.
    """

    step: Step[X]
    K: LocalSteps
    server_momentum: Any = 0.9  # beta1
    server_beta2: Any = 0.99
    server_epsilon: Any = 1e-3
    gamma: Scalar = 1
    sizes: Sizes | None = None

    def init(self, x0: X, /) -> FedAdamState[X]:
        return FedAdamState(x0, zero_like(x0), zero_like(x0))

    def round(self, r: int, state: FedAdamState[X], order: Sequence[int], clients: Clients[X], /) -> FedAdamState[X]:
        result = FedAvg(self.step, self.K, sizes=self.sizes).round(r, state.x, order, clients)
        if result is state.x:  # no client has trained
            return state
        change: Any = result - state.x
        mean = self.server_momentum * state.mean + (1 - self.server_momentum) * change
        square = self.server_beta2 * state.square + (1 - self.server_beta2) * (change * change)
        return FedAdamState(state.x + self.gamma * (mean / (root(square) + self.server_epsilon)), mean, square)

    def model(self, state: FedAdamState[X], /) -> X:
        return state.x
