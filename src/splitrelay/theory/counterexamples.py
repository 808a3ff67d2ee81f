"""Small problems, solved on the spot, on which a display of the paper fails and its mended form holds.

Each function answers with numbers by name. "true" is the exact value of the left side, "printed" and "right" are the
right sides as displayed and as mended; where a problem shows it for two algorithms their names stand in front.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import numpy.typing as npt

Numbers = dict[str, float]
Array = npt.NDArray[np.float64]


def without_heterogeneity_the_rate_is_not_zero() -> Numbers:
    """E5. Gradient descent on F(x) = x^2/2 from x0 = 1, 20 rounds at eta_tilde = 1/(6L): B = sigma = zeta = 0."""
    L, B2, x0, R = 1.0, 0.0, 1.0, 20
    A, path = x0**2 / 2, x0 * (1 - 1 / 6) ** np.arange(R + 1)
    return {"true": float((path**2).min()), "printed": L * B2 * A / R, "right": L * (1 + B2) * A / R}


def noise_of_a_sample_is_that_of_S_clients() -> Numbers:
    """E7. F_m(x) = x^2/2 for all of M = 8 clients, S = K = 1, sigma = 1, eta = 1/60, from x = x*."""
    M, S, K, sigma2, eta = 8, 1, 1, 1.0, 1 / 60
    # At x = x* with zeta_* = 0 and K = 1 there is no drift and no gap: only the noise is left.
    return {"true": eta**2 * sigma2 / S, "printed": 3 * K * eta**2 * sigma2 / M, "right": 4 * K * eta**2 * sigma2 / S}


def weights_that_do_not_sum_to_R() -> Numbers:
    """E11. Gradient descent on F(x) = (x - 1)^2/2 started at its optimum: every iterate is x* = 1, the bound is 0.

    mu = L = 1, R = 6 and eta_tilde = 1/6, both ends of its range. "printed" and "right": F(xbar) - F* of both averages.
    """
    mu, eta_tilde, R = 1.0, 1 / 6, 6
    w = (1 - mu * eta_tilde / 2) ** -(np.arange(R + 1) + 1.0)
    path, x_star = np.ones(R + 1), 1.0
    printed, right = float((w @ path) / R), float((w @ path) / (w @ np.ones(R + 1)))
    return {"bound": 0.0, "printed": (printed - x_star) ** 2 / 2, "right": (right - x_star) ** 2 / 2}


def a_mean_of_squares_is_not_the_square_of_a_mean() -> Numbers:
    """E13. Group 1 (F_m(x) = x^2/2 +- x), K = 2, from x = x* = 0 at eta_tilde = 1/(6L), without noise."""
    a, K, M, L = np.array([1.0, -1.0]), 2, 2, 1.0
    answer: Numbers = {}
    for name, eta in (("ssl", 1 / (6 * L * M * K)), ("fedavg", 1 / (6 * L * K))):
        orders = list(permutations(range(M))) if name == "ssl" else [(0, 1)]
        sides = np.mean([_non_convex_sides(name, a[list(order)], eta, K, L) for order in orders], axis=0)
        answer |= {
            f"{name} {side}": float(value) for side, value in zip(("true", "printed", "right"), sides, strict=True)
        }
    return answer


def _non_convex_sides(name: str, a: Array, eta: float, K: int, L: float) -> tuple[float, float, float]:
    """F(x+) - F(x) from x = x* = 0, and both right sides, in which ||grad F(x)|| = 0."""
    M = len(a)
    xs, end = _local_points(name, a, eta, K)
    gradients = xs + a[:, None]
    spare = 1 - 2 * L * eta * K * (M if name == "ssl" else 1)
    scale = 1 if name == "ssl" else 1 / M
    drift = L**2 * eta / 2 * scale * float((xs**2).sum())
    printed = drift - eta / 2 * scale * spare * float((gradients**2).sum()) / M
    right = drift - eta / 2 * scale * M * spare * float((gradients.mean(0) ** 2).sum())
    return end**2 / 2, printed, right


def _local_points(name: str, a: Array, eta: float, K: int) -> tuple[Array, float]:
    """Where each local gradient is taken, (M, K), in a round from 0; and where the round ends."""
    xs, x, ends = np.zeros((len(a), K)), 0.0, []
    for m, slope in enumerate(a):
        x = x if name == "ssl" else 0.0
        for k in range(K):
            xs[m, k] = x
            x -= eta * (x + float(slope))
        ends.append(x)
    return xs, ends[-1] if name == "ssl" else float(np.mean(ends))


def without_noise_the_printed_step_never_shrinks() -> Numbers:
    """E14. SSL, strongly convex: mu = 1, L = 2, M = 4, K = 1, sigma = 0, zeta_*^2 = 100, D = 1; R = 10^2 to 10^5.

    The bound of Theorem 1 at the step of the printed rule (c = c1 = 0 makes it 1/(6L) for all R) and of the mended one.
    """
    mu, L, M, zeta2, D2 = 1.0, 2.0, 4, 100.0, 1.0
    a, c2 = mu / 2, 15 * L * zeta2 / (4 * M)
    answer: Numbers = {}
    for R in (10**2, 10**3, 10**4, 10**5):
        tau = max(2.0, a**3 * D2 * R**2 / c2)
        for rule, eta_tilde in (("printed", 1 / (6 * L)), ("right", min(np.log(tau) / (a * R), 1 / (6 * L)))):
            answer[f"{rule} R={R}"] = float(3 * mu * D2 * np.exp(-mu * eta_tilde * R / 2) + 2 * c2 * eta_tilde**2)
    return answer


def delta_grows_with_the_slopes() -> Numbers:
    """E19. Groups 4 to 6: F_1(x) = 2x^2/3 + ax, F_2(x) = x^2/3 - ax with x* = 0; "true" is |mean of local optima|."""
    answer: Numbers = {}
    for group, a in ((4, 1.0), (5, 10.0), (6, 100.0)):
        local_optima = np.array([-a / (4 / 3), a / (2 / 3)])
        answer |= {f"group {group} true": float(abs(local_optima.mean())), f"group {group} printed": 3 / 8}
        answer[f"group {group} right"] = 3 * a / 8
    return answer


def too_few_rounds_for_the_lemma() -> Numbers:
    """E26. The largest Psi_T that r_{t+1} <= (1 - a g) r_t - b g s_t allows, with a = b = r0 = 1, c = 0, g = 0.01.

    The recursion telescopes to g sum_t w_t s_t <= r0, with equality for s_0 alone: Psi_T = r0 / (g W_T).
    """
    a, r0, g = 1.0, 1.0, 0.01
    answer: Numbers = {}
    for T, side in ((0, "printed"), (49, "right")):  # 49: the first T with T + 1 >= 1/(2 a g)
        W = ((1 - a * g) ** -(np.arange(T + 1) + 1.0)).sum()
        answer |= {f"true T={T}": float(r0 / (g * W)), f"{side} T={T}": 3 * a * r0 * (1 - a * g) ** (T + 1)}
    return answer
