"""Compare the bounds of Theorems 1 and 2 with runs of SSL and FedAvg on noisy quadratics.

The constants of the theorems are exact here, so the bounds must hold. The ratio shows how far they are above the error.
The error is the mean of F(x-bar) - F* over 20 seeds, an estimate of the expectation that the theorems bound.
"""

from typing import Any, Literal

import numpy as np

from splitrelay.algorithms import SSL, Algorithm, Averaged, FedAvg, Step
from splitrelay.engine import InProcess
from splitrelay.objectives.quadratic import Quadratics
from splitrelay.participation import Permutation
from splitrelay.theory import Problem, bound
from splitrelay.training import train

M, K, R, SEEDS = 2, 5, 100, 20
CLIENTS = Quadratics(H=np.array([[[4 / 3]], [[2 / 3]]]), V=np.array([[1.0], [-1.0]]), sigma2=1.0)
START = np.array([3.0])

Name = Literal["ssl", "fedavg"]
EFFECTIVE: dict[Name, int] = {"ssl": M * K, "fedavg": K}  # eta_tilde / eta


def gap(name: Name, eta: float, decay: float, seed: int) -> float:
    """Return F(x-bar) - F* after R rounds, where x-bar is the averaged output of the theorems."""
    inner: Algorithm[Any, Any] = SSL(Step(eta), K) if name == "ssl" else FedAvg(Step(eta), K)
    algorithm = Averaged(inner, decay)
    *_, (_, state) = train(algorithm, START, Permutation(M, seed), InProcess(CLIENTS, seed), R=R)
    return float(CLIENTS.F(algorithm.model(state))) - CLIENTS.F_star


def main() -> None:
    D2 = float(((START - CLIENTS.x_star) ** 2).sum())
    problem = Problem(L=CLIENTS.L, mu=CLIENTS.mu_mean, sigma2=1, zeta2=CLIENTS.zeta2_star, M=M, K=K, R=R, D2=D2)
    eta_tilde = 1 / (6 * CLIENTS.L)  # the largest step that the theorems allow
    for name, per_eta in EFFECTIVE.items():
        limit = bound(name, "strongly-convex", problem, eta_tilde=eta_tilde, constants="tight").total
        decay = CLIENTS.mu_mean * eta_tilde / 2
        actual = np.mean([gap(name, eta_tilde / per_eta, decay, seed) for seed in range(SEEDS)])
        print(f"{name:>6}: bound {limit:.4f}, mean of {SEEDS} runs {actual:.5f}, ratio {limit / actual:.0f}")


if __name__ == "__main__":
    main()
