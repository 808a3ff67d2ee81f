"""Step sizes minimise the bounds or fulfil their lemmas; the weights of the averaged output are finite."""

import math
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import OutOfRange
from splitrelay.theory import Problem, find_crossings, thetas, weights
from splitrelay.theory.averaging_weights import compute_log_sum, compute_log_weight, compute_theta
from tests.support.theory_problems import ALL_CASES, STATEMENTS, bound, for_all, problems, sizes, stepsize, stepsizes

SC, GC, NC = ALL_CASES
PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, S=5, K=5, R=100, D2=1, A=1.5)
statements = st.sampled_from(STATEMENTS)
horizons = st.sampled_from(["R", "R+1"])


@pytest.mark.parametrize(("case", "zeta2"), [*((case, 4.0) for case in ALL_CASES), (SC, 1e-6)])
def test_the_bounds_cross_at_the_rounds_that_a_search_over_all_rounds_finds(case: str, zeta2: float) -> None:
    names, R = ("ssl", "fedavg"), np.arange(1.0, 301)
    problem = replace(PROBLEM.with_all_clients(), zeta2=zeta2)
    every = [stepsize(name, case, problem.with_rounds(R), constants=None, outside="mask").bound.total for name in names]
    smaller = np.argmin(every, axis=0)
    expected = [(R[j], names[smaller[j]]) for j in range(1, 300) if smaller[j] != smaller[j - 1]]
    rounds = R[[0, 9, 99, 299]]
    totals, found = find_crossings(names, case, problem, rounds)
    np.testing.assert_allclose(totals, np.asarray(every)[:, [0, 9, 99, 299]], rtol=1e-12)
    assert [(one.R, one.smaller) for one in found] == expected


@for_all(problems(), statements, horizons, st.floats(0, 1))
def test_no_step_in_the_range_has_a_smaller_bound(
    problem: Problem, which: tuple[str, str, str], horizon: str, share: float
) -> None:
    algorithm, case, constants = which
    best = stepsize(algorithm, case, problem, constants=constants, horizon=horizon)
    low = best.low if best.low > 0 else best.high * 1e-9
    other = low ** (1 - share) * best.high**share
    there = bound(algorithm, case, problem, eta_tilde=other, constants=constants, horizon=horizon, outside="mask")
    assert not there.total < best.bound.total * (1 - 1e-13)


@for_all(problems(), statements, horizons)
def test_the_slope_changes_sign_at_an_interior_minimum(
    problem: Problem, which: tuple[str, str, str], horizon: str
) -> None:
    """Exact to 1e-12: in rational arithmetic (and exp by its series) the derivative is negative just below the step
    and positive just above it; at an end of the range it does not point inwards."""
    algorithm, case, constants = which
    best = stepsize(algorithm, case, problem, constants=constants, horizon=horizon)
    unit = bound(algorithm, case, problem, eta_tilde=best.eta_tilde, constants=constants, horizon=horizon)
    slopes = [slope(unit, problem, Fraction(best.eta_tilde) * (1 + Fraction(side, 10**12))) for side in (-1, 1)]
    below, above = slopes
    assert best.branch in ("low", "interior", "cap")
    assert below <= 0 or best.branch == "low"
    assert above >= 0 or best.branch == "cap"


def slope(found: object, problem: Problem, step: Fraction) -> Fraction:
    """The derivative of the bound at a step, from its terms at another."""
    at = Fraction(found.eta_tilde)
    errors = Fraction(0)
    for name, term in found.terms.items():
        power = {"noise": 1, "sampling": 1, "noise drift": 2, "heterogeneity drift": 2}.get(name, 0)
        errors += power * Fraction(term) / at**power * step ** max(power - 1, 0)
    first = found.terms["optimization"]
    if found.case != SC:
        return errors - Fraction(first) * at / step**2
    rate = Fraction(problem.mu) * Fraction(found.rounds) / 2
    start = Fraction({"ssl": 3, "fedavg": 2}.get(found.algorithm, 27 / 8))
    start = Fraction(2) if found.constants == "tight" else start
    return errors - rate * start * Fraction(problem.mu) * Fraction(problem.D2) * exponential(-rate * step)


