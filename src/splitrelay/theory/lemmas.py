"""The lemmas as numbers: sampling, the technical lemma, counts, basic inequalities; and a table of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.theory.problem import Problem, numbers, positive
from splitrelay.theory.recursions import drift, per_round, simplified
from splitrelay.theory.results import Algorithm, Case
from splitrelay.theory.scalar_or_array import Values, plain


@dataclass(frozen=True)
class Lemma:
    """One lemma's value for a problem: its group, its name, the formula in ASCII, the value."""

    group: str
    name: str
    formula: str
    value: Values


def sampling_variance(M: Values, S: Values, var: Values, *, replacement: bool) -> Values:
    """E||mean of S drawn - mean of all||^2, where var is the mean of ||X_i - mean||^2 over the M units."""
    clients, drawn = positive("M", M), positive("S", S)
    without = (clients - drawn) / (drawn * np.maximum(clients - 1, 1))  # of a single unit: 0
    return plain((1 / drawn if replacement else without) * numbers("var", var))


def sampling_covariance(M: Values, var: Values) -> Values:
    """E<X_i - mean, X_j - mean> of two units drawn without replacement; NaN where there is only one unit."""
    clients = positive("M", M)
    others = np.where(clients > 1, clients - 1, np.nan)
    return plain(-numbers("var", var) / others)


def technical_term(M: Values, K: Values, m: Values, k: Values, var: Values = 1.0) -> Values:
    """E||K sum_{i<m} (X_pi_i - mean) + k (X_pi_m - mean)||^2 for a random order pi; m counts from 1."""
    clients, steps, before, done = positive("M", M), positive("K", K), numbers("m", m) - 1, numbers("k", k)
    others = np.maximum(clients - 1, 1)
    value = before * (clients - before) / others * steps**2 + done**2 - 2 * before / others * steps * done
    return plain(np.where(clients > 1, value, 0) * numbers("var", var))  # a single unit has no variance


def technical_sum(M: Values, K: Values, var: Values = 1.0) -> Values:
    """The sum of the technical terms over m = 1..M and k = 0..K-1, exactly: (M^2 K^3 + M K) / 6 var."""
    clients, steps = positive("M", M), positive("K", K)
    value = (clients**2 * steps**3 + clients * steps) / 6
    return plain(np.where(clients > 1, value, 0) * numbers("var", var))


def technical_bound(M: Values, K: Values, var: Values = 1.0) -> Values:
    """What the paper uses of it: M^2 K^3 / 3 var."""
    return plain(positive("M", M) ** 2 * positive("K", K) ** 3 / 3 * numbers("var", var))


def technical_sum_misprinted(M: Values, K: Values, var: Values = 1.0) -> Values:
    """The sum with the plus sign that two lines of the proof print (E1): M K^2 (K - 1) var too much."""
    clients, steps = positive("M", M), positive("K", K)
    excess = clients * steps**2 * (steps - 1) * numbers("var", var)
    return plain(np.asarray(technical_sum(M, K, var)) + excess)


def count_sum(M: Values, K: Values) -> Values:
    """The sum of (m-1) K + k over a round: M K (M K - 1) / 2."""
    n = positive("M", M) * positive("K", K)
    return plain(n * (n - 1) / 2)


def count_sum_squares(M: Values, K: Values) -> Values:
    """The sum of ((m-1) K + k)^2 over a round: M K (M K - 1) (2 M K - 1) / 6."""
    n = positive("M", M) * positive("K", K)
    return plain(n * (n - 1) * (2 * n - 1) / 6)


def perturbed_strong_convexity(
    L: Values, mu: Values, *, gap: Values, yz2: Values, zx2: Values, sharp: bool = False
) -> Values:
    """<grad h(x), z - y> >= gap + mu/4 ||y - z||^2 - c ||z - x||^2, gap = h(z) - h(y).

    c = L as printed; (L + mu) / 2 in the sharp form (smoothness at (z, x), strong convexity at (y, x)).
    """
    smooth, convex = positive("L", L), numbers("mu", mu)
    c = (smooth + convex) / 2 if sharp else smooth
    return plain(numbers("gap", gap) + convex / 4 * numbers("yz2", yz2) - c * numbers("zx2", zx2))


