"""Exact expectations on noisy quadratics, over all orders (or samples of clients) and the noise.

A local step is an affine map of z = x - x* plus Gaussian noise. So with u = [z; 1] a visit acts linearly on E u (by T)
and on E uu' (by O = T (x) T + noise, on the flattened matrix), and a round is a mean of products of these operators.
Learning rates may be arrays: every leading axis is one more setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.objectives.quadratic import Array, Quadratics

MOST_CLIENTS = 12  # SSL visits 2^M sets of clients


@dataclass(frozen=True, eq=False)
class Round:
    """The effect of a round on E u and E uu': matrices of size d+1 and (d+1)^2."""

    mean: Array
    second: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """Expectations after r = 0..R rounds, r along the first axis.

    F, G2, r2: of F(x^r) - F*, ||grad F(x^r)||^2, ||x^r - x*||^2; psi: the weighted mean of F; Fbar: of F(xbar) - F*.
    """

    F: Array
    G2: Array
    r2: Array
    psi: Array
    Fbar: Array

    def summary(self) -> dict[str, Array]:
        """Return the values of the last round, and the mean and minimum of the gradients of all rounds."""
        return {
            "Fbar": self.Fbar[-1],
            "psi": self.psi[-1],
            "Flast": self.F[-1],
            "gavg": self.G2.mean(0),
            "gmin": self.G2.min(0),
            "r2": self.r2[-1],
        }


def ssl_round(problem: Quadratics, eta: Any, K: int, S: int | None = None) -> Round:
    """Return a round of SSL, averaged over all orders of S of M clients (default: all)."""
    T, noise = _build_visits(problem, eta, K)
    return Round(_average_over_orders(T, S), _average_over_orders(_add_noise(_multiply_kron(T, T), noise), S))


def fedavg_round(problem: Quadratics, eta: Any, K: int, S: int | None = None, replacement: bool = False) -> Round:
    """Return a round of FedAvg with S of M clients (default: all), drawn with or without replacement."""
    M, S = problem.M, problem.M if S is None else S
    if not 1 <= S <= M:
        raise OutOfRange("the clients of a round", value=f"S = {S}", limit=f"1 <= S <= M = {M}")
    T, noise = _build_visits(problem, eta, K)
    mean = T.mean(-3)
    apart = T - mean[..., None, :, :]
    v = 1 / S if replacement else (M - S) / (S * max(M - 1, 1))  # the lemma on simple random sampling, for T
    return Round(
        mean, _add_noise(_multiply_kron(mean, mean) + v * _multiply_kron(apart, apart).mean(-3), noise.mean(-2) / S)
    )


def trajectory(problem: Quadratics, round_: Round, x0: Array, R: int, shrink: Any = 1.0) -> Moments:
    """Compute R rounds from x0. The averaged output has w_r = shrink^-(r+1) with shrink = 1 - mu eta_tilde/2."""
    d, H = problem.d, problem.H_bar
    shrink = np.asarray(shrink, dtype=float)
    shape = np.broadcast_shapes(round_.mean.shape[:-2], shrink.shape, np.shape(x0)[:-1])
    u = np.broadcast_to(_append_one(np.asarray(x0, dtype=float) - problem.x_star), (*shape, d + 1))
    both = np.asarray(u[..., :, None] * u[..., None, :])
    cross, bar, rho = both[..., :d], both[..., :d, :d], np.ones(shape)
    seconds, bars = [both], [bar]
    for _ in range(R):
        rho = 1 + shrink * rho
        both = _apply(round_.second, both.reshape(*both.shape[:-2], -1)).reshape(both.shape)
        cross, bar = _update_average((1 / rho)[..., None, None], both[..., :d], round_.mean @ cross, bar)
        seconds.append(both)
        bars.append(bar)
    path = np.stack(seconds)
    F, G2, r2 = (_compute_quadratic(form, path) for form in (H, 2 * H @ H, 2 * np.eye(d)))
    return Moments(F, G2, r2, _compute_running_mean(F, shrink), _compute_quadratic(H, np.stack(bars)))


