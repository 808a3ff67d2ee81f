"""The sharp bounds: Theorems 1 and 2 with exact counts, for all or S of M clients, for every R >= 1.

The proofs are in docs/theory.md. With g = eta_tilde, s = L g, and n local steps in a row (eta = g / n):

    total = (lead + q g (sigma2/(S K) + w zeta2) + L g^2 (2 + q s)(noise + spread)/den) / b
    lead  = a D2 / ((1 - a g)^-(R+1) - 1),  a = mu/2,  or D2 / (g (R+1)) where mu = 0
    b     = 2 - 2 q s - 8 k2/n^3 s^2 (2 + q s)/den
    den   = 1 - 4 k1/n^2 s^2
    noise = 4 k1/n^3 sigma2,  spread = 4 T/n^3 zeta2

The numerator is convex in g and b is concave and positive, so the total has one minimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from splitrelay.theory.problem import Quantities
from splitrelay.theory.results import Array, map_chunks

NAMES = ("optimization", "noise", "sampling", "noise drift", "heterogeneity drift")
INPUTS = ("R", "mu", "D2", "L", "sigma2", "zeta2", "M", "S", "K")
TINY = np.finfo(np.float64).tiny  # a positive bound that underflows is rounded up to this
MAX_ITERATIONS = 60
PRECISION = 1e-10  # relative precision of the best step: the bound is flat there


@dataclass(frozen=True)
class Counts:
    """The exact counts of a round; see the module. `w` is the factor of zeta2 in the sampling term."""

    n: Array
    k1: Array
    k2: Array
    T: Array
    q: Array
    w: Array


def compute_counts(algorithm: str, M: Array, S: Array, K: Array) -> Counts:
    """Compute the sums (see Counts) that the sharp bounds need, for S of M clients per round.

    For full participation pass S = M.
    """
    in_sequence = algorithm.startswith("ssl")
    n = np.ones_like(K) if algorithm == "minibatch-sgd" else S * K if in_sequence else K
    k1, k2 = n * (n - 1) / 2, n * (n - 1) * (2 * n - 1) / 6
    T = compute_sequence_spread(M, S, K) if in_sequence else k2
    single = M == 1  # zeta2 = 0: the only client has its optimum at x*
    one_of_many = (S == 1) & ~single  # Young's inequality does not apply with v = 1: four terms instead of three
    v, ratio = compute_sampling_factors(algorithm, M, S)
    w = np.where(one_of_many, v, ratio)
    return Counts(n, k1, k2, np.where(single, 0, T), np.where(one_of_many, 4.0, 3.0), np.where(single, 0, w))


def compute_sequence_spread(M: Array, S: Array, K: Array) -> Array:
    """Compute T: the technical lemma summed over the S clients and K steps of a round, without zeta2."""
    others = np.maximum(M - 1, 1)
    pairs = S * (S - 1)
    between = K * K * pairs * (K * (3 * M - 2 * S + 1) / 6 - (K - 1) / 2) / others
    return np.asarray(between + S * K * (K - 1) * (2 * K - 1) / 6)


def compute_sampling_factors(algorithm: str, M: Array, S: Array) -> tuple[Array, Array]:
    """Compute v, the variance of the mean of S clients divided by that over clients, and v/(1 - v), NaN for S = 1."""
    more = np.where(S > 1, S - 1, np.nan)
    if algorithm == "fedavg-swr":
        return np.asarray(1 / S), np.asarray(1 / more)
    v = np.asarray((M - S) / (S * np.maximum(M - 1, 1)))
    return v, np.where(M == S, 0.0, (M - S) / (M * more))


def list_inputs(algorithm: str, q: Quantities, rounds: Array) -> tuple[Array, ...]:
    """Return the quantities of the formula in the order of INPUTS. `rounds` is the exponent, R + 1."""
    mu = q.mu if q.case == "strongly-convex" else np.zeros(())
    return rounds, mu, q.D2, q.L, q.sigma2, q.heterogeneity, q.M, get_participants(algorithm, q), q.K


def get_participants(algorithm: str, q: Quantities) -> Array:
    """Return the number of clients of a round: S where clients are sampled, else M."""
    return q.S if algorithm.endswith(("-swor", "-swr")) else q.M


def compute_sharp_total(algorithm: str, q: Quantities, eta_tilde: Array, rounds: Array) -> Array:
    """Compute the bound chunk by chunk, without storing the terms."""

    def add_terms(g: Array, *inputs: Array) -> Sequence[Array]:
        return (np.add.reduce(_compute_terms(algorithm, g, *inputs)),)

    (total,) = map_chunks(add_terms, (eta_tilde, *list_inputs(algorithm, q, rounds)), (np.float64,))
    return np.asarray(total)


def compute_sharp_terms(algorithm: str, q: Quantities, eta_tilde: Array, rounds: Array) -> dict[str, Array]:
    """Compute the terms by name. The sampling term is present only where clients are sampled."""
    terms = dict(zip(NAMES, _compute_terms(algorithm, eta_tilde, *list_inputs(algorithm, q, rounds)), strict=True))
    if not algorithm.endswith(("-swor", "-swr")):
        del terms["sampling"]
    return terms


def _compute_terms(
    algorithm: str,
    g: Array,
    rounds: Array,
    mu: Array,
    D2: Array,
    L: Array,
    sigma2: Array,
    zeta2: Array,
    M: Array,
    S: Array,
    K: Array,
) -> tuple[Array, ...]:
    counts = compute_counts(algorithm, M, S, K)
    n, s = counts.n, L * g
    slope = 2 + counts.q * s
    drift = s * s * slope / (1 - 4 * counts.k1 / (n * n) * s * s)
    cubed = n * n * n
    b = 2 - 2 * counts.q * s - 8 * counts.k2 / cubed * drift
    lead = np.maximum(_compute_lead(mu / 2, D2, g, rounds) / b, np.where(D2 > 0, TINY, 0))
    first = counts.q * g / b
    second = 4 * drift / (L * cubed * b)
    return (
        lead,
        first * sigma2 / (S * K),
        first * counts.w * zeta2,
        second * counts.k1 * sigma2,
        second * counts.T * zeta2,
    )


def _compute_lead(a: Array, D2: Array, g: Array, rounds: Array) -> Array:
    """Compute D2 / (g W_R), the optimum's share before W_R is rounded down."""
    growth = np.expm1(-rounds * np.log1p(-a * g))
    return np.asarray(D2 * np.where(a > 0, a / np.where(a > 0, growth, 1.0), 1 / (g * rounds)))


