"""The weights w_r of the averaged output, without overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from splitrelay.theory.problem import Array, Values


@dataclass(frozen=True)
class Weights:
    """w_r for r = 0..R: their logarithms, shares w_r / W_R, running shares theta_r = w_r / W_r, and log W_R."""

    r: Array
    log_w: Array
    share: Array
    theta: Array
    log_W: float


def weights(mu: float, eta_tilde: float, R: int) -> Weights:
    """All weights of rounds 0..R; mu = 0 gives equal weights."""
    raise NotImplementedError


def thetas(mu: Values, eta_tilde: Values) -> Iterator[Values]:
    """theta_0, theta_1, ...: xbar moves to xbar + theta_r (x^r - xbar) in round r."""
    raise NotImplementedError
