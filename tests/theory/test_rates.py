"""Do the rates carry the right quantities, and name the term that remains?"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import InputError
from splitrelay.theory import RATES, Problem
from tests.support.error_fields import expect_error
from tests.support.paper_statements import rate, table_one
from tests.support.theory_problems import ALL_CASES, for_all, problems

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
