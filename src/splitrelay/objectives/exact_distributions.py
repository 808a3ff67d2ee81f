"""Exact distributions of x^R - x* on one-dimensional quadratics without noise, for FedAvg and SSL.

K exact local steps of client m are the affine map z -> q_m z + p_m of z = x - x*. A round of FedAvg is the mean of
these maps; a round of SSL is z -> q z + b_pi with one q for all orders and one b for each. So SSL ends at
q^R z0 + sum_j q^j b_j with independent b_j: mean, variance, range and E|z| follow without simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.objectives.quadratic import Array, ScalarQuadratics

MOST_CLIENTS = 6  # 720 orders a round
NEAR = 1e-9  # nearer to x* than this counts as touching it
BRANCHES = 32  # the series is used only after a split into this many branches
ATOMS = 100_000  # up to this number of atoms, the distribution is enumerated
FINE = 0.01  # below this t times a term, four cumulants suffice: the next is below 1e-12
FREQUENCIES = (0, 16, 32, 64, 128, 256, 512, 1024)  # odd ones of the Fourier series, added block by block


@dataclass(frozen=True, eq=False)
class Point:
    """The distance of FedAvg from x* after R rounds. log10 is valid even if the distance underflows."""

    contraction: Array
    fixed_point: Array
    error: Array
    log10_error: Array


@dataclass(frozen=True, eq=False)
class Law:
    """The distribution of SSL's x^R - x* over all orders. `smallest` is for the best order (M > 2: a good one)."""

    contraction: Array
    mean: Array
    deviation: Array
    rms: Array
    mean_absolute: Array
    smallest: Array
    largest: Array

    @property
    def touches(self) -> Array:
        """Whether some order ends at x*, or too near to distinguish in a plot."""
        return np.asarray(self.smallest < NEAR)


def fedavg_point(clients: ScalarQuadratics, eta: Any, K: int, R: int, x0: float) -> Point:
    """Compute FedAvg with full participation after R rounds, for all settings at once."""
    q, p, start = _compute_visits(clients, eta, K, x0)
    Q, P = q.mean(0), p.mean(0)
    with np.errstate(all="ignore"):
        fixed = np.where(P == 0, 0.0, P / (1 - Q))
        error = np.abs(_compute_end(Q, P, R, start))
        log10 = np.where(P == 0, R * np.log10(np.abs(Q)) + np.log10(np.abs(start)), np.log10(error))
    return Point(Q, fixed, _replace_nonfinite(error), log10)


def ssl_law(clients: ScalarQuadratics, eta: Any, K: int, R: int, x0: float) -> Law:
    """Compute SSL after R rounds over all orders, for all settings at once."""
    q, p, start = _compute_visits(clients, eta, K, x0)
    if len(q) > MOST_CLIENTS:
        raise OutOfRange("the law over all orders", value=f"M = {len(q)}", limit=f"M <= {MOST_CLIENTS}")
    b = np.stack([_compute_offset(q, p, order) for order in permutations(range(len(q)))])
    q, middle = np.asarray(q.prod(0)), b.mean(0)
    with np.errstate(all="ignore"):
        mean = _compute_end(q, middle, R, start)
        deviation = np.sqrt(b.var(0) * geometric(q * q, R))
        low, high = (mean + reach for reach in _compute_range(q, b - middle, R))
        rms, largest = np.hypot(mean, deviation), np.maximum(np.abs(low), np.abs(high))
        absolute = _apply_to_each(mean, q, b - middle, R, mean_absolute)
        smallest = _apply_to_each(mean, q, b - middle, R, smallest_absolute)
    whole = (_replace_nonfinite(value) for value in (mean, deviation, rms, absolute, smallest, largest))
    return Law(q, *whole)


def geometric(q: Array, R: int) -> Array:
    """Return 1 + q + ... + q^(R-1)."""
    return np.asarray(np.where(q == 1, float(R), (1 - q**R) / np.where(q == 1, 1.0, 1 - q)))


def mean_absolute(mean: float, terms: Array) -> float:
    """Return E|mean + sum_j T_j| with T_j uniform on row j of `terms` (each row sums to 0, the widest rows first).

    Term by term the law is split into branches; one that no later term can carry over zero contributes |its centre|.
    When too many remain, their part is summed as a Fourier series, which is exact because the law is bounded:
    |z| = rho/2 - (4 rho/pi^2) sum_{k odd} cos(k pi z/rho)/k^2 for |z| <= rho.
    """
    low, high = _sum_tails(terms.min(1)), _sum_tails(terms.max(1))
    centres, weight, total = np.array([mean]), 1.0, 0.0
    negligible = 1e-14 * (abs(mean) + high[0] - low[0])
    for j, row in enumerate(terms):
        open_ = (centres + low[j] < 0) & (centres + high[j] > 0)
        total += weight * float(np.abs(centres[~open_]).sum())
        centres = centres[open_]
        if centres.size == 0 or high[j] - low[j] <= negligible:
            break
        if centres.size > BRANCHES and centres.size * row.size ** (len(terms) - j) > ATOMS:
            return total + weight * _sum_series(centres, terms[j:], max(high[j], -low[j]))
        centres, weight = np.add.outer(centres, row).ravel(), weight / row.size
    return total + weight * float(np.abs(centres).sum())