def exponential(x: Fraction) -> Fraction:
    """exp to about forty digits."""
    halvings = max(0, math.ceil(math.log2(max(1, abs(x))))) + 4
    small = Fraction(round(x / 2**halvings * 10**60), 10**60)
    total = term = Fraction(1)
    for n in range(1, 30):
        term = Fraction(round(term * small / n * 10**60), 10**60)
        total += term
    for _ in range(halvings):
        total = total * total
        scale = 10**60 * max(1, math.ceil(1 / total))
        total = Fraction(round(total * scale), scale)
    return total


@for_all(problems(), statements)
def test_the_rules_are_never_better_than_the_best(problem: Problem, which: tuple[str, str, str]) -> None:
    algorithm, case, constants = which
    found = stepsizes(algorithm, case, problem, constants=constants)
    assert list(found) == ["printed", "mended", "best"]
    assert found["best"].bound.total <= min(found["printed"].bound.total, found["mended"].bound.total) * (1 + 1e-13)


@for_all(problems(), statements)
def test_the_lemmas_explicit_bound_covers_the_bound_at_its_step(problem: Problem, which: tuple[str, str, str]) -> None:
    """The general lemma counts R + 1 rounds, the strongly convex one R; the printed corollaries are below both."""
    algorithm, case, constants = which
    horizon = "R" if case == SC else "R+1"
    found = stepsize(algorithm, case, problem, rule="mended", constants=constants, horizon=horizon)
    smallest = sys.float_info.min  # a bound that underflows is rounded up to the smallest normal number
    assert found.bound.total <= max(found.explicit * (1 + 1e-12), smallest)


@for_all(problems())
def test_beyond_strong_convexity_there_is_nothing_to_mend(problem: Problem) -> None:
    for case in (GC, NC):
        printed, mended = (stepsize("ssl", case, problem, rule=rule) for rule in ("printed", "mended"))
        assert (printed.eta_tilde, printed.branch, printed.explicit) == (
            mended.eta_tilde,
            mended.branch,
            mended.explicit,
        )


def test_without_noise_only_the_mended_rule_decays() -> None:
    """E14: mu=1, L=2, M=4, K=1, sigma=0, zeta_*^2=100. The printed rule stays at 1/(6L) for ever."""
    problem = Problem(L=2, mu=1, sigma2=0, zeta2=100, M=4, K=1, R=10 ** np.arange(2, 6), D2=1)
    printed, mended = (stepsize("ssl", SC, problem, rule=rule) for rule in ("printed", "mended"))
    assert printed.bound.total == pytest.approx([2.65, 2.604, 2.604, 2.604], abs=1e-3)
    assert mended.bound.total == pytest.approx([0.99, 0.068, 1.9e-3, 3.7e-5], rel=2e-2)
    assert set(printed.branch) == {"cap"} and set(mended.branch) == {"log"}


def test_nothing_against_a_large_step_means_the_cap() -> None:
    quiet = replace(PROBLEM, sigma2=0, zeta2=0)
    for case in ALL_CASES:
        for rule, found in stepsizes("ssl", case, quiet).items():
            assert (found.branch, found.eta_tilde) == ("cap", found.high), rule
            assert found.explicit is None or math.isfinite(found.explicit)


def test_at_the_optimum_the_lowest_step_is_best() -> None:
    there = replace(PROBLEM, D2=0)
    found = stepsize("ssl", SC, there)
    assert (found.branch, found.eta_tilde) == ("low", 0.01)
    with pytest.raises(OutOfRange):
        stepsize("ssl", GC, there)


def test_where_there_is_no_step_it_is_blank() -> None:
    found = stepsize("ssl", SC, replace(PROBLEM, R=np.asarray([11, 12, 100])), outside="mask")
    assert np.isnan(found.eta_tilde).tolist() == np.isnan(found.bound.total).tolist() == [True, False, False]
    assert found.branch.tolist() == ["none", "cap", "cap"] and found.applicable.tolist() == [False, True, True]
    start = stepsize("fedavg", GC, replace(PROBLEM, D2=np.asarray([0.0, 1.0])), outside="mask")
    assert np.isnan(start.bound.total).tolist() == [True, False] and start.branch.tolist() == ["none", "interior"]


