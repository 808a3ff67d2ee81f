"""Quadratic clients F_m(x) = x'H_m x/2 + V_m'x with noise N(0, sigma2/d I). All constants of the paper are exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange

Array = npt.NDArray[np.float64]
Generator = Callable[[], np.random.Generator]

ROUNDING = 1e-12  # relative: an eigenvalue below it is zero


@dataclass(frozen=True, eq=False)
class Quadratics:
    """M clients in d dimensions: H of shape (M, d, d), symmetric, and V of shape (M, d)."""

    H: Array
    V: Array
    sigma2: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "H", np.asarray(self.H, dtype=float))
        object.__setattr__(self, "V", np.asarray(self.V, dtype=float))
        if self.V.ndim != 2 or 0 in self.V.shape or self.H.shape != (*self.V.shape, self.V.shape[1]):
            shapes = f"H {self.H.shape}, V {self.V.shape}"
            raise InputError("quadratics need H of shape (M, d, d) and V of shape (M, d)", value=shapes)
        if not (np.isfinite(self.H).all() and np.isfinite(self.V).all()):
            raise InputError("quadratics need finite numbers in H and V", hint="Look for NaN or infinity.")
        if not np.allclose(self.H, self.H.swapaxes(1, 2), rtol=1e-9, atol=ROUNDING * np.abs(self.H).max()):
            raise InputError("every H_m must be symmetric", hint="Use (H_m + H_m') / 2.")
        if not 0 <= self.sigma2 < math.inf:
            raise OutOfRange("the noise of quadratics", value=self.sigma2, limit="0 <= sigma2 < inf")

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.V)

    @property
    def d(self) -> int:
        """The dimension of x."""
        return int(self.V.shape[1])

    # The operations of a client

    def draw(self, m: int, K: int, generator: Generator) -> Sequence[Array | None]:
        """Draw K noise vectors xi. Without noise, return K times None and do not create the generator."""
        if self.sigma2 == 0:
            return [None] * K
        return list(math.sqrt(self.sigma2 / self.d) * generator().standard_normal((K, self.d)))

    def gradient(self, m: int, x: Array, xi: Array | None = None) -> Array:
        """Return the stochastic gradient of F_m at x, or the exact one without xi. x may have shape (..., d)."""
        exact: Array = x @ self.H[m] + self.V[m]
        return exact if xi is None else exact + xi

    # What only we can do

    def F_m(self, m: int, x: Array) -> Array:
        """Return the objective of client m at x."""
        return np.asarray((x @ self.H[m] * x).sum(-1) / 2 + x @ self.V[m])

    def F(self, x: Array) -> Array:
        """Return the mean of the objectives of all clients at x."""
        return np.asarray((x @ self.H_bar * x).sum(-1) / 2 + x @ self.V.mean(0))

    def full_gradient(self, x: Array) -> Array:
        """Return the gradient of F at x."""
        return np.asarray(x @ self.H_bar + self.V.mean(0))

    @cached_property
    def H_bar(self) -> Array:
        """The Hessian of F."""
        return np.asarray(self.H.mean(0))

    @cached_property
    def x_star(self) -> Array:
        """The minimizer of F."""
        least = np.linalg.eigvalsh(self.H_bar)[0]
        if least <= ROUNDING * self.L:
            raise OutOfRange("F has no unique minimiser", value=float(least), limit="mean of H_m positive definite")
        return np.asarray(np.linalg.solve(self.H_bar, -self.V.mean(0))) + 0.0  # + 0.0: no negative zeros

    @cached_property
    def F_star(self) -> float:
        """The minimum of F."""
        return float(self.F(self.x_star))

    @cached_property
    def at_optimum(self) -> Array:
        """grad F_m(x*) of every client, of shape (M, d)."""
        return np.asarray(self.H @ self.x_star + self.V)

    @cached_property
    def eigenvalues(self) -> Array:
        """The eigenvalues of each H_m in ascending order, (M, d). Values within rounding errors of zero are zero."""
        found = np.linalg.eigvalsh(self.H)
        return np.where(np.abs(found) <= ROUNDING * np.abs(found).max(), 0.0, found)

    @property
    def L(self) -> float:
        """The smoothness of every F_m: the largest |eigenvalue| of any H_m."""
        return float(np.abs(self.eigenvalues).max())

    @property
    def mu_min(self) -> float:
        """The smallest eigenvalue of all clients. It is the paper's mu if it is positive."""
        return float(self.eigenvalues[:, 0].min())

    @property
    def mu_mean(self) -> float:
        """The mean over clients of their smallest eigenvalue. It suffices for the theorems if none is negative."""
        return float(self.eigenvalues[:, 0].mean())

    @property
    def zeta2_star(self) -> float:
        """Heterogeneity at the optimum: the mean of ||grad F_m(x*)||^2."""
        return float((self.at_optimum**2).sum(1).mean())

    @property
    def delta(self) -> float:
        """The distance of the mean of local optima from x*.

        It is inf if a client has no optimum. If a client has many, the one nearest to x* counts.
        """
        shifts = []
        for H, g, eigenvalues in zip(self.H, self.at_optimum, self.eigenvalues, strict=True):
            shift = -np.linalg.pinv(H, rcond=ROUNDING, hermitian=True) @ g
            if eigenvalues[0] < 0 or np.abs(H @ shift + g).max() > 1e-9 * np.abs(g).max():
                return math.inf
            shifts.append(shift)
        return float(np.linalg.norm(np.mean(shifts, axis=0)))

    @property
    def c_H(self) -> Array:
        """The mean of H_m grad F_m(x*): FedAvg's bias for small steps is eta (K-1)/2 H_bar^-1 c_H."""
        return np.asarray(np.einsum("mij,mj->i", self.H, self.at_optimum) / self.M)

    @cached_property
    def tr_Lambda(self) -> float:
        """Trace of the covariance over orders of sum_{i<j} H_{pi_j} g_{pi_i}, g = grad F_m(x*), for any M.

        With u_ab = H_b g_a - H_a g_b the sum is its mean plus (1/4) sum_ab s_ab u_ab, s_ab = +-1 as a stands before
        or after b; Cov(s_ab, s_ac) = 1/3, disjoint pairs are uncorrelated, and sum_b u_ab = M H_bar g_a.
        """
        crossed = np.einsum("bij,aj->abi", self.H, self.at_optimum)
        pairs = ((crossed - crossed.swapaxes(0, 1)) ** 2).sum()
        rows = ((self.M * self.at_optimum @ self.H_bar) ** 2).sum()
        return float((pairs + 2 * rows) / 24)

    def eta_tilde_star(self, K: int) -> float:
        """Return the eta_tilde below which SSL beats FedAvg, to leading order (0: never, inf: always)."""
        gain = (1 - 1 / K) ** 2 - 1 / (self.M * K) ** 2
        bias = float(self.c_H @ np.linalg.solve(self.H_bar, self.c_H))
        if self.M == 1 or gain <= 0 or bias <= ROUNDING * self.L * self.zeta2_star:
            return 0.0
        return math.inf if self.tr_Lambda == 0 else self.M**4 * gain * bias / (2 * self.tr_Lambda)

    def zeta2(self, B2: float) -> float:
        """Return the smallest zeta2 that is valid with this B2 in the non-convex case, or inf if there is none."""
        apart = self.H - self.H_bar
        P = np.einsum("mij,mjk->ik", apart, apart) / self.M
        q = np.einsum("mij,mj->i", apart, self.at_optimum) / self.M
        gap = B2 * self.H_bar @ self.H_bar - P
        least = np.linalg.eigvalsh(gap)[0]
        scale = ROUNDING * self.L**2 * (1 + B2)
        if least < -scale:
            return math.inf
        if least > scale:
            return float(self.zeta2_star + q @ np.linalg.solve(gap, q))
        # On the edge the supremum is finite only where q has no part in the flat directions.
        z = np.linalg.pinv(gap, rcond=1e-9, hermitian=True) @ q
        flat = np.abs(gap @ z - q).max() > 1e-9 * max(np.abs(q).max(), scale)
        return math.inf if flat else float(self.zeta2_star + q @ z)

    @property
    def B2_min(self) -> float:
        """The smallest B2 for which a finite zeta2 exists."""
        inverse = np.linalg.inv(self.H_bar)
        apart = (self.H - self.H_bar) @ inverse
        return float(np.linalg.eigvalsh(np.einsum("mij,mik->jk", apart, apart) / self.M)[-1])