def smallest_absolute(mean: float, terms: Array) -> float:
    """Return the smallest |mean + sum_j t_j|, taking from each row the t that leads nearest to zero.

    With two opposite entries a row this is the least of all where each row outweighs the later ones together, and
    elsewhere it is the least to within the last row or the end of the range.
    """
    z = mean
    for row in terms.tolist():
        z = min((z + t for t in row), key=abs)
    return abs(z)


def _compute_visits(clients: ScalarQuadratics, eta: Any, K: int, x0: float) -> tuple[Array, Array, Array]:
    """q_m and p_m of every client, of shape (M, settings), and z0."""
    eta, x_star = np.asarray(eta, dtype=float), np.asarray(clients.x_star, dtype=float)
    settings = np.broadcast_shapes(eta.shape, x_star.shape)
    h, a = (
        np.array([np.broadcast_to(np.asarray(one, float), settings) for one in all_]) for all_ in (clients.h, clients.a)
    )
    step, slope = 1 - eta * h, -eta * (h * x_star + a)
    q, p = np.ones_like(step), np.zeros_like(step)
    for _ in range(K):
        q, p = step * q, step * p + slope
    return q, p, np.asarray(x0 - x_star)


def _compute_offset(q: Array, p: Array, order: tuple[int, ...]) -> Array:
    b: Array = np.zeros_like(p[0])
    for m in order:
        b = q[m] * b + p[m]
    return b


def _compute_end(q: Array, b: Array, R: int, start: Array) -> Array:
    return np.asarray(q**R * start + np.where(b == 0, 0.0, b * geometric(q, R)))


def _compute_range(q: Array, b: Array, R: int) -> Iterator[Array]:
    """The least and the largest of sum_j q^j b_j; with q < 0 every other term takes the opposite end."""
    even, odd = geometric(q * q, (R + 1) // 2), q * geometric(q * q, R // 2)
    ends = b.min(0), b.max(0)
    for near, far in (ends, ends[::-1]):
        yield near * even + np.where(q < 0, far, near) * odd


def _apply_to_each(mean: Array, q: Array, b: Array, R: int, function: Any) -> Array:
    values = np.empty_like(mean)
    for at in np.ndindex(mean.shape):
        terms = np.multiply.outer(q[at] ** np.arange(R), b[(slice(None), *at)])
        terms = terms[::-1] if abs(q[at]) > 1 else terms
        known = np.isfinite(terms).all() and np.isfinite(mean[at])
        values[at] = function(float(mean[at]), terms[np.any(terms != 0, axis=1)]) if known else np.inf
    return values


def _sum_tails(ends: Array) -> Array:
    """The sums of all later entries, one more than there are entries."""
    return np.append(np.cumsum(ends[::-1])[::-1], 0.0)


def _sum_series(centres: Array, terms: Array, reach: float) -> float:
    """The sum over centres of E|centre + sum of terms|."""
    rho = float(np.abs(centres).max()) + reach
    total = len(centres) * rho / 2
    for first, end in pairwise(FREQUENCIES):
        k = 2 * np.arange(first, end) + 1.0
        t = np.asarray(np.pi / rho * k)
        waves = _compute_characteristic(t, terms)
        shifted = np.exp(1j * np.outer(t, centres)).sum(1) * waves
        total -= 4 * rho / np.pi**2 * float((shifted.real / k**2).sum())
        if np.abs(waves).max() < 1e-16:
            break
    return total


def _compute_characteristic(t: Array, terms: Array) -> Any:
    """E exp(i t sum of terms); of terms too small to matter otherwise, the first four cumulants."""
    fine = t[-1] * np.abs(terms).max(1) < FINE
    second, third, fourth = ((terms[fine] ** power).mean(1) for power in (2, 3, 4))
    cumulants = second.sum(), third.sum(), (fourth - 3 * second**2).sum()
    rest = np.exp(-(t**2) * cumulants[0] / 2 - 1j * t**3 * cumulants[1] / 6 + t**4 * cumulants[2] / 24)
    if terms.shape[1] == 2:  # two opposite entries: E exp(i t T) = cos(t T)
        return rest * np.cos(np.outer(t, terms[~fine, 0])).prod(1)
    for row in terms[~fine]:
        rest = rest * np.exp(1j * np.outer(t, row)).mean(1)
    return rest


def _replace_nonfinite(value: Array) -> Array:
    return np.where(np.isfinite(value), value, np.inf)