def lemmas(
    problem: Problem,
    *,
    eta_tilde: Values,
    r2: Values | None = None,
    DF: Values | None = None,
    G2: Values | None = None,
    E: Values | None = None,
    E_mean: Values | None = None,
) -> tuple[Lemma, ...]:
    """Every lemma that the given quantities allow.

    The per-round recursions take the drift: E is SSL's, summed over clients; E_mean is FedAvg's, their mean.
    """
    rows = [*_sampling(problem), *_counting(problem)]
    drifts = {"ssl": E, "fedavg": E_mean, "fedavg-swor": E_mean, "fedavg-swr": E_mean}
    for name in ROUNDS:
        if name.startswith("fedavg-") and problem.S is None:
            continue
        if r2 is not None and DF is not None:
            rows += _convex_round(name, problem, eta_tilde, r2, DF, drifts[name])
        if G2 is not None and (name, "non-convex") in FORMULAS:
            rows += _nonconvex_round(name, problem, eta_tilde, G2, drifts[name])
    return tuple(rows)


def _sampling(problem: Problem) -> Iterator[Lemma]:
    if problem.M is None or problem.zeta2 is None:
        return
    M, var = problem.M, problem.zeta2
    if problem.S is not None:
        swor = sampling_variance(M, problem.S, var, replacement=False)
        swr = sampling_variance(M, problem.S, var, replacement=True)
        yield Lemma("sampling", "variance, without replacement", "(M - S) / (S (M - 1)) zeta2", swor)
        yield Lemma("sampling", "variance, with replacement", "zeta2 / S", swr)
    yield Lemma("sampling", "covariance, without replacement", "-zeta2 / (M - 1)", sampling_covariance(M, var))


def _counting(problem: Problem) -> Iterator[Lemma]:
    if problem.M is None or problem.K is None:
        return
    M, K = problem.M, problem.K
    if problem.zeta2 is not None:
        var = problem.zeta2
        yield Lemma("technical lemma", "exact", "(M^2 K^3 + M K) / 6 zeta2", technical_sum(M, K, var))
        yield Lemma("technical lemma", "bound", "M^2 K^3 / 3 zeta2", technical_bound(M, K, var))
    yield Lemma("counts", "sum of (m-1) K + k", "M K (M K - 1) / 2", count_sum(M, K))
    yield Lemma("counts", "sum of its squares", "M K (M K - 1) (2 M K - 1) / 6", count_sum_squares(M, K))


