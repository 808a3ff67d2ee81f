"""Do the bounds obey the laws that a reader would check by hand?"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.theory import Problem
from splitrelay.theory.theorem_constants import POWER, get_error_constants, get_statement
from tests.support.theory_problems import ALL_CASES, STATEMENTS, bound, for_all, problems, rate, stepsize

statements = st.sampled_from(STATEMENTS)
shares = st.floats(0, 1)


def inside(algorithm: str, case: str, constants: str, problem: Problem, share: float) -> float:
    """A step in the range: `share` of the way, in logarithms."""
    step = stepsize(algorithm, case, problem, constants=constants)
    low = step.low if step.low > 0 else step.high * 1e-6
    return float(low ** (1 - share) * step.high**share)


@for_all(problems(), statements, shares)
def test_the_total_is_the_sum_of_its_terms(problem: Problem, which: tuple[str, str, str], share: float) -> None:
    found = bound(*which[:2], problem, eta_tilde=inside(*which, problem, share), constants=which[2])
    assert found.total == pytest.approx(math.fsum(found.terms.values()), rel=1e-14, abs=0)
    assert all(condition.holds for condition in found.conditions)


@for_all(problems(), statements, shares)
def test_eta_and_eta_tilde_are_two_names_of_one_step(
    problem: Problem, which: tuple[str, str, str], share: float
) -> None:
    step = inside(*which, problem, 0.5 + share / 4)
    per_eta = problem.K * (problem.M if which[0] == "ssl" else 1)
    by_tilde = bound(*which[:2], problem, eta_tilde=step, constants=which[2])
    by_eta = bound(*which[:2], problem, eta=step / per_eta, constants=which[2], outside="mask")
    assert by_tilde.eta == pytest.approx(step / per_eta, rel=1e-15, abs=0)
    assert by_eta.total == pytest.approx(by_tilde.total, rel=1e-12, abs=0)


@for_all(problems(), statements, shares, st.integers(-8, 8), st.integers(-8, 8))
def test_units_of_length_and_of_value_do_not_matter(
    problem: Problem, which: tuple[str, str, str], share: float, length: int, value: int
) -> None:
    """Measure x in units of 1/s and F in units of 1/v (powers of two, hence exact): the bound changes as F does, and
    in the non-convex case as ||grad F||^2."""
    s, v = 2.0**length, 2.0**value
    gradient2 = (v / s) ** 2
    other = replace(
        problem,
        L=problem.L * v / s**2,
        mu=problem.mu * v / s**2,
        sigma2=problem.sigma2 * gradient2,
        zeta2=problem.zeta2 * gradient2,
        D2=problem.D2 * s**2,
        A=problem.A * v,
    )
    step = inside(*which, problem, share)
    before = bound(*which[:2], problem, eta_tilde=step, constants=which[2])
    after = bound(*which[:2], other, eta_tilde=step * s**2 / v, constants=which[2])
    factor = gradient2 if which[1] == "non-convex" else v
    tiny = 1e-300  # terms that underflow are rounded up to the smallest normal number
    for name, term in before.terms.items():
        assert after.terms[name] == pytest.approx(factor * term, rel=1e-12, abs=tiny)
    if which[0] in ("ssl", "fedavg"):
        orders = rate(which[0], which[1], problem), rate(which[0], which[1], other)
        for name, term in orders[0].terms.items():
            assert orders[1].terms[name] == pytest.approx(factor * term, rel=1e-12, abs=tiny)


@for_all(problems(), st.sampled_from(ALL_CASES), shares)
def test_tight_ssl_is_never_above_fedavg(problem: Problem, case: str, share: float) -> None:
    step = inside("fedavg", case, "tight", problem, share)
    ssl, fedavg = (bound(name, case, problem, eta_tilde=step, constants="tight") for name in ("ssl", "fedavg"))
    assert all(ssl.terms[name] <= fedavg.terms[name] for name in ssl.terms)


@for_all(problems(M=1), st.sampled_from(ALL_CASES), shares)
def test_with_one_client_tight_ssl_is_fedavg(problem: Problem, case: str, share: float) -> None:
    step = inside("fedavg", case, "tight", problem, share)
    ssl, fedavg = (bound(name, case, problem, eta_tilde=step, constants="tight") for name in ("ssl", "fedavg"))
    assert ssl.terms == fedavg.terms and ssl.eta == fedavg.eta


@for_all(problems(), statements, shares)
def test_one_more_round_is_never_worse(problem: Problem, which: tuple[str, str, str], share: float) -> None:
    algorithm, case, constants = which
    step = inside(*which, problem, share)
    as_displayed, sharper = (
        bound(algorithm, case, problem, eta_tilde=step, constants=constants, horizon=horizon)
        for horizon in ("R", "R+1")
    )
    assert sharper.total <= as_displayed.total
    displays_one_more = algorithm.startswith("fedavg-")
    assert (as_displayed.rounds, sharper.rounds) == (problem.R + displays_one_more, problem.R + 1)


@for_all(problems(), shares)
def test_all_clients_without_replacement_are_not_sampled(problem: Problem, share: float) -> None:
    everyone = replace(problem, S=problem.M)
    step = inside("fedavg-swor", "strongly-convex", "proved", everyone, share)
    assert bound("fedavg-swor", "strongly-convex", everyone, eta_tilde=step).terms["sampling"] == 0


@for_all(problems(), shares)
def test_with_replacement_is_never_better(problem: Problem, share: float) -> None:
    step = inside("fedavg-swor", "strongly-convex", "proved", problem, share)
    swor, swr = (bound(f"fedavg-{way}", "strongly-convex", problem, eta_tilde=step) for way in ("swor", "swr"))
    assert swor.total <= swr.total


@pytest.mark.parametrize("which", STATEMENTS, ids=" ".join)
def test_a_theorem_is_its_recursion_divided_by_b(which: tuple[str, str, str]) -> None:
    """Psi / b for every row of the table but the printed corollaries, which forget it in all terms but one (E6)."""
    row = get_statement(*which)
    first = {"strongly-convex": 3 / 2, "general-convex": 1, "non-convex": 1}[which[1]]  # 3 a = 3 mu / 2
    assert row.optimization == pytest.approx(first / row.recursion.b, rel=1e-15, abs=0)
    forgotten = which[2] == "printed"
    for name, constant in get_error_constants(row.recursion).items():
        assert get_error_constants(row)[name] == pytest.approx(
            constant / (1 if forgotten else row.recursion.b), rel=1e-15, abs=0
        )
    assert set(get_error_constants(row)) <= set(POWER)


@pytest.mark.parametrize("algorithm", ["ssl", "fedavg"])
def test_proved_and_printed_differ_in_partial_participation_alone(algorithm: str) -> None:
    for case in ALL_CASES:
        assert get_statement(algorithm, case, "printed") == get_statement(algorithm, case, "proved")
    assert get_statement("fedavg-swor", "strongly-convex", "printed") != get_statement(
        "fedavg-swor", "strongly-convex", "proved"
    )


@for_all(problems(), st.sampled_from(ALL_CASES))
def test_the_tight_range_is_the_wider_one(problem: Problem, case: str) -> None:
    for algorithm, clients in (("ssl", problem.M), ("fedavg", 1)):
        proved, tight = (stepsize(algorithm, case, problem, constants=c).high for c in ("proved", "tight"))
        if case == "non-convex":
            assert proved == pytest.approx(1 / (6 * problem.L * (1 + problem.B2)), rel=1e-14, abs=0)
            assert tight == pytest.approx(1 / (6 * problem.L * math.sqrt(1 + problem.B2 / clients)), rel=1e-14, abs=0)
        else:
            assert proved == tight == 1 / (6 * problem.L)


PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, S=5, K=5, R=100, D2=1, A=1.5)


@pytest.mark.parametrize(("end", "inside"), [(1e-13, True), (-1e-13, True), (1e-9, False)])
def test_the_ends_belong_to_the_range(end: float, inside: bool) -> None:
    for step in (1 / 12 * (1 + end), 0.01 * (1 - end)):
        found = bound("ssl", "strongly-convex", PROBLEM, eta_tilde=step, outside="mask")
        assert found.applicable is inside
        assert math.isnan(found.total) is not inside


def test_R_at_6_kappa_leaves_one_step() -> None:
    edge = replace(PROBLEM, L=0.05, mu=0.01, R=30)
    assert bound("fedavg", "strongly-convex", edge, eta_tilde=1 / 0.3).applicable is True


def test_masking_blanks_every_number_and_nothing_else() -> None:
    steps = np.asarray([0.001, 0.02, 0.05, 0.1])
    found = bound("ssl", "strongly-convex", PROBLEM, eta_tilde=steps, outside="mask")
    assert found.applicable.tolist() == [False, True, True, False]
    assert np.isnan(found.total).tolist() == [True, False, False, True]
    assert all(np.isnan(term).tolist() == [True, False, False, True] for term in found.terms.values())
    assert found.eta_tilde.tolist() == steps.tolist() and found.vacuous.tolist() == [False] * 4


def test_arrays_broadcast() -> None:
    problem = replace(PROBLEM, R=np.asarray([100, 200, 400])[:, None])
    found = bound("ssl", "strongly-convex", problem, eta_tilde=np.asarray([0.02, 0.05]))
    assert found.total.shape == found.terms["noise"].shape == found.eta.shape == (3, 2)
    assert found.total[1, 0] == bound("ssl", "strongly-convex", replace(PROBLEM, R=200), eta_tilde=0.02).total


@pytest.mark.parametrize(
    ("case", "change", "vacuous"),
    [
        ("general-convex", {"A": 0.29}, True),  # total 0.2948
        ("general-convex", {"A": 0.30}, False),
        ("general-convex", {"A": None}, False),  # L D2 / 2 = 1
        ("general-convex", {"A": None, "D2": 0.04}, True),  # total 0.0644, L D2 / 2 = 0.04
        ("non-convex", {"A": 1.5}, False),  # total 0.56, 2 L A = 6
        ("non-convex", {"A": 0.001}, True),
    ],
)
def test_vacuous_is_no_better_than_the_start(case: str, change: dict[str, float | None], vacuous: bool) -> None:
    step = 1 / 12 if case == "general-convex" else 1 / 18
    assert bound("ssl", case, replace(PROBLEM, **change), eta_tilde=step).vacuous is vacuous


def test_zeta2_star_is_the_convex_heterogeneity_where_it_is_given() -> None:
    both = replace(PROBLEM, zeta2_star=1.0)
    convex, nonconvex = (bound("ssl", case, both, eta_tilde=0.05) for case in ("general-convex", "non-convex"))
    assert convex.terms["heterogeneity drift"] == pytest.approx(15 * 2 * 0.05**2 * 1 / 20)
    assert nonconvex.terms["heterogeneity drift"] == pytest.approx(9 * 4 * 0.05**2 * 4 / 40)