@dataclass(frozen=True, eq=False)
class ScalarQuadratics:
    """One-dimensional clients F_m(x) = h_m x^2/2 + a_m x. h_m and a_m are numbers, Fractions or arrays of settings."""

    h: Sequence[Any] | Array
    a: Sequence[Any] | Array
    sigma2: float = 0.0

    def __post_init__(self) -> None:
        if len(self.h) != len(self.a) or len(self.h) == 0:
            raise InputError("scalar quadratics need one h and one a per client", value=f"{len(self.h)}, {len(self.a)}")

    @classmethod
    def beside(cls, problems: Sequence[Quadratics]) -> ScalarQuadratics:
        """Combine one-dimensional problems with equal M and noise. x has the shape (problems, etas)."""
        if len({(problem.M, problem.d, problem.sigma2) for problem in problems}) != 1 or problems[0].d != 1:
            raise InputError("only one-dimensional quadratics with equal M and sigma2 can stand side by side")
        h = np.stack([problem.H[:, :, 0] for problem in problems], axis=1)
        a = np.stack([problem.V for problem in problems], axis=1)
        return cls(h, a, problems[0].sigma2)

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.h)

    @property
    def x_star(self) -> Any:
        """The minimizer of F for each setting."""
        return -sum(self.a) / sum(self.h)

    def draw(self, m: int, K: int, generator: Generator) -> Sequence[float | None]:
        """Draw K noises xi, the same for all settings. Without noise, return K times None and create no generator."""
        if self.sigma2 == 0:
            return [None] * K
        return [float(xi) for xi in math.sqrt(self.sigma2) * generator().standard_normal(K)]

    def gradient(self, m: int, x: Any, xi: Any = None) -> Any:
        """Return the stochastic gradient of F_m at x, or the exact one without xi."""
        exact = self.h[m] * x + self.a[m]
        return exact if xi is None else exact + xi