SC: Case = "strongly-convex"
NC: Case = "non-convex"
ROUNDS: tuple[Algorithm, ...] = ("ssl", "fedavg", "fedavg-swor", "fedavg-swr")
FORMULAS: dict[tuple[str, str], tuple[str, str, str]] = {  # of the recursion, the drift, the simplified recursion
    ("ssl", "strongly-convex"): (
        "(1 - mu MK eta/2) r2 - MK eta (2 - 6 L MK eta) DF + 3 MK eta^2 sigma2 + L eta (2 + 3 L MK eta) E",
        "9/2 L M^3 K^3 eta^2 DF + 9/4 M^2 K^2 eta^2 sigma2 + 3/2 M^2 K^3 eta^2 zeta2",
        "(1 - mu et/2) r2 - et/2 DF + 3 et^2 sigma2/(MK) + 45/8 L et^3 sigma2/(MK) + 15/4 L et^3 zeta2/M",
    ),
    ("fedavg", "strongly-convex"): (
        "(1 - mu K eta/2) r2 - K eta (2 - 6 L K eta) DF + 3 K eta^2 sigma2/M + L eta (2 + 3 L K eta) E",
        "3 L K^3 eta^2 DF + 9/4 K^2 eta^2 sigma2 + 3/2 K^3 eta^2 zeta2",
        "(1 - mu et/2) r2 - 3/4 et DF + 3 et^2 sigma2/(MK) + 45/8 L et^3 sigma2/K + 15/4 L et^3 zeta2",
    ),
    ("fedavg-swor", "strongly-convex"): (
        "(1 - mu K eta/2) r2 - K eta (2 - 8 L K eta) DF + 4 K eta^2 sigma2/S + 4 K^2 eta^2 v zeta2"
        " + L eta (2 + 4 L K eta) E, v = (M - S)/(S (M - 1))",
        "3 L K^3 eta^2 DF + 9/4 K^2 eta^2 sigma2 + 3/2 K^3 eta^2 zeta2",
        "(1 - mu et/2) r2 - 4/9 et DF + 4 et^2 sigma2/(SK) + 4 et^2 v zeta2 + 6 L et^3 sigma2/K + 4 L et^3 zeta2",
    ),
    ("ssl", "non-convex"): (
        "-MK eta/2 G2 + L MK eta^2 sigma2 + L^2 eta/2 E",
        "3/2 M^3 K^3 eta^2 G2 + 3/2 M^2 K^3 B2 eta^2 G2 + 9/4 M^2 K^2 eta^2 sigma2 + 3/2 M^2 K^3 eta^2 zeta2",
        "-et/3 G2 + L et^2 sigma2/(MK) + 9/8 L^2 et^3 sigma2/(MK) + 3/4 L^2 et^3 zeta2/M",
    ),
    ("fedavg", "non-convex"): (
        "-K eta/2 G2 + L K eta^2 sigma2/M + L^2 eta/2 E",
        "3/2 K^3 eta^2 (B2 + 1) G2 + 9/4 K^2 eta^2 sigma2 + 3/2 K^3 eta^2 zeta2",
        "-et/3 G2 + L et^2 sigma2/(MK) + 9/8 L^2 et^3 sigma2/K + 3/4 L^2 et^3 zeta2",
    ),
}
_recursion, _drift, _simplified = FORMULAS["fedavg-swor", "strongly-convex"]
FORMULAS["fedavg-swr", "strongly-convex"] = (_recursion.replace("(M - S)/(S (M - 1))", "1/S"), _drift, _simplified)


def _convex_round(
    name: Algorithm, problem: Problem, eta_tilde: Values, r2: Values, DF: Values, E: Values | None
) -> Iterator[Lemma]:
    recursion_text, drift_text, simplified_text = FORMULAS[name, SC]
    if E is not None:
        value = per_round(name, SC, problem, eta_tilde=eta_tilde, r2=r2, DF=DF, E=E)
        yield Lemma("recursion", f"{name} {SC}", recursion_text, value)
    yield Lemma("drift", f"{name} {SC}", drift_text, drift(name, SC, problem, eta_tilde=eta_tilde, DF=DF))
    if name == "ssl":
        tight = drift(name, SC, problem, eta_tilde=eta_tilde, DF=DF, constants="tight")
        yield Lemma("drift", f"{name} {SC}, tightened", drift_text.replace("9/2", "3"), tight)
    value = simplified(name, SC, problem, eta_tilde=eta_tilde, r2=r2, DF=DF)
    yield Lemma("simplified recursion", f"{name} {SC}", simplified_text, value)


def _nonconvex_round(
    name: Algorithm, problem: Problem, eta_tilde: Values, G2: Values, E: Values | None
) -> Iterator[Lemma]:
    recursion_text, drift_text, simplified_text = FORMULAS[name, NC]
    if E is not None:
        value = per_round(name, NC, problem, eta_tilde=eta_tilde, G2=G2, E=E)
        yield Lemma("recursion", f"{name} {NC}", recursion_text, value)
    yield Lemma("drift", f"{name} {NC}", drift_text, drift(name, NC, problem, eta_tilde=eta_tilde, G2=G2))
    value = simplified(name, NC, problem, eta_tilde=eta_tilde, G2=G2)
    yield Lemma("simplified recursion", f"{name} {NC}", simplified_text, value)
