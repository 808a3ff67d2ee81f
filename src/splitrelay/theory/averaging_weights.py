"""The weights w_r = (1 - mu eta_tilde / 2)^-(r+1) of the averaged output, without overflow for any R."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.problem import check_numbers
from splitrelay.theory.results import Array, Values, unwrap_values

MAX_ROUNDS = 10**7  # the arrays of so many rounds take half a gigabyte


@dataclass(frozen=True)
class Weights:
    """The weights of rounds r = 0..R.

    `share` is w_r / W_R, `theta` is w_r / W_r, and W_r is the sum w_0 + ... + w_r.
    """

    r: Array
    log_w: Array
    share: Array
    theta: Array
    log_W: float  # log W_R

    @property
    def w(self) -> Array:
        """The weights themselves. They are infinite where they exceed the range of double precision."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_w)


def weights(mu: float, eta_tilde: float, R: int) -> Weights:
    """Compute the weights of rounds 0..R. With mu = 0 they are equal, as in the general convex and non-convex cases.

    >>> weights(0, 0.1, 3).share.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    if not 0 <= R <= MAX_ROUNDS:
        raise OutOfRange(
            "the list of weights", limit=f"0 <= R <= {MAX_ROUNDS}", value=R, hint="thetas() needs no list."
        )
    r = np.arange(R + 1, dtype=np.float64)
    log_w, log_W = np.asarray(compute_log_weight(mu, eta_tilde, r)), float(compute_log_sum(mu, eta_tilde, float(R)))
    return Weights(r, log_w, np.exp(log_w - log_W), np.asarray(compute_theta(mu, eta_tilde, r)), log_W)


def compute_log_weight(mu: Values, eta_tilde: Values, r: Values) -> Values:
    """Compute log w_r."""
    x = _compute_shrinkage(mu, eta_tilde)
    return unwrap_values(-(np.asarray(r) + 1) * np.log1p(-x))


def compute_log_sum(mu: Values, eta_tilde: Values, R: Values) -> Values:
    """Compute log W_R, where W_R = w_0 + ... + w_R = w_R / theta_R."""
    return unwrap_values(np.asarray(compute_log_weight(mu, eta_tilde, R)) - np.log(compute_theta(mu, eta_tilde, R)))


def compute_theta(mu: Values, eta_tilde: Values, r: Values) -> Values:
    """Compute theta_r = x / (1 - (1 - x)^(r+1)) with x = mu eta_tilde / 2, or 1 / (r + 1) where x = 0."""
    x, rounds = _compute_shrinkage(mu, eta_tilde), np.asarray(r) + 1.0
    nonzero = np.where(x > 0, x, 0.5)  # 0.5 is a placeholder: the next line replaces its result
    return unwrap_values(np.where(x > 0, nonzero / -np.expm1(rounds * np.log1p(-nonzero)), 1 / rounds))


def thetas(mu: Values, eta_tilde: Values) -> Iterator[Values]:
    """Yield theta_0, theta_1, ... The running average of round r is xbar + theta_r (x^r - xbar)."""
    decay = 1 - _compute_shrinkage(mu, eta_tilde)
    rho = np.ones_like(decay)
    while True:
        yield unwrap_values(1 / rho)
        rho = 1 + decay * rho


def _compute_shrinkage(mu: Values, eta_tilde: Values) -> Array:
    """Compute x = mu eta_tilde / 2 and check that 0 <= x < 1."""
    x = check_numbers("mu", mu) * check_numbers("eta_tilde", eta_tilde) / 2
    outside = ~((x >= 0) & (x < 1))
    if np.any(outside):
        value = float(np.extract(outside, x)[0])
        raise OutOfRange("the weights need 0 <= mu eta_tilde / 2 < 1", value=value, hint="Take a smaller step.")
    return x
