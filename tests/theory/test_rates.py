"""The rates contain the right quantities, and the comparison of algorithms uses them for equal settings."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory import CONSTANTS, RATES, Problem
from splitrelay.theory.comparison import ARTEFACT, NO_PARTIAL, NO_ROUND, SAME
from tests.support.error_fields import expect_error
from tests.support.theory_problems import ALL_CASES, bound, compare, for_all, problems, rate, stepsize, table_one

SC, GC, NC = ALL_CASES
PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, S=5, K=5, R=100, D2=1, A=1.5)
APART = replace(PROBLEM, zeta2_star=3.0, sigma2_star=0.5)


def test_table_one_tells_the_three_variances_apart() -> None:
    """Karimireddy et al. have zeta everywhere; Koloskova et al. sigma at the optimum; ours zeta at the optimum."""
    found = table_one(APART)
    assert list(found) == ["table-sgd", "table-karimireddy", "table-koloskova", "table-fedavg", "table-ssl"]
    drift = {name: row.terms.get("heterogeneity drift") for name, row in found.items()}
    assert drift == pytest.approx(
        {
            "table-sgd": None,
            "table-karimireddy": 2 * 4 / 1e4,
            "table-koloskova": 2 * 3 / 1e4,
            "table-fedavg": 2 * 3 / 1e4,
            "table-ssl": 2 * 3 / 1e5,
        }
    )
    noise = {name: row.terms["noise"] for name, row in found.items()}
    assert noise == pytest.approx({name: 2e-4 / (2 if name == "table-koloskova" else 1) for name in found})


def test_karimireddys_row_needs_zeta_everywhere() -> None:
    with expect_error(InputError, what="zeta2", hint="zeta2"):
        rate("table-karimireddy", SC, replace(APART, zeta2=None))
    assert rate("table-ssl", SC, replace(APART, zeta2=None)).total > 0


@for_all(problems())
def test_without_heterogeneity_constants_the_printed_rate_vanishes(problem: Problem) -> None:
    """E5: plain gradient descent (one client, no noise) does not reach a stationary point at once."""
    quiet = replace(problem, sigma2=0, zeta2=0, B2=0)
    printed, proved, tight = (rate("ssl", NC, quiet, constants=c).total for c in ("printed", "proved", "tight"))
    assert printed == 0 and proved == tight == pytest.approx(problem.L * problem.A / problem.R)


@for_all(problems(), st.sampled_from(ALL_CASES))
def test_ssls_rate_is_never_above_fedavgs(problem: Problem, case: str) -> None:
    for constants in ("printed", "proved", "tight"):
        ssl, fedavg = (rate(name, case, problem, constants=constants) for name in ("ssl", "fedavg"))
        assert all(ssl.terms[name] <= fedavg.terms[name] for name in ssl.terms)


def test_equal_compute_is_corollary_one_over_fewer_rounds() -> None:
    found = rate("ssl-equal-compute", SC, PROBLEM)
    fewer = rate("ssl", SC, replace(PROBLEM, R=50))
    assert found.terms == fewer.terms
    assert found.terms["noise"] == pytest.approx(1 / (5 * 5 * 100))  # sigma^2 / (mu S K R)


def test_random_reshuffling_is_ssl_with_one_exact_step() -> None:
    special = replace(PROBLEM, K=1, sigma2=0)
    assert rate("reshuffling", SC, special).total == rate("table-ssl", SC, special).total


def test_the_quoted_lower_bound_is_at_most_one() -> None:
    problem = replace(PROBLEM, zeta2=np.asarray([1e-3, 1e9]))
    assert rate("lower-bound-quoted", SC, problem).total.tolist() == pytest.approx([1e-8, 1])


@pytest.mark.parametrize(
    ("name", "case", "change", "dominant"),
    [
        ("ssl", SC, {}, "noise"),
        ("ssl", SC, {"sigma2": 0}, "heterogeneity drift"),
        ("ssl", SC, {"zeta2": 0, "sigma2": 0}, "optimization"),
        ("ssl", SC, {"zeta2": 0, "sigma2": 0, "R": 10**9}, "optimization"),  # where exp(-R) underflows
        ("ssl", GC, {}, "noise"),
        ("fedavg", GC, {"sigma2": 0}, "heterogeneity drift"),
        ("fedavg", NC, {"sigma2": 0, "zeta2": 0}, "optimization"),
        ("fedavg-swor", SC, {}, "sampling"),
        ("fedavg-swor", SC, {"S": 10}, "noise"),
        ("table-sgd", SC, {}, "noise"),
    ],
)
def test_the_dominant_term_for_large_R(name: str, case: str, change: dict[str, float], dominant: str) -> None:
    assert rate(name, case, replace(PROBLEM, **change)).dominant == dominant


def test_the_largest_term_now_need_not_dominate_later() -> None:
    found = rate("ssl", SC, replace(PROBLEM, R=np.asarray([12, 100, 10**6])))
    assert found.largest.tolist() == ["optimization", "optimization", "noise"]
    assert found.dominant.tolist() == ["noise"] * 3


@pytest.mark.parametrize("name", RATES)
def test_the_total_is_the_sum_of_named_terms_with_their_decay(name: str) -> None:
    found = rate(name, SC, PROBLEM)
    assert found.total == pytest.approx(math.fsum(found.terms.values()), rel=1e-14, abs=0)
    assert set(found.decay) == set(found.terms)


@pytest.mark.parametrize(
    ("case", "decays"),
    [(SC, {"1/R": 1, "1/R^2": 2}), (GC, {"1/R^(1/2)": 0.5, "1/R^(2/3)": 2 / 3, "1/R": 1})],
)
def test_each_term_falls_as_it_says(case: str, decays: dict[str, float]) -> None:
    now, later = (rate("ssl", case, replace(PROBLEM, R=R)) for R in (100, 6400))
    for name, decay in now.decay.items():
        if decay in decays:
            assert now.terms[name] / later.terms[name] == pytest.approx(64 ** decays[decay])


def test_a_rate_that_the_paper_does_not_state_raises() -> None:
    with pytest.raises(InputError):
        rate("table-sgd", NC, PROBLEM)


@pytest.mark.parametrize("case", ALL_CASES)
def test_each_side_stands_at_its_own_best_step(case: str) -> None:
    found = compare(case, PROBLEM)
    assert list(found.equal_rounds) == ["ssl", "fedavg", "minibatch-sgd"]
    for name in ("ssl", "fedavg"):
        assert found.equal_rounds[name].bound.total == stepsize(name, case, PROBLEM).bound.total


def test_all_sides_can_stand_at_one_step() -> None:
    found = compare(GC, PROBLEM, eta_tilde=0.05)
    for name in ("ssl", "fedavg"):
        assert found.equal_rounds[name].bound.terms == bound(name, GC, PROBLEM, eta_tilde=0.05).terms
    assert {name: side.bound.eta for name, side in found.equal_rounds.items()} == pytest.approx(
        {"ssl": 0.001, "fedavg": 0.01, "minibatch-sgd": 0.05}
    )


@pytest.mark.parametrize("case", ALL_CASES)
def test_minibatch_sgd_is_theorem_two_without_drift(case: str) -> None:
    found = compare(case, PROBLEM, eta_tilde=0.05).equal_rounds
    fedavg, minibatch = found["fedavg"].bound, found["minibatch-sgd"].bound
    assert minibatch.terms == fedavg.terms | {"noise drift": 0, "heterogeneity drift": 0}


@for_all(problems())
def test_both_are_worse_than_minibatch_sgd(problem: Problem) -> None:
    for case in ALL_CASES:
        found = {
            name: side.bound.total for name, side in compare(case, problem, constants="tight").equal_rounds.items()
        }
        assert found["minibatch-sgd"] <= found["ssl"] * (1 + 1e-13)
        assert found["ssl"] <= found["fedavg"] * (1 + 1e-13)


def test_at_equal_compute_ssl_has_fewer_rounds() -> None:
    found = compare(SC, PROBLEM).equal_compute
    assert {name: side.rounds for name, side in found.items()} == {"ssl": 50, "fedavg-swor": 100, "fedavg-swr": 100}
    assert found["ssl"].bound.total == stepsize("ssl", SC, replace(PROBLEM, R=50)).bound.total


def test_rounds_at_equal_compute_need_not_be_whole() -> None:
    assert compare(SC, replace(PROBLEM, R=101)).equal_compute["ssl"].rounds == 50.5


def test_less_than_one_round_has_no_bound() -> None:
    few = replace(PROBLEM, M=500, S=10, R=np.asarray([49, 50]))
    ssl = compare(GC, few).equal_compute["ssl"]
    assert np.isnan(ssl.bound.total).tolist() == [True, False]
    assert ssl.why_not == NO_ROUND


def test_without_S_there_is_no_equal_compute() -> None:
    found = compare(SC, replace(PROBLEM, S=None))
    assert found.equal_compute == {} and list(found.smaller) == ["equal rounds"]


def test_partial_participation_has_no_bound_beyond_strong_convexity() -> None:
    found = compare(GC, PROBLEM)
    assert found.equal_compute["fedavg-swor"].bound is None
    assert found.equal_compute["fedavg-swor"].why_not == NO_PARTIAL
    assert found.smaller["equal compute, without replacement"] == "none"


def test_the_conditions_of_the_claim_at_equal_compute() -> None:
    """E24: R >= 6 kappa M/S and R >= kappa (M/S)(M-1)/(M-S); here 2 * 2 * 9 / 5 = 7.2."""
    conditions = compare(SC, PROBLEM).conditions
    assert [condition.right for condition in conditions] == pytest.approx([12, 24, 7.2])
    assert [condition.holds for condition in compare(SC, replace(PROBLEM, R=20)).conditions] == [True, False, True]
    assert len(compare(SC, replace(PROBLEM, S=10)).conditions) == 2  # no sampling term to compare with


@pytest.mark.parametrize("constants", CONSTANTS)
def test_one_client_is_not_ranked_against_itself(constants: str) -> None:
    """With M = 1 all algorithms are one. The proved constants differ, but no constants may name a winner."""
    alone = compare(SC, replace(PROBLEM, M=1, S=1), constants=constants)
    assert set(alone.smaller.values()) == {"equal"}
    assert SAME in alone.notes and ARTEFACT not in alone.notes
    if constants == "sharp":
        sides = [*alone.equal_rounds.values(), *alone.equal_compute.values()]
        assert len({side.bound.total for side in sides if side.algorithm != "minibatch-sgd"}) == 1


def test_outside_the_range_the_side_says_why() -> None:
    found = compare(SC, replace(PROBLEM, R=11))
    assert math.isnan(found.equal_rounds["ssl"].bound.total) and found.smaller["equal rounds"] == "none"
    assert found.equal_rounds["ssl"].why_not != ""
    with pytest.raises(OutOfRange) as caught:
        compare(SC, replace(PROBLEM, R=11), outside="refuse")
    assert (caught.value.value, caught.value.limit) == ("11", "R >= 6 L/mu = 12")


def test_the_useful_K_in_both_forms() -> None:
    found = compare(SC, PROBLEM, eta_tilde=1 / 12).useful_K
    assert found == pytest.approx(
        {"ssl, order": 12.5, "ssl, at its step": 1.2, "fedavg, order": 1.25, "fedavg, at its step": 0.12}
    )


def test_many_settings_at_once() -> None:
    many = replace(PROBLEM, R=np.asarray([11, 100, 10**5]), zeta2=np.asarray([4, 4, 4]))
    found = compare(SC, many)
    assert found.smaller["equal rounds"].tolist() == ["none", "ssl", "fedavg"]
    assert found.equal_rounds["fedavg"].rate.dominant.tolist() == ["noise"] * 3
    assert np.isnan(found.useful_K["ssl, at its step"]).tolist() == [True, False, False]
