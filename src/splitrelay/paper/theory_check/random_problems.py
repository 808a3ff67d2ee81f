"""Random noisy quadratics for the checks. A seed and a number identify each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitrelay.objectives.quadratic import Array, Quadratics
from splitrelay.randomness import Purpose, rng

KINDS = ("apart", "equal curvature", "apart", "flat clients", "apart", "one curvature a client")
MAX_KAPPA = 20.0
SIGMA2 = (0.0, 0.01, 1.0, 25.0)


@dataclass(frozen=True, eq=False)
class Instance:
    """A convex problem, a problem of the same size with indefinite clients, and the parameters of their runs."""

    number: int
    kind: str
    convex: Quadratics
    indefinite: Quadratics
    x0: Array
    K: int
    S: int
    points: Array  # x - x* of single rounds, (points, d)
    fractions: Array  # of the largest step, in those rounds


def draw_instance(seed: int, number: int) -> Instance:
    """Draw instance `number`: M 1-4, d 1-3, K 1-10, kappa <= 20, zeta .1-100, sigma2 one of four values."""
    g = rng(seed, Purpose.INSTANCES, number)
    M, d, K = int(g.integers(1, 5)), int(g.integers(1, 4)), int(g.integers(1, 11))
    kind, sigma2 = KINDS[number % len(KINDS)], float(g.choice(SIGMA2))
    L, kappa, zeta, D = (_draw_log_uniform(g, *ends) for ends in ((0.3, 3), (1, MAX_KAPPA), (0.1, 100), (0.1, 30)))
    x_star = g.normal(size=d)
    H = _draw_curvatures(g, kind, M, d, L, kappa)
    slopes = _draw_slopes(g, M, d, zeta)
    saddles = _draw_indefinite(g, H, float(g.uniform(0.2, 1.5)))
    start, near = D * _draw_direction(g, d), _draw_log_uniform(g, 1e-3, 1) * g.normal(size=d)
    return Instance(
        number=number,
        kind=kind,
        convex=Quadratics(H, slopes - H @ x_star, sigma2),
        indefinite=Quadratics(saddles, slopes - saddles @ x_star, sigma2),
        x0=x_star + start,
        K=K,
        S=int(g.integers(1, M + 1)),
        points=np.array([start, np.zeros(d), near, D * g.normal(size=d)]),
        fractions=np.array([1.0, 1.0, _draw_log_uniform(g, 0.01, 1), _draw_log_uniform(g, 0.01, 1)]),
    )


def _draw_log_uniform(g: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(g.uniform(np.log(low), np.log(high))))


def _draw_direction(g: np.random.Generator, d: int) -> Array:
    vector = g.normal(size=d)
    return np.asarray(vector / np.linalg.norm(vector))


def _draw_rotation(g: np.random.Generator, eigenvalues: Array) -> Array:
    Q, _ = np.linalg.qr(g.normal(size=(len(eigenvalues), len(eigenvalues))))
    H = Q * eigenvalues @ Q.T
    return np.asarray((H + H.T) / 2)


def _draw_curvatures(g: np.random.Generator, kind: str, M: int, d: int, L: float, kappa: float) -> Array:
    if kind == "flat clients" and M > 1:  # as in groups 7 to 9: mu = 0 for all but one, kappa = L / mean mu
        eigenvalues = g.uniform(0, L, size=(M, d)) * (g.uniform(size=(M, d)) < 0.5)
        eigenvalues[:, 0] = 0
        eigenvalues[0] = g.uniform(min(L, L * M / max(kappa, M)), L, size=d)  # L M / M may round above L
        eigenvalues[0, -1] = L
    else:
        eigenvalues = L * kappa ** -g.uniform(size=(M, d))
        eigenvalues[0, 0], eigenvalues[-1, -1] = L / kappa, L
    if kind == "one curvature a client":
        eigenvalues[:] = eigenvalues[:, :1]
    if kind == "equal curvature":
        return np.repeat(_draw_rotation(g, eigenvalues[0])[None], M, axis=0)
    return np.stack([_draw_rotation(g, row) for row in eigenvalues])


def _draw_slopes(g: np.random.Generator, M: int, d: int, zeta: float) -> Array:
    """Draw grad F_m(x*). They sum to zero, and the mean of their squares is zeta^2 (0 for a single client)."""
    raw = g.normal(size=(M, d))
    differences = raw - raw.mean(0)
    size = np.sqrt((differences**2).sum(1).mean())
    return np.zeros((M, d)) if M == 1 else np.asarray(zeta * differences / size)


def _draw_indefinite(g: np.random.Generator, H: Array, size: float) -> Array:
    """Move the curvatures of the clients apart around the same mean, until some are negative."""
    raw = g.normal(size=H.shape)
    pulls = raw + raw.swapaxes(1, 2)
    pulls = size * np.abs(H).max() * (pulls - pulls.mean(0))
    return np.asarray(H.mean(0) + pulls)