def _update_average(theta: Array, now: Array, moved: Array, bar: Array) -> tuple[Array, Array]:
    """E u xbar' and E xbar xbar' after xbar has moved by theta (x - xbar); `moved` is E u xbar' before."""
    d = bar.shape[-1]
    half = theta * (1 - theta) * moved[..., :d, :]
    both = (1 - theta) ** 2 * bar + half + half.swapaxes(-1, -2) + theta**2 * now[..., :d, :]
    return (1 - theta) * moved + theta * now, both


def _compute_running_mean(F: Array, shrink: Array) -> Array:
    """sum_{s<=r} w_s F_s / W_r for every r, with weights that never overflow."""
    means, rho = [F[0]], np.ones(F.shape[1:])
    for now in F[1:]:
        rho = 1 + shrink * rho
        means.append(means[-1] + (now - means[-1]) / rho)
    return np.stack(means)


def ssl_drift(problem: Quadratics, x: Array, eta: Any, K: int) -> Array:
    """Return sum_m sum_{k<K} E ||x_m^(k) - x||^2 of a round of SSL from x, over all orders."""
    step = _build_step_operators(problem, eta, x)
    visit, along = np.linalg.matrix_power(step, K), _sum_of_powers(step, K)
    start = np.zeros((*step.shape[:-3], step.shape[-1]))
    start[..., -1] = 1
    after, total = {frozenset[int](): start}, np.zeros(step.shape[:-3])
    for size in range(problem.M):
        chance = 1 / (comb(problem.M, size) * (problem.M - size))  # of these clients before, and this one next
        for before in _list_sets(problem.M, size):
            for m in set(range(problem.M)) - before:
                total = total + chance * _trace(_apply(along[..., m, :, :], after[before]))
        after |= {
            now: _average([_apply(visit[..., m, :, :], after[now - {m}]) for m in now])
            for now in _list_sets(problem.M, size + 1)
        }
    return total


def fedavg_drift(problem: Quadratics, x: Array, eta: Any, K: int) -> Array:
    """Return (1/M) sum_m sum_{k<K} E ||x_m^(k) - x||^2 of a round of FedAvg from x."""
    along = _sum_of_powers(_build_step_operators(problem, eta, x), K)
    return np.asarray(_trace(along[..., -1]).mean(-1))


def fixed_point(problem: Quadratics, round_: Round) -> Array:
    """Return the x that a round maps to itself in expectation."""
    d = problem.d
    gap = np.eye(d) - round_.mean[..., :d, :d]
    return np.asarray(problem.x_star + np.linalg.solve(gap, round_.mean[..., :d, d:])[..., 0])


def stationary(problem: Quadratics, round_: Round) -> tuple[Array, Array]:
    """Return the limits of E F(x) - F* and E ||x - x*||^2 for a round that contracts."""
    n = problem.d + 1
    gap = np.eye(n * n - 1) - round_.second[..., :-1, :-1]
    flat = np.asarray(np.linalg.solve(gap, round_.second[..., :-1, -1:])[..., 0], dtype=float)
    both = _append_one(flat).reshape(*flat.shape[:-1], n, n)
    return _compute_quadratic(problem.H_bar, both), _compute_quadratic(2 * np.eye(problem.d), both)


def _build_step_maps(problem: Quadratics, eta: Any, centre: Array) -> Array:
    """T of one local step of every client, for u = [x - centre; 1]: shape (..., M, d+1, d+1)."""
    eta = np.asarray(eta, dtype=float)[..., None, None, None]
    gradients = np.einsum("mij,...j->...mi", problem.H, centre) + problem.V
    slopes = np.concatenate([np.broadcast_to(problem.H, (*gradients.shape, problem.d)), gradients[..., None]], axis=-1)
    lower = np.zeros((*slopes.shape[:-2], 1, problem.d + 1))
    return np.asarray(np.eye(problem.d + 1) - eta * np.concatenate([slopes, lower], axis=-2))


