"""Errors in the paper, E1 to E30: the place, the printed text, the correction, and counterexamples for seven of them.

A counterexample is a small problem, solved exactly, for which a printed formula fails and the corrected one holds. Its
function returns numbers by name: "true" is the exact left-hand side, "printed" and "right" are the right-hand sides as
printed and as corrected. The name of an algorithm or a group comes first if there are several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np

from splitrelay.errors import UnknownName
from splitrelay.theory.results import Array

Numbers = dict[str, float]
Severity = Literal["misprint", "gap", "looser than stated"]

SEVERITIES: dict[Severity, str] = {
    "misprint": "a typing error; every result holds",
    "gap": "a condition, a case or a step of the argument is missing or wrong, or a text contradicts its own sources",
    "looser than stated": "the argument gives a weaker result than the paper states",
}


@dataclass(frozen=True)
class Erratum:
    """One error: its place, the printed text, the correction, its severity, and a counterexample if there is one."""

    number: int
    where: str
    printed: str
    right: str
    severity: Severity
    counterexample: Callable[[], Numbers] | None = None

    @property
    def name(self) -> str:
        """E1, E2, ..."""
        return f"E{self.number}"

    @property
    def example(self) -> str:
        """The description of the counterexample, or an empty string."""
        text = self.counterexample.__doc__ if self.counterexample else None
        return " ".join((text or "").split()).removeprefix(f"{self.name}. ")


def erratum(name: str) -> Erratum:
    """Return the entry with this name: "E7", "e7" or "7".

    >>> erratum("e17").right
    'sigma^2 replaced by sigma^2/(MK)'
    """
    wanted = f"E{name.strip().upper().removeprefix('E')}"
    for entry in ERRATA:
        if entry.name == wanted:
            return entry
    raise UnknownName("erratum", name, (entry.name for entry in ERRATA))


def compute_E5() -> Numbers:
    """E5. Gradient descent on F(x) = x^2/2 from x0 = 1, 20 rounds at eta_tilde = 1/(6L): B = sigma = zeta = 0."""
    L, B2, x0, R = 1.0, 0.0, 1.0, 20
    A, path = x0**2 / 2, x0 * (1 - 1 / 6) ** np.arange(R + 1)
    return {"true": float((path**2).min()), "printed": L * B2 * A / R, "right": L * (1 + B2) * A / R}


def compute_E7() -> Numbers:
    """E7. F_m(x) = x^2/2 for all of M = 8 clients, S = K = 1, sigma = 1, eta = 1/60, from x = x*."""
    M, S, K, sigma2, eta = 8, 1, 1, 1.0, 1 / 60
    # At x = x* with zeta_* = 0 and K = 1 there is no drift and no gap: only the noise is left.
    return {"true": eta**2 * sigma2 / S, "printed": 3 * K * eta**2 * sigma2 / M, "right": 4 * K * eta**2 * sigma2 / S}


def compute_E11() -> Numbers:
    """E11. Gradient descent on F(x) = (x - 1)^2/2 started at its optimum: every iterate is x* = 1, the bound is 0.

    mu = L = 1, R = 6 and eta_tilde = 1/6, both ends of its range. "printed" and "right": F(xbar) - F* of both averages.
    """
    mu, eta_tilde, R = 1.0, 1 / 6, 6
    w = (1 - mu * eta_tilde / 2) ** -(np.arange(R + 1) + 1.0)
    path, x_star = np.ones(R + 1), 1.0
    printed, right = float((w @ path) / R), float((w @ path) / (w @ np.ones(R + 1)))
    return {"bound": 0.0, "printed": (printed - x_star) ** 2 / 2, "right": (right - x_star) ** 2 / 2}


def compute_E13() -> Numbers:
    """E13. Group 1 (F_m(x) = x^2/2 +- x), K = 2, from x = x* = 0 at eta_tilde = 1/(6L), without noise."""
    a, K, M, L = np.array([1.0, -1.0]), 2, 2, 1.0
    values: Numbers = {}
    for name, eta in (("ssl", 1 / (6 * L * M * K)), ("fedavg", 1 / (6 * L * K))):
        orders = list(permutations(range(M))) if name == "ssl" else [(0, 1)]
        sides = np.mean([_compute_E13_sides(name, a[list(order)], eta, K, L) for order in orders], axis=0)
        values |= {
            f"{name} {side}": float(value) for side, value in zip(("true", "printed", "right"), sides, strict=True)
        }
    return values


def _compute_E13_sides(name: str, a: Array, eta: float, K: int, L: float) -> tuple[float, float, float]:
    """Return F(x+) - F(x) from x = x* = 0 and both right-hand sides, in which ||grad F(x)|| = 0."""
    M = len(a)
    xs, end = _run_local_steps(name, a, eta, K)
    gradients = xs + a[:, None]
    spare = 1 - 2 * L * eta * K * (M if name == "ssl" else 1)
    scale = 1 if name == "ssl" else 1 / M
    drift = L**2 * eta / 2 * scale * float((xs**2).sum())
    printed = drift - eta / 2 * scale * spare * float((gradients**2).sum()) / M
    right = drift - eta / 2 * scale * M * spare * float((gradients.mean(0) ** 2).sum())
    return end**2 / 2, printed, right


def _run_local_steps(name: str, a: Array, eta: float, K: int) -> tuple[Array, float]:
    """Run one round from 0. Return the points of all local gradients, shape (M, K), and the end of the round."""
    xs, x, ends = np.zeros((len(a), K)), 0.0, []
    for m, slope in enumerate(a):
        x = x if name == "ssl" else 0.0
        for k in range(K):
            xs[m, k] = x
            x -= eta * (x + float(slope))
        ends.append(x)
    return xs, ends[-1] if name == "ssl" else float(np.mean(ends))


def compute_E14() -> Numbers:
    """E14. SSL, strongly convex: mu = 1, L = 2, M = 4, K = 1, sigma = 0, zeta_*^2 = 100, D = 1; R = 10^2 to 10^5.

    The bound of Theorem 1 at the step of the printed rule (c = c1 = 0 makes it 1/(6L) for all R) and of the mended one.
    """
    mu, L, M, zeta2, D2 = 1.0, 2.0, 4, 100.0, 1.0
    a, c2 = mu / 2, 15 * L * zeta2 / (4 * M)
    values: Numbers = {}
    for R in (10**2, 10**3, 10**4, 10**5):
        tau = max(2.0, a**3 * D2 * R**2 / c2)
        for rule, eta_tilde in (("printed", 1 / (6 * L)), ("right", min(np.log(tau) / (a * R), 1 / (6 * L)))):
            values[f"{rule} R={R}"] = float(3 * mu * D2 * np.exp(-mu * eta_tilde * R / 2) + 2 * c2 * eta_tilde**2)
    return values


def compute_E19() -> Numbers:
    """E19. Groups 4 to 6: F_1(x) = 2x^2/3 + ax, F_2(x) = x^2/3 - ax with x* = 0; "true" is |mean of local optima|."""
    values: Numbers = {}
    for group, a in ((4, 1.0), (5, 10.0), (6, 100.0)):
        local_optima = np.array([-a / (4 / 3), a / (2 / 3)])
        values |= {f"group {group} true": float(abs(local_optima.mean())), f"group {group} printed": 3 / 8}
        values[f"group {group} right"] = 3 * a / 8
    return values


def compute_E26() -> Numbers:
    """E26. The largest Psi_T that r_{t+1} <= (1 - a g) r_t - b g s_t allows, with a = b = r0 = 1, c = 0, d = 6.

    The recursion telescopes to g sum_t w_t s_t <= r0, with equality for s_0 alone: Psi_T = r0 / (g W_T). At T = 0 it is
    (1 - g)/g, and the display holds only for g >= 1/3, above the limit 1/d: the printed step does not exist. At T = 49
    g = 0.01 = 1/(2 a (T+1)) is inside the condition.
    """
    a, r0 = 1.0, 1.0
    values: Numbers = {}
    for T, g, side in ((0, 1 / 6, "printed"), (49, 0.01, "right")):
        W = ((1 - a * g) ** -(np.arange(T + 1) + 1.0)).sum()
        values |= {f"true T={T}": float(r0 / (g * W)), f"{side} T={T}": 3 * a * r0 * (1 - a * g) ** (T + 1)}
    return values


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        1,
        "technical lemma on sampling in sequence, proof: the cross term, and its sum over m and k",
        "+ 2 (m-1)/(M-1) K k var",
        "- 2 (m-1)/(M-1) K k var; the display between the two and the final (M^2 K^3 + M K)/6 var have the right sign",
        "misprint",
    ),
    Erratum(
        2,
        "Theorem 1, strongly convex case, proof: the step used to simplify the recursion",
        "L K eta <= 1/6",
        "L M K eta <= 1/6",
        "misprint",
    ),
    Erratum(
        3,
        "drift lemma of SSL, non-convex: its assumptions",
        "those of Theorem 2, and eta <= 1/(6 L K)",
        "those of Theorem 1, and eta <= 1/(6 L M K), which the last line of its proof uses",
        "gap",
    ),
    Erratum(
        4,
        "Theorem 1, non-convex case, proof: the drift put into the recursion",
        "1/2 - 3/4 L^2 M^2 K^2 eta^2 - 3/4 L^2 M K^2 eta^2",
        "the last term carries B^2: 3/4 L^2 M K^2 B^2 eta^2; the bracket is still at least 1/3",
        "misprint",
    ),
    Erratum(
        5,
        "Corollary 1, non-convex rate, and the same rate of FedAvg: the last term",
        "L B^2 A / R",
        "L (1 + B^2) A / R, since the step is capped by 1/(6 L (1 + B^2)); as printed it vanishes with B",
        "looser than stated",
        compute_E5,
    ),
    Erratum(
        6,
        "corollaries on partial participation: coefficients of the error terms",
        "[4 sigma2/(SK) + 4 v zeta2] eta_tilde + [6 L sigma2/K + 4 L zeta2] eta_tilde^2",
        "9, 9, 27/2 and 9: dividing by b = 4/9 was done to the first term of the bound (27/8) but not to these",
        "looser than stated",
    ),
    Erratum(
        7,
        "partial participation, proof: display (8), the recursion of a round",
        "3 K eta^2 sigma2/M and L eta (2 + 3 L K eta) times the drift",
        "4 K eta^2 sigma2/S and L eta (2 + 4 L K eta) times the drift, which the line after it uses",
        "looser than stated",
        compute_E7,
    ),
    Erratum(
        8,
        "partial participation, proof: third term of display (1), left side of display (7)",
        "eta/M times a sum over all M clients",
        "eta/S times the sum over the S that were drawn",
        "misprint",
    ),
    Erratum(
        9,
        "partial participation, proof: what is put into display (8)",
        "the lemma on the recursion of a round",
        "the lemma on the drift of clients",
        "misprint",
    ),
    Erratum(
        10,
        "corollary on sampling with replacement: its assumption",
        "clients drawn without replacement",
        "with replacement, and a client drawn twice must train twice with its own noise; if its draws share one run the"
        " noise is K eta^2 sigma2/S (1 + (S-1)/M) instead of K eta^2 sigma2/S",
        "gap",
    ),
    Erratum(
        11,
        "Theorem 2: the averaged output",
        "xbar = (1/R) sum_r w_r x^r",
        "xbar = (1/W_R) sum_r w_r x^r with W_R = sum_r w_r; divided by R it is no average",
        "gap",
        compute_E11,
    ),
    Erratum(
        12,
        "recursion of SSL, non-convex, proof: first display, last term",
        "L/2 E||(eta/M) sum_m sum_k g||^2",
        "L/2 E||eta sum_m sum_k g||^2, as in the display after it",
        "misprint",
    ),
    Erratum(
        13,
        "recursions of SSL and FedAvg, non-convex, proofs: the term that is then dropped",
        "- eta/2 (1 - 2 L M K eta) (1/M) sum_m sum_k ||grad F_m(x_m^k)||^2 (FedAvg: eta/(2M), L K eta)",
        "- M eta/2 (1 - 2 L M K eta) sum_k E||(1/M) sum_m grad F_m(x_m^k)||^2 (FedAvg: eta/2, L K eta): Jensen was used"
        " backwards; both recursions hold",
        "gap",
        compute_E13,
    ),
    Erratum(
        14,
        "tuning lemma, strongly convex, as applied: one constant c for the two orders c1 and c2",
        "eta_tilde = min{ln(max{2, a^2 r0 T/c})/(a T), 1/d} with c = c1",
        "tau = max{2, min(a^2 r0 T/c1, a^3 r0 T^2/c2)} in the logarithm, leaving out a ratio whose c is 0; without"
        " noise the printed step stays at 1/d and the bound does not fall with R",
        "gap",
        compute_E14,
    ),
    Erratum(
        15,
        "Theorems 1 and 2, strongly convex: the range of the step",
        "1/(mu R) <= eta_tilde <= 1/(6 L)",
        "the same, and R >= 6 L/mu, without which the range is empty",
        "gap",
    ),
    Erratum(
        16,
        "Theorem 1, non-convex: the point whose gradient is bounded",
        "grad F(x), and E[F(x^0) - F*] for a fixed start",
        "grad F(x^r), and F(x^0) - F*",
        "misprint",
    ),
    Erratum(17, "Table 1, first note", "sigma replaced by sigma/(MK)", "sigma^2 replaced by sigma^2/(MK)", "misprint"),
    Erratum(
        18,
        "Table 1, second note: heterogeneity in the form of other authors",
        "B^2 ||grad F(x)|| + zeta^2",
        "(B^2 + 1) ||grad F(x)||^2 + zeta^2",
        "misprint",
    ),
    Erratum(
        19,
        "table of the nine groups of quadratics: delta of groups 5 and 6",
        "3/8",
        "15/4 for group 5 and 75/2 for group 6: delta = 3a/8",
        "gap",
        compute_E19,
    ),
    Erratum(
        20,
        "experiments across devices: how long SSL runs",
        "a tenth of FedAvg's rounds",
        "a fiftieth: the paper's own rule S/M with M = 500 and S = 10",
        "gap",
    ),
    Erratum(
        21,
        "section on random reshuffling: source of the quoted lower bound zeta2/(mu^2 M R^2)",
        "Safran and Shamir, for random reshuffling",
        "theirs is 1/(MR)^2 + 1/(M R^3) for reshuffling and 1/(M R^2) for one shuffle kept; 1/(M R^2) for reshuffling"
        " on functions that are not quadratic is credited to Rajput and others (2020)",
        "gap",
    ),
    Erratum(
        22,
        "drift lemmas of SSL, proofs: the mean put into the technical lemma",
        "Xbar = (1/M) sum F_{pi_i}(x*) = F(x*) = 0, and gradients at x_m^(r,j)",
        "gradients throughout: Xbar = grad F(x*) = 0, and gradients at x_i^(r,j)",
        "misprint",
    ),
    Erratum(
        23,
        "Jensen's inequality, and the appendix's pseudo-code",
        "h and f for one function; client tau_m",
        "one letter; client pi_m",
        "misprint",
    ),
    Erratum(
        24,
        "comparison under partial participation: SSL has the smaller bound",
        "stated from the dominant terms alone",
        "needs R >= 6 (L/mu) M/S for Theorem 1 to apply and R >= (L/mu) (M/S) (M-1)/(M-S) for the terms left out",
        "gap",
    ),
    Erratum(
        25,
        "Table 1 against Corollary 1: the exponent of the first term",
        "exp(-mu R/L)",
        "exp(-mu R/(12 L)): with mu = 1, L = 10, R = 600 that is e^-5, not e^-60",
        "looser than stated",
    ),
    Erratum(
        26,
        "tuning lemma, strongly convex: first display",
        "there exists a constant step g <= 1/d with Psi_T <= 3 a r0 (1 - a g)^(T+1) + c g",
        "every g with 1/(2 a (T+1)) <= g <= 1/d will do, a condition that comes only with the second display; where"
        " T + 1 is below d/(2 a) there may be no such step",
        "gap",
        compute_E26,
    ),
    Erratum(
        27,
        "Algorithms 3 and 4: the first client's half of the model",
        "x_{c,m-1} is handed to client m, also for m = 1; nobody makes x_c^0",
        "for m = 1 it is x_c^r from the last client of the round before; x_c^0 is made by the server, or by the first"
        " client where the server may not see it",
        "gap",
    ),
    Erratum(
        28,
        "experiments across silos: the text on K",
        "SSL rises up to K = 10, then falls; FedAvg rises throughout at C = 2 and falls with K at C = 1",
        "its table: SSL at C = 2 has 85.52 84.33 86.43 85.48; FedAvg at C = 2 ends 81.24 81.09, at C = 1 it rises from"
        " 25.30 to 32.07 between K = 20 and 30",
        "gap",
    ),
    Erratum(
        29,
        "Theorem 2, both convex cases, and the corollaries on partial participation: the left side",
        "F(xbar^R) - F(x*)",
        "E F(xbar^R) - F(x*), as in Theorem 1: the proofs bound the expectation",
        "misprint",
    ),
    Erratum(
        30,
        "section on random reshuffling: the bound is said to match a lower bound, hence to be tight",
        "L zeta2/(mu^2 M R^2) matches Omega(min{1, zeta2/(mu^2 M R^2)})",
        "the lower bound has the units of a squared distance: a gap of at least mu/2 times it, zeta2/(mu M R^2);"
        " between the two remains a factor of kappa = L/mu",
        "looser than stated",
    ),
)