def compute_sharp_recursion(algorithm: str, q: Quantities, eta_tilde: Array) -> tuple[Array, Array, Array]:
    """Compute b and err of r_{t+1} <= (1 - a g) r_t - g b D_F + err, and the bound on the drift E_r where D_F = 0."""
    L, sigma2, zeta2, K, S = q.L, q.sigma2, q.heterogeneity, q.K, get_participants(algorithm, q)
    counts = compute_counts(algorithm, q.M, S, K)
    g, s, n = eta_tilde, L * eta_tilde, counts.n
    den = 1 - 4 * counts.k1 / n**2 * s * s
    slope = 2 + counts.q * s
    b = 2 - 2 * counts.q * s - 8 * counts.k2 / n**3 * s * s * slope / den
    drift = 4 * g * g / n**2 * (counts.k1 * sigma2 + counts.T * zeta2) / den
    first = counts.q * g * g * (sigma2 / (S * K) + counts.w * zeta2)
    return np.asarray(b), np.asarray(first + L * g / n * slope * drift), np.asarray(drift)


def minimize_sharp_bound(algorithm: str, q: Quantities, rounds: Array, high: Array) -> tuple[Array, Array]:
    """Return the step in (0, high] that minimizes the bound, and whether it is the upper end. It is 0 where D2 = 0."""

    def solve(high: Array, *inputs: Array) -> Sequence[Any]:
        return _solve(algorithm, high, *inputs)

    step, is_capped = map_chunks(solve, (high, *list_inputs(algorithm, q, rounds)), (np.float64, np.bool_))
    return np.asarray(step), np.asarray(is_capped)