def _build_visits(problem: Quadratics, eta: Any, K: int) -> tuple[Array, Array]:
    """T of every client's K local steps, and the flattened covariance of the noise they gather."""
    step = _build_step_maps(problem, eta, problem.x_star)
    gathered = _apply(_sum_of_powers(_multiply_kron(step, step), K), _build_step_noise(problem, eta))
    return np.linalg.matrix_power(step, K), gathered


def _build_step_operators(problem: Quadratics, eta: Any, centre: Array) -> Array:
    """O of one local step of every client, for u = [x - centre; 1]."""
    step = _build_step_maps(problem, eta, centre)
    return _add_noise(_multiply_kron(step, step), _build_step_noise(problem, eta))


def _build_step_noise(problem: Quadratics, eta: Any) -> Array:
    """eta^2 sigma2/d I, flattened: the same for every client, shape (..., 1, (d+1)^2)."""
    noise = np.zeros((problem.d + 1, problem.d + 1))
    noise[: problem.d, : problem.d] = np.eye(problem.d) * problem.sigma2 / problem.d
    return np.asarray(np.asarray(eta, dtype=float)[..., None, None] ** 2 * noise.ravel())


def _add_noise(operator: Array, noise: Array) -> Array:
    """The last column acts on E 1^2 = 1, the last entry of E uu': what is added to it is added to every result."""
    noisy = operator.copy()
    noisy[..., -1] += noise
    return noisy


def _average_over_orders(operators: Array, S: int | None = None) -> Array:
    """Return the mean over all orders pi of S clients of operators[pi_S] ... operators[pi_1].

    Sets of visited clients grow one by one; the last comer of a set is any of its members with equal chance.
    """
    M = operators.shape[-3]
    if M > MOST_CLIENTS:
        raise OutOfRange("the mean over all orders", value=f"M = {M}", limit=f"M <= {MOST_CLIENTS}")
    after = {frozenset[int](): np.broadcast_to(np.eye(operators.shape[-1]), operators[..., 0, :, :].shape)}
    for size in range(1, (M if S is None else S) + 1):
        after = {
            now: _average([operators[..., m, :, :] @ after[now - {m}] for m in now]) for now in _list_sets(M, size)
        }
    return _average(list(after.values()))


def _list_sets(M: int, size: int) -> list[frozenset[int]]:
    return [frozenset(chosen) for chosen in combinations(range(M), size)]


def _average(values: list[Array]) -> Array:
    return np.asarray(reduce(np.add, values) / len(values))


def _sum_of_powers(operator: Array, K: int) -> Array:
    """I + O + ... + O^(K-1)."""
    identity = np.eye(operator.shape[-1])
    total = np.zeros_like(operator)
    for _ in range(K):
        total = identity + operator @ total
    return total


def _multiply_kron(left: Array, right: Array) -> Array:
    n = left.shape[-1]
    return np.asarray(np.einsum("...ij,...kl->...ikjl", left, right)).reshape(*left.shape[:-2], n * n, n * n)


def _apply(operator: Array, flat: Array) -> Array:
    return np.asarray((operator @ flat[..., None])[..., 0])


def _append_one(z: Array) -> Array:
    return np.concatenate([z, np.ones((*z.shape[:-1], 1))], axis=-1)


def _compute_quadratic(H: Array, second: Array) -> Array:
    """E z'Hz/2 from a second moment whose leading block is E zz'."""
    d = len(H)
    return np.asarray(np.einsum("ij,...ij->...", H, second[..., :d, :d]) / 2)


def _trace(flat: Array) -> Array:
    """E ||z||^2 from a flattened E uu'."""
    n = round(flat.shape[-1] ** 0.5)
    return np.asarray(np.einsum("...ii->...", flat.reshape(*flat.shape[:-1], n, n)[..., :-1, :-1]))
