"""The averaged output of the theorems, x-bar = (1/W_R) sum_{r=0..R} w_r x^r, updated in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from splitrelay.algorithms.base import Algorithm, Clients, State
from splitrelay.vectors import Scalar, X


@dataclass(frozen=True)
class AveragedState(Generic[X, State]):
    """The state of the inner algorithm, the current x-bar, and rho = W_r / w_r, which does not overflow like w_r."""

    inner: State
    x_bar: X
    rho: Scalar


@dataclass(frozen=True)
class Averaged(Generic[X, State]):
    """Any algorithm with x-bar as its global model instead of its last model.

    In the strongly convex case w_r = (1 - decay)^-(r+1) with decay = mu eta_tilde/2. In the other two cases decay = 0
    and w_r = 1. With rho_{r+1} = 1 + (1 - decay) rho_r, the weight of x^{r+1} in the new x-bar is 1/rho_{r+1}.

    By hand, decay 1/2 and models 0, 1, 2: the weights are 2, 4, 8, so x-bar = (0 + 4 + 16)/14 = 10/7. The values of
    rho are 1, 3/2, 7/4, and those of x-bar are 0, 2/3, 2/3 + (4/7)(4/3) = 10/7.
    """

    algorithm: Algorithm[X, State]
    decay: Scalar = 0

    def init(self, x0: X, /) -> AveragedState[X, State]:
        state = self.algorithm.init(x0)
        return AveragedState(state, self.algorithm.model(state), 1)

    def round(
        self, r: int, state: AveragedState[X, State], order: Sequence[int], clients: Clients[X], /
    ) -> AveragedState[X, State]:
        inner = self.algorithm.round(r, state.inner, order, clients)
        rho = 1 + (1 - self.decay) * state.rho
        x_bar = state.x_bar + (self.algorithm.model(inner) - state.x_bar) / rho
        return AveragedState(inner, x_bar, rho)

    def model(self, state: AveragedState[X, State], /) -> X:
        return state.x_bar