def test_arrays_give_what_numbers_give() -> None:
    many = replace(PROBLEM, zeta2=np.asarray([0, 1e-3, 4, 1e4]), D2=np.asarray([1, 10, 0.1, 2]))
    for case in ALL_CASES:
        for rule, found in stepsizes("fedavg", case, many).items():
            for i in range(4):
                one = stepsize("fedavg", case, replace(PROBLEM, zeta2=many.zeta2[i], D2=many.D2[i]), rule=rule)
                assert (found.eta_tilde[i], found.branch[i]) == (one.eta_tilde, one.branch)


steps = st.just(0.0) | sizes(1e-9, 1.9)


@for_all(steps, st.integers(0, 200))
def test_weights_are_the_powers_of_the_paper(eta_tilde: float, R: int) -> None:
    found = weights(1, eta_tilde, R)
    w = (1 - eta_tilde / 2) ** -(found.r + 1)
    assert np.allclose(found.w, w, rtol=1e-11, atol=0)
    assert np.allclose(found.share, w / w.sum(), rtol=1e-9, atol=1e-300)
    assert np.allclose(found.theta, w / np.cumsum(w), rtol=1e-9, atol=0)
    assert np.exp(found.log_W) == pytest.approx(w.sum(), rel=1e-9, abs=0)


@pytest.mark.parametrize("eta_tilde", [0.0, 1e-9, 1 / 12, 1.0])
def test_a_million_rounds_do_not_overflow(eta_tilde: float) -> None:
    found = weights(1, eta_tilde, 10**6)
    for values in (found.log_w, found.share, found.theta, found.log_W):
        assert np.all(np.isfinite(values))
    assert found.share.sum() == pytest.approx(1, rel=1e-9, abs=0)
    assert found.theta[-1] == pytest.approx(found.share[-1], rel=1e-9, abs=0)
    assert found.log_W == compute_log_sum(1, eta_tilde, 10**6)
    assert found.log_w[-1] == compute_log_weight(1, eta_tilde, 10**6)


@pytest.mark.parametrize("eta_tilde", [0.0, 1e-9, 1 / 12, 1.0])
def test_the_running_shares_follow_their_recursion(eta_tilde: float) -> None:
    running = list(islice(thetas(1, eta_tilde), 5000))
    assert np.allclose(running, compute_theta(1, eta_tilde, np.arange(5000.0)), rtol=1e-12, atol=0)


def test_moving_by_theta_makes_the_weighted_average() -> None:
    xs = [3.0, -1.0, 4.0, 1.0, -5.0]
    average = 0.0
    for x, share in zip(xs, thetas(1, 0.5), strict=False):
        average += share * (x - average)
    assert average == pytest.approx(np.average(xs, weights=weights(1, 0.5, 4).w))


def test_many_settings_run_at_once() -> None:
    first, second = islice(thetas(np.asarray([0.0, 1.0]), 0.5), 2)
    assert first.tolist() == [1, 1] and second.tolist() == [1 / 2, 1 / 1.75]


def test_weights_beyond_double_precision_are_infinite_not_wrong() -> None:
    found = weights(1, 1.0, 2000)
    assert found.w[1000] == pytest.approx(2.0**1001, rel=1e-12, abs=0) and found.w[2000] == np.inf
    assert found.log_w[2000] == 2001 * np.log(2)


def test_too_large_a_step_has_no_weights() -> None:
    with pytest.raises(OutOfRange) as caught:
        weights(1, 2, 10)
    assert caught.value.value == 1


def test_tiny_steps_lose_no_digits() -> None:
    assert compute_log_weight(1, 2e-12, 0.0) == pytest.approx(1e-12, rel=1e-11, abs=0)
    assert compute_theta(1, 2e-12, 9.0) == pytest.approx(0.1, rel=1e-11, abs=0)


@pytest.mark.parametrize("R", [-1, 10**9])
def test_a_list_of_weights_has_a_length_that_fits(R: int) -> None:
    with pytest.raises(OutOfRange) as caught:
        weights(1, 0.5, R)
    assert (caught.value.value, caught.value.limit) == (R, "0 <= R <= 10000000")
