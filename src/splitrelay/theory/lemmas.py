"""The lemmas as numbers: sampling, the technical lemma, counts, basic inequalities, and a table of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.theory.problem import Problem, check_numbers, check_positive
from splitrelay.theory.recursions import compute_drift_bound, compute_round_bound, compute_simplified_bound
from splitrelay.theory.results import Algorithm, Case, Values, unwrap_values


@dataclass(frozen=True)
class Lemma:
    """The value of one lemma for a problem, with its formula in ASCII."""

    group: str
    name: str
    formula: str
    value: Values


def compute_sampling_variance(M: Values, S: Values, var: Values, *, replacement: bool) -> Values:
    """Compute E||mean of S sampled units - mean of all||^2.

    Args:
        var: the mean of ||X_i - mean||^2 over the M units.
        replacement: whether a unit can be drawn more than once.
    """
    clients, sample = check_positive("M", M), check_positive("S", S)
    without = (clients - sample) / (sample * np.maximum(clients - 1, 1))  # a single unit gives 0
    return unwrap_values((1 / sample if replacement else without) * check_numbers("var", var))


def compute_sampling_covariance(M: Values, var: Values) -> Values:
    """Compute E<X_i - mean, X_j - mean> of two units drawn without replacement; NaN if there is only one unit."""
    clients = check_positive("M", M)
    others = np.where(clients > 1, clients - 1, np.nan)
    return unwrap_values(-check_numbers("var", var) / others)


def compute_technical_term(M: Values, K: Values, m: Values, k: Values, var: Values = 1.0) -> Values:
    """Compute E||K sum_{i<m} (X_pi_i - mean) + k (X_pi_m - mean)||^2 for a random order pi (m starts at 1)."""
    clients, steps, before, done = (
        check_positive("M", M),
        check_positive("K", K),
        check_numbers("m", m) - 1,
        check_numbers("k", k),
    )
    others = np.maximum(clients - 1, 1)
    value = before * (clients - before) / others * steps**2 + done**2 - 2 * before / others * steps * done
    return unwrap_values(np.where(clients > 1, value, 0) * check_numbers("var", var))  # a single unit has no variance


def compute_technical_sum(M: Values, K: Values, var: Values = 1.0) -> Values:
    """Compute the sum of the technical terms over m = 1..M and k = 0..K-1: exactly (M^2 K^3 + M K) / 6 var."""
    clients, steps = check_positive("M", M), check_positive("K", K)
    value = (clients**2 * steps**3 + clients * steps) / 6
    return unwrap_values(np.where(clients > 1, value, 0) * check_numbers("var", var))


def compute_technical_bound(M: Values, K: Values, var: Values = 1.0) -> Values:
    """Compute the upper bound of this sum that the paper uses: M^2 K^3 / 3 var."""
    return unwrap_values(check_positive("M", M) ** 2 * check_positive("K", K) ** 3 / 3 * check_numbers("var", var))


def compute_misprinted_technical_sum(M: Values, K: Values, var: Values = 1.0) -> Values:
    """Compute the sum with the wrong sign in two lines of the proof (E1). It is too large by M K^2 (K - 1) var."""
    clients, steps = check_positive("M", M), check_positive("K", K)
    excess = clients * steps**2 * (steps - 1) * check_numbers("var", var)
    return unwrap_values(np.asarray(compute_technical_sum(M, K, var)) + excess)


def compute_count_sum(M: Values, K: Values) -> Values:
    """Compute the sum of (m-1) K + k over a round: M K (M K - 1) / 2."""
    n = check_positive("M", M) * check_positive("K", K)
    return unwrap_values(n * (n - 1) / 2)


def compute_count_sum_squares(M: Values, K: Values) -> Values:
    """Compute the sum of ((m-1) K + k)^2 over a round: M K (M K - 1) (2 M K - 1) / 6."""
    n = check_positive("M", M) * check_positive("K", K)
    return unwrap_values(n * (n - 1) * (2 * n - 1) / 6)


def compute_perturbed_convexity(
    L: Values, mu: Values, *, gap: Values, yz2: Values, zx2: Values, sharp: bool = False
) -> Values:
    """Compute the lower bound gap + mu/4 ||y - z||^2 - c ||z - x||^2 of <grad h(x), z - y>, where gap = h(z) - h(y).

    The paper has c = L. The sharp form has c = (L + mu) / 2, from smoothness at (z, x) and convexity at (y, x).
    """
    smooth, convex = check_positive("L", L), check_numbers("mu", mu)
    c = (smooth + convex) / 2 if sharp else smooth
    return unwrap_values(
        check_numbers("gap", gap) + convex / 4 * check_numbers("yz2", yz2) - c * check_numbers("zx2", zx2)
    )


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
    """Evaluate every lemma for which the quantities are known.

    Args:
        r2, DF: ||x^r - x*||^2 and F(x^r) - F*, for the convex recursions.
        G2: ||grad F(x^r)||^2, for the non-convex recursions.
        E: the drift of SSL in the round, summed over clients and steps.
        E_mean: the drift of FedAvg in the round, summed over steps and averaged over clients.

    >>> [lemma.value for lemma in lemmas(Problem(M=2, K=2), eta_tilde=1.0)]
    [6.0, 14.0]
    """
    rows = [*_evaluate_sampling(problem), *_evaluate_counts(problem)]
    drifts = {"ssl": E, "fedavg": E_mean, "fedavg-swor": E_mean, "fedavg-swr": E_mean}
    for name in ROUNDS:
        if name.startswith("fedavg-") and problem.S is None:
            continue
        if r2 is not None and DF is not None:
            rows += _evaluate_convex_round(name, problem, eta_tilde, r2, DF, drifts[name])
        if G2 is not None and (name, "non-convex") in FORMULAS:
            rows += _evaluate_nonconvex_round(name, problem, eta_tilde, G2, drifts[name])
    return tuple(rows)


def _evaluate_sampling(problem: Problem) -> Iterator[Lemma]:
    if problem.M is None or problem.zeta2 is None:
        return
    M, var = problem.M, problem.zeta2
    if problem.S is not None:
        swor = compute_sampling_variance(M, problem.S, var, replacement=False)
        swr = compute_sampling_variance(M, problem.S, var, replacement=True)
        yield Lemma("sampling", "variance, without replacement", "(M - S) / (S (M - 1)) zeta2", swor)
        yield Lemma("sampling", "variance, with replacement", "zeta2 / S", swr)
    yield Lemma("sampling", "covariance, without replacement", "-zeta2 / (M - 1)", compute_sampling_covariance(M, var))


def _evaluate_counts(problem: Problem) -> Iterator[Lemma]:
    if problem.M is None or problem.K is None:
        return
    M, K = problem.M, problem.K
    if problem.zeta2 is not None:
        var = problem.zeta2
        yield Lemma("technical lemma", "exact", "(M^2 K^3 + M K) / 6 zeta2", compute_technical_sum(M, K, var))
        yield Lemma("technical lemma", "bound", "M^2 K^3 / 3 zeta2", compute_technical_bound(M, K, var))
    yield Lemma("counts", "sum of (m-1) K + k", "M K (M K - 1) / 2", compute_count_sum(M, K))
    yield Lemma("counts", "sum of its squares", "M K (M K - 1) (2 M K - 1) / 6", compute_count_sum_squares(M, K))


SC: Case = "strongly-convex"
NC: Case = "non-convex"
ROUNDS: tuple[Algorithm, ...] = ("ssl", "fedavg", "fedavg-swor", "fedavg-swr")
FORMULAS: dict[
    tuple[str, str], tuple[str, str, str]
] = {  # formulas of the recursion, the drift and the simplified recursion
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


def _evaluate_convex_round(
    name: Algorithm, problem: Problem, eta_tilde: Values, r2: Values, DF: Values, E: Values | None
) -> Iterator[Lemma]:
    recursion_text, drift_text, simplified_text = FORMULAS[name, SC]
    if E is not None:
        value = compute_round_bound(name, SC, problem, eta_tilde=eta_tilde, r2=r2, DF=DF, E=E)
        yield Lemma("recursion", f"{name} {SC}", recursion_text, value)
    yield Lemma("drift", f"{name} {SC}", drift_text, compute_drift_bound(name, SC, problem, eta_tilde=eta_tilde, DF=DF))
    if name == "ssl":
        tight = compute_drift_bound(name, SC, problem, eta_tilde=eta_tilde, DF=DF, constants="tight")
        yield Lemma("drift", f"{name} {SC}, tightened", drift_text.replace("9/2", "3"), tight)
    value = compute_simplified_bound(name, SC, problem, eta_tilde=eta_tilde, r2=r2, DF=DF)
    yield Lemma("simplified recursion", f"{name} {SC}", simplified_text, value)


def _evaluate_nonconvex_round(
    name: Algorithm, problem: Problem, eta_tilde: Values, G2: Values, E: Values | None
) -> Iterator[Lemma]:
    recursion_text, drift_text, simplified_text = FORMULAS[name, NC]
    if E is not None:
        value = compute_round_bound(name, NC, problem, eta_tilde=eta_tilde, G2=G2, E=E)
        yield Lemma("recursion", f"{name} {NC}", recursion_text, value)
    yield Lemma("drift", f"{name} {NC}", drift_text, compute_drift_bound(name, NC, problem, eta_tilde=eta_tilde, G2=G2))
    value = compute_simplified_bound(name, NC, problem, eta_tilde=eta_tilde, G2=G2)
    yield Lemma("simplified recursion", f"{name} {NC}", simplified_text, value)
