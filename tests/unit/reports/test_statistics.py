"""Statistics of paired seeds, against scipy and against simulations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.reports.statistics import (
    AHEAD,
    BEHIND,
    EVEN,
    UNDECIDED,
    Candidate,
    adjust_holm,
    choose_candidate,
    compute_bootstrap_interval,
    compute_equivalence_test,
    compute_student_interval,
    compute_t_tail,
    compute_t_test,
    count_seeds_needed,
    find_holm_levels,
    find_t_quantile,
    judge_differences,
)


def draw(number: int) -> np.random.Generator:
    return rng(number, Purpose.INSTANCES, 0)


@pytest.mark.parametrize("df", [1, 2, 3, 5, 9, 30, 200])
def test_student_distribution_equals_scipy(df: int) -> None:
    for t in (-3.0, 0.0, 1e-4, 0.3, 1.0, 4.3, 42.8, 300.0):
        assert compute_t_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-10)
    for p in (0.025, 0.3, 0.5, 0.9, 0.975, 1 - 0.05 / 88, 1 - 1e-7):
        assert find_t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_tests_and_intervals_equal_scipy(n: int) -> None:
    for number in range(20):
        d = draw(number).normal(0.4, 1.0, n)
        expected = stats.ttest_1samp(d, 0.0)
        assert compute_t_test(d) == pytest.approx(expected.pvalue, rel=1e-9)
        interval, low_high = compute_student_interval(d, 0.95), expected.confidence_interval(0.95)
        assert (interval.low, interval.high) == pytest.approx((low_high.low, low_high.high))
        sides = [
            stats.ttest_1samp(d, -0.5, alternative="greater").pvalue,
            stats.ttest_1samp(d, 0.5, alternative="less").pvalue,
        ]
        assert compute_equivalence_test(d, 0.5) == pytest.approx(max(sides), rel=1e-9)


def test_holm_equals_the_definition() -> None:
    for number in range(50):
        generator = draw(number)
        p = list(generator.beta(0.3, 3.0, generator.integers(1, 12)))
        order, expected = np.argsort(p), np.empty(len(p))
        for rank, at in enumerate(order):
            expected[at] = max(min(1.0, (len(p) - i) * p[order[i]]) for i in range(rank + 1))
        assert adjust_holm(p) == pytest.approx(list(expected))
        levels = find_holm_levels(p, 0.05)
        assert [one <= level for one, level in zip(p, levels, strict=True)] == list(expected <= 0.05)
        assert min(levels) >= 0.05 / len(p) - 1e-15


def test_holm_ignores_rows_without_a_test() -> None:
    assert adjust_holm([0.03, math.nan, 0.02])[::2] == pytest.approx([0.04, 0.04])
    assert math.isnan(adjust_holm([math.nan])[0])
    assert find_holm_levels([0.03, math.nan], 0.05) == [0.05, 0.025]


@pytest.mark.parametrize(("kind", "least"), [("normal", 0.93), ("laplace", 0.93), ("exponential", 0.86)])
def test_bootstrap_interval_covers_the_mean_with_three_seeds(kind: str, least: float) -> None:
    """A percentile bootstrap covers about 75 %."""
    values = getattr(draw(3), kind)(size=(800, 3)) - (kind == "exponential")
    inside = [not compute_bootstrap_interval(row, draws=2000).excludes(0.0) for row in values]
    assert least < np.mean(inside) < 0.985


def test_bootstrap_interval_equals_an_independent_one() -> None:
    d = np.array([0.3, 1.9, 0.8, -0.4, 3.5])
    generator, n, h = draw(9), 5, (4 / 15) ** 0.2
    noise = stats.norm.ppf(generator.random((200_000, n)))
    e = generator.choice(d, (200_000, n)) - d.mean() + h * d.std(ddof=1) * noise
    low, high = np.quantile(stats.ttest_1samp(e, 0.0, axis=1).statistic, [0.025, 0.975])
    error = d.std(ddof=1) / math.sqrt(n)
    found = compute_bootstrap_interval(d)
    assert found.low == pytest.approx(d.mean() - high * error, abs=0.1 * error)
    assert found.high == pytest.approx(d.mean() - low * error, abs=0.1 * error)
    assert found == compute_bootstrap_interval(d)


def test_bootstrap_interval_follows_the_data() -> None:
    d = np.array([0.0, 0.1, 5.0])
    found, moved, mirrored = (compute_bootstrap_interval(x) for x in (d, 10 * d + 3, -d))
    assert (moved.low, moved.high) == pytest.approx((10 * found.low + 3, 10 * found.high + 3))
    assert -mirrored.high == pytest.approx(found.low, rel=0.1)


def test_verdicts() -> None:
    tiny = [0.01, -0.02, 0.015]
    rows = [[27.0, 28.0, 26.5], [-5.0, -5.2, -4.9], tiny, [1.0, -1.0, 2.0], [3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    found = judge_differences(rows)
    assert [row.verdict for row in found] == [AHEAD, BEHIND, EVEN, UNDECIDED, UNDECIDED, EVEN, UNDECIDED]
    assert all((row.verdict in (AHEAD, BEHIND)) == row.corrected.excludes(0.0) for row in found[:4])
    assert [row.seeds_needed is None for row in found] == [True, True, True, False, True, True, True]


def test_ahead_may_be_within_the_margin() -> None:
    [row] = judge_differences([[0.2, 0.21, 0.19, 0.2]])
    assert (row.verdict, row.is_within_margin) == (AHEAD, True)
    [row] = judge_differences([[0.2, 0.21, 0.19, 0.2]], margin=0.1)
    assert (row.verdict, row.is_within_margin) == (AHEAD, False)


def test_more_rows_decide_less() -> None:
    row = [1.0, 1.3, 1.6]
    assert judge_differences([row])[0].verdict == AHEAD
    many = judge_differences([row, *([[2.0, -1.0, 0.5]] * 9)])
    assert many[0].verdict == UNDECIDED
    assert not many[0].corrected.excludes(0.0)
    assert many[0].corrected == compute_student_interval(np.array(row), 1 - 0.05 / 10)
    assert many[0].p == judge_differences([row])[0].p
    assert many[0].p_holm == pytest.approx(10 * many[0].p)


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
def test_margins_must_be_positive(margin: float) -> None:
    with pytest.raises(InputError) as caught:
        judge_differences([[1.0, 2.0]], margin=margin)
    assert caught.value.value is margin


def test_stated_number_of_seeds_decides_as_often_as_promised() -> None:
    d = np.array([1.0, -0.6, 2.0])
    n = count_seeds_needed(d, level=0.01)
    assert n is not None
    noncentral = d.mean() / d.std(ddof=1) * math.sqrt(n)
    power = stats.nct.sf(stats.t.ppf(1 - 0.005, n - 1), n - 1, noncentral)
    assert 0.78 < power < 0.85
    assert count_seeds_needed(d, level=0.001) > n
    assert count_seeds_needed(1e-3 * d + 1e-4, margin=0.5) == 4  # even, with one more seed
    assert count_seeds_needed(np.array([1.0])) is None
    assert count_seeds_needed(np.array([1.0, -1.0001, 0.0]), margin=1e-5) is None


CLIPPED, FREE = Candidate(0.03, 10.0, (0.980, 0.982, 0.984)), Candidate(0.03, None, (0.981, 0.983, 0.985))


def test_within_one_standard_error_clipping_is_chosen() -> None:
    assert choose_candidate([FREE, CLIPPED]) is CLIPPED
    assert choose_candidate([FREE, replace(CLIPPED, eta=0.1)]).clip == 10.0
    further = replace(FREE, scores=(0.9815, 0.9835, 0.9855))  # 1.3 standard errors of 0.0012 above
    assert choose_candidate([further, CLIPPED]) is further
    far = replace(FREE, scores=(0.991, 0.993, 0.995))
    assert choose_candidate([far, CLIPPED]) is far


def test_within_one_standard_error_the_smaller_rate_is_chosen() -> None:
    smaller = replace(CLIPPED, eta=0.01, scores=(0.979, 0.982, 0.983))
    assert choose_candidate([CLIPPED, smaller]) is smaller
    worse = replace(smaller, scores=(0.970, 0.972, 0.974))
    assert choose_candidate([CLIPPED, worse]) is CLIPPED


def test_one_seed_has_no_standard_error() -> None:
    low, high = Candidate(0.1, None, (0.5,)), Candidate(0.3, None, (0.5001,))
    assert choose_candidate([low, high]) is high
    assert choose_candidate([low, replace(high, scores=(0.5,))]) is low


def test_diverged_seeds_never_make_a_candidate_the_best() -> None:
    diverged = Candidate(0.3, 10.0, (0.99, 0.1, 0.1), diverged=2)
    steady = Candidate(0.1, None, (0.893, 0.88, 0.905))
    assert choose_candidate([diverged, steady]) is steady
    once = replace(diverged, eta=0.5, diverged=1)
    assert choose_candidate([diverged, once]) is once
    none = Candidate(0.5, None, (math.nan,), diverged=1)
    assert choose_candidate([none, replace(none, eta=0.3)]).eta == 0.3
