"""Does the comparison compare like with like, and say what it takes for granted?"""

import math
from dataclasses import replace

import numpy as np
import pytest

from splitrelay.errors import OutOfRange
from splitrelay.theory import CONSTANTS, Problem
from splitrelay.theory.comparison import ARTEFACT, NO_PARTIAL, NO_ROUND, SAME
from tests.support.paper_statements import bound, compare, stepsize
from tests.support.theory_problems import ALL_CASES, for_all, problems

SC, GC, NC = ALL_CASES
PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, S=5, K=5, R=100, D2=1, A=1.5)


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