def _solve(algorithm: str, high: Array, *inputs: Array) -> Sequence[Any]:
    """Find the root of the log of (descent / ascent) in log g, with Chandrupatla's method."""
    balance = _Balance(algorithm, *inputs)
    right, low = np.log(high), np.log(high) - 3.0
    at_right = balance(right)
    is_capped = at_right >= 0
    at_low = balance(low)
    for _ in range(200):
        rising = ~(at_low > 0) & ~is_capped & (inputs[2] > 0) & np.isfinite(at_right)
        if not rising.any():
            break
        low = np.where(rising, low - 3.0, low)
        at_low = np.where(rising, balance(low), at_low)
    root = _find_root(balance, low, right, at_low, at_right)
    step = np.where(is_capped, high, np.exp(root))
    return np.where(inputs[2] > 0, step, 0.0), is_capped & (inputs[2] > 0)


def _find_root(function: Any, a: Array, b: Array, fa: Array, fb: Array) -> Array:
    """Find the root between a and b, where the signs differ: inverse quadratic steps, else bisection."""
    c, fc, t = a, fa, np.full_like(a, 0.5)
    for _ in range(MAX_ITERATIONS):
        x = a + t * (b - a)
        fx = function(x)
        same = np.sign(fx) == np.sign(fa)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        closer = np.abs(fa) < np.abs(fb)
        best = np.where(closer, a, b)
        width = np.abs(b - a)
        if not np.any((width > PRECISION) & (fa != 0) & (fb != 0)):
            break
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        use_inverse = (phi * phi < xi) & ((1 - phi) * (1 - phi) < 1 - xi)
        inverse = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        margin = np.minimum(PRECISION / 2 / np.where(width > 0, width, 1.0), 0.5)
        t = np.clip(np.where(use_inverse & np.isfinite(inverse), inverse, 0.5), margin, 1 - margin)
    return np.asarray(best)


class _Balance:
    """log(descent of the lead / ascent of the rest) at u = log g: positive where the bound still falls with g."""

    def __init__(self, algorithm: str, *inputs: Array) -> None:
        rounds, mu, self.D2, self.L, sigma2, zeta2, M, S, K = inputs
        counts = compute_counts(algorithm, M, S, K)
        cubed = counts.n**3
        self.a, self.rounds, self.q = mu / 2, rounds, counts.q
        self.c = counts.q * (sigma2 / (S * K) + counts.w * zeta2)
        self.alpha, self.beta = 4 * counts.k1 / counts.n**2, 8 * counts.k2 / cubed
        self.gamma = 4 * (sigma2 * counts.k1 + zeta2 * counts.T) / cubed

    def __call__(self, u: Array) -> Array:
        g = np.exp(u)
        s, a = self.L * g, self.a
        den = 1 - self.alpha * s * s
        slope = 2 + self.q * s
        p = s * s * slope / den
        p_rate = (2 * s * slope + self.q * s * s) / den + 2 * self.alpha * s * p / den
        b = 2 - 2 * self.q * s - self.beta * p
        b_fall = self.L * (2 * self.q + self.beta * p_rate)
        z = -self.rounds * np.log1p(-a * g)
        flat = z < 1e-12  # mu = 0, or no difference from it
        kept = -np.expm1(-np.where(flat, 1.0, z))
        log_lead = np.log(self.D2) + np.where(
            flat, -u - np.log(self.rounds), np.log(np.where(a > 0, a, 1.0)) - z - np.log(kept)
        )
        fall = np.where(flat, 1 / g, self.rounds * a / (1 - a * g) / kept)  # -lead' / lead
        rest = (self.c + self.gamma * p_rate) * b + (self.c * g + self.gamma * p / self.L) * b_fall
        return np.asarray(np.log(fall * b) - np.logaddexp(np.log(b_fall), np.log(rest) - log_lead))
