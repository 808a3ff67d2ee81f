"""Do the lemmas hold, and do they fit together into the theorems?"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import InputError
from splitrelay.theory import Problem, lemmas
from splitrelay.theory.lemmas import (
    compute_count_sum,
    compute_count_sum_squares,
    compute_perturbed_convexity,
    compute_sampling_covariance,
    compute_sampling_variance,
    compute_technical_bound,
    compute_technical_sum,
    compute_technical_term,
)
from splitrelay.theory.recursions import compute_drift_bound, compute_round_bound, compute_simplified_bound
from tests.support.error_fields import expect_error
from tests.support.theory_problems import ALL_CASES, bound, for_all, last_iterate, problems, sizes, useful_local_steps

SC, GC, NC = ALL_CASES
UNITS = [Fraction(n) for n in (3, -1, 4, 1)]
MEAN = sum(UNITS) / 4
VAR = sum((x - MEAN) ** 2 for x in UNITS) / 4


@pytest.mark.parametrize("S", [1, 2, 3, 4])
def test_sampling_variance_is_that_of_all_samples(S: int) -> None:
    for replacement, samples in ((False, combinations(UNITS, S)), (True, product(UNITS, repeat=S))):
        errors = [(sum(sample) / S - MEAN) ** 2 for sample in samples]
        assert compute_sampling_variance(4, S, float(VAR), replacement=replacement) == pytest.approx(
            float(sum(errors) / len(errors))
        )


def test_sampling_covariance_is_that_of_all_pairs() -> None:
    products = [(x - MEAN) * (y - MEAN) for x, y in permutations(UNITS, 2)]
    assert compute_sampling_covariance(4, float(VAR)) == pytest.approx(float(sum(products) / len(products)))


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_technical_term_is_the_mean_over_all_orders(m: int, k: int) -> None:
    """The minus sign of the cross term, that two lines of the proof misprint (E1)."""
    orders = list(permutations([x - MEAN for x in UNITS]))
    exact = sum((3 * sum(order[: m - 1]) + k * order[m - 1]) ** 2 for order in orders) / len(orders)
    assert compute_technical_term(4, 3, m, k, float(VAR)) == pytest.approx(float(exact))


@for_all(st.integers(1, 10**4), st.integers(1, 10**3))
def test_technical_bound_covers_the_sum(M: int, K: int) -> None:
    assert compute_technical_sum(M, K) <= compute_technical_bound(M, K)


@pytest.mark.parametrize(("M", "K"), [(1, 1), (3, 4), (5, 2)])
def test_counts_are_those_of_a_round(M: int, K: int) -> None:
    assert (compute_count_sum(M, K), compute_count_sum_squares(M, K)) == (
        sum(range(M * K)),
        sum(n * n for n in range(M * K)),
    )


@for_all(sizes(0.01, 1), sizes(1, 10), st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1))
def test_perturbed_strong_convexity_holds_on_quadratics(
    mu: float, L: float, x: float, y: float, z: float, share: float
) -> None:
    h = mu + share * (L - mu)  # any curvature between mu and L
    inner, gap = h * x * (z - y), h * (z * z - y * y) / 2
    for sharp in (False, True):
        below = compute_perturbed_convexity(L, mu, gap=gap, yz2=(y - z) ** 2, zx2=(z - x) ** 2, sharp=sharp)
        assert inner >= below - 1e-9


ROUNDS = [
    ("ssl", SC, "proved"),
    ("ssl", SC, "tight"),
    ("ssl", GC, "proved"),
    ("fedavg", SC, "proved"),
    ("fedavg", GC, "proved"),
    ("fedavg-swor", SC, "proved"),
    ("fedavg-swr", SC, "proved"),
    ("ssl", NC, "proved"),
    ("fedavg", NC, "proved"),
    ("ssl", NC, "tight"),
    ("fedavg", NC, "tight"),
]


@pytest.mark.parametrize("which", ROUNDS, ids=" ".join)
@for_all(problems(), st.floats(1e-3, 1), sizes(1e-3, 1e3), sizes(1e-3, 1e3))
def test_recursion_and_drift_give_the_simplified_recursion(
    which: tuple[str, str, str], problem: Problem, share: float, first: float, second: float
) -> None:
    """The step of the proofs that fixes b and c: for every step of the range, put the drift into the recursion."""
    algorithm, case, constants = which
    clients = problem.M if algorithm == "ssl" else 1
    slower = 1.0
    if case == NC:
        slower = math.sqrt(1 + problem.B2 / clients) if constants == "tight" else 1 + problem.B2
    step = share / (6 * problem.L * slower)
    measured = {"G2": first} if case == NC else {"DF": first}
    E = compute_drift_bound(algorithm, case, problem, eta_tilde=step, constants=constants, **measured)
    start = {} if case == NC else {"r2": second}
    long = compute_round_bound(algorithm, case, problem, eta_tilde=step, E=E, **measured, **start)
    short = compute_simplified_bound(algorithm, case, problem, eta_tilde=step, constants=constants, **measured, **start)
    assert long <= short + 1e-12 * (abs(short) + first + second)


@for_all(problems(), st.sampled_from(["ssl", "fedavg", "fedavg-swor", "fedavg-swr"]), st.floats(1e-3, 1))
def test_last_iterate_is_the_recursion_applied_over_and_over(problem: Problem, algorithm: str, share: float) -> None:
    short = replace(problem, R=50)
    step = share / (6 * problem.L)
    r2 = problem.D2
    for _ in range(50):
        r2 = compute_simplified_bound(algorithm, SC, short, eta_tilde=step, r2=r2)
    found = last_iterate(algorithm, short, eta_tilde=step)
    assert r2 <= found.total * (1 + 1e-12)
    left = (1 - problem.mu * step / 2) ** 50
    assert r2 == pytest.approx(found.total - left * (found.total - found.terms["optimization"]), rel=1e-9, abs=0)


def test_last_iterate_needs_neither_many_rounds_nor_a_large_step() -> None:
    few = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=3, D2=1)
    found = last_iterate("ssl", few, eta_tilde=1e-3)
    assert found.applicable is True and [condition.name for condition in found.conditions] == ["eta_tilde <= 1/(6 L)"]
    assert found.total == pytest.approx(0.9995**3 + 2 * (0.06 * 1e-3 + 3.225 * 1e-6), rel=1e-12, abs=0)


def test_last_iterate_is_vacuous_where_it_is_not_below_the_start() -> None:
    noisy = Problem(L=2, mu=1, sigma2=1e4, zeta2=4, M=1, K=1, R=3, D2=1)
    assert last_iterate("ssl", noisy, eta_tilde=1e-2).vacuous is True


@for_all(problems(), st.sampled_from(["ssl", "fedavg"]), st.sampled_from(ALL_CASES))
def test_at_the_last_useful_K_noise_equals_heterogeneity(problem: Problem, algorithm: str, case: str) -> None:
    step = 1 / (6 * problem.L * (1 + problem.B2))
    K = useful_local_steps(algorithm, case, problem, eta_tilde=step)
    terms = bound(algorithm, case, replace(problem, K=1), eta_tilde=step, outside="mask").terms
    if math.isfinite(K) and K > 0 and not math.isnan(terms["noise"]):
        assert terms["noise"] / K == pytest.approx(terms["heterogeneity drift"], rel=1e-12, abs=0)


def test_useful_K_where_a_term_is_absent() -> None:
    problem = Problem(L=2, mu=1, sigma2=np.asarray([1, 0, 0]), zeta2=np.asarray([0, 4, 0]), M=10, K=5, R=100)
    assert useful_local_steps("ssl", SC, problem).tolist() == [math.inf, 0, 0]


def test_useful_K_raises_where_it_is_not_defined() -> None:
    problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, S=5, K=5, R=100)
    with expect_error(InputError, what=("ssl", "general-convex", "eta_tilde")):
        useful_local_steps("ssl", GC, problem)
    with pytest.raises(InputError):
        useful_local_steps("fedavg-swor", SC, problem)


def test_the_table_of_lemmas_has_what_the_quantities_allow() -> None:
    problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, S=5, K=5)
    all_of_them = lemmas(problem, eta_tilde=0.05, r2=0.7, DF=0.4, G2=0.9, E=0.05, E_mean=0.01)
    assert len(all_of_them) == 7 + 6 + 6 + 7  # without a round; recursions, simplified ones; drifts, one tightened
    few = lemmas(Problem(M=10, K=5), eta_tilde=0.05)
    assert [lemma.name for lemma in few] == ["sum of (m-1) K + k", "sum of its squares"]
    named = {(lemma.group, lemma.name): lemma for lemma in all_of_them}
    assert named["drift", "ssl strongly-convex, tightened"].formula.startswith("3 L M^3 K^3")
    assert named["drift", "ssl strongly-convex, tightened"].value == pytest.approx(0.380625)
    assert named["recursion", "fedavg-swr strongly-convex"].formula.endswith("v = 1/S")
