"""The weights w_r = (1 - mu eta_tilde / 2)^-(r+1) of the averaged output, without overflow at any R."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.problem import numbers
from splitrelay.theory.scalar_or_array import Array, Values, plain

MOST = 10**7  # rounds, for which the lists take half a gigabyte


@dataclass(frozen=True)
class Weights:
    """w_r for r = 0..R: their logarithms, shares w_r / W_R, running shares theta_r = w_r / W_r, and log W_R."""

    r: Array
    log_w: Array
    share: Array
    theta: Array
    log_W: float

    @property
    def w(self) -> Array:
        """The weights themselves; infinite where they leave the range of double precision."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_w)


def weights(mu: float, eta_tilde: float, R: int) -> Weights:
    """All weights of rounds 0..R; mu = 0 gives equal weights, as the general convex and non-convex cases have."""
    if not 0 <= R <= MOST:
        raise OutOfRange("the list of weights", limit=f"0 <= R <= {MOST}", value=R, hint="thetas() needs no list.")
    r = np.arange(R + 1, dtype=np.float64)
    log_w, log_W = np.asarray(log_weight(mu, eta_tilde, r)), float(log_total(mu, eta_tilde, float(R)))
    return Weights(r, log_w, np.exp(log_w - log_W), np.asarray(theta(mu, eta_tilde, r)), log_W)


def log_weight(mu: Values, eta_tilde: Values, r: Values) -> Values:
    """log w_r."""
    shrinking = _half_step(mu, eta_tilde)
    return plain(-(np.asarray(r) + 1) * np.log1p(-shrinking))


def log_total(mu: Values, eta_tilde: Values, R: Values) -> Values:
    """log W_R, where W_R = w_0 + ... + w_R = w_R / theta_R."""
    return plain(np.asarray(log_weight(mu, eta_tilde, R)) - np.log(theta(mu, eta_tilde, R)))


def theta(mu: Values, eta_tilde: Values, r: Values) -> Values:
    """theta_r = w_r / W_r = x / (1 - (1 - x)^(r+1)) with x = mu eta_tilde / 2; 1 / (r + 1) where x = 0."""
    x, rounds = _half_step(mu, eta_tilde), np.asarray(r) + 1.0
    some = np.where(x > 0, x, 0.5)  # any number: replaced below where x = 0
    return plain(np.where(x > 0, some / -np.expm1(rounds * np.log1p(-some)), 1 / rounds))


def thetas(mu: Values, eta_tilde: Values) -> Iterator[Values]:
    """theta_0, theta_1, ...: in round r the average moves from xbar to xbar + theta_r (x^r - xbar)."""
    kept = 1 - _half_step(mu, eta_tilde)
    rho = np.ones_like(kept)
    while True:
        yield plain(1 / rho)
        rho = 1 + kept * rho


def _half_step(mu: Values, eta_tilde: Values) -> Array:
    x = numbers("mu", mu) * numbers("eta_tilde", eta_tilde) / 2
    outside = ~((x >= 0) & (x < 1))
    if np.any(outside):
        value = float(np.extract(outside, x)[0])
        raise OutOfRange("the weights need 0 <= mu eta_tilde / 2 < 1", value=value, hint="Take a smaller step.")
    return x
