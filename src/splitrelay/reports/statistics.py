"""Compare two settings over paired seeds: intervals, tests, Holm's correction, verdicts and numbers of seeds.

Let d_1 ... d_n be the differences of two settings, one for each common seed, in points of test accuracy. The two runs
of a seed share the partition and the initial weights, so their difference varies less than each of them. All
statements are about the mean of such differences over all seeds that could have been drawn. n is small, often three.

*Interval.* A percentile bootstrap of three values never leaves their range: it contains the true mean in about 75 % of
all cases instead of 95 %. A plain bootstrap-t has no bounds at n = 3, because one resample in nine repeats a single
value. We use a smoothed bootstrap-t: a resample is

    e_j = d_(i_j) - dbar + h s z_j,    i_j uniform on 1 ... n,    z_j standard normal,    h = (4 / (3 n))^(1/5),

where s is the standard deviation of the d_i and h the normal reference bandwidth. With q_p the p-quantile of
mean(e) / (sd(e) / sqrt(n)), the 95 % interval is [dbar - q_0.975 s / sqrt(n), dbar - q_0.025 s / sqrt(n)]. At n = 3 it
is about as wide as Student's interval. As n grows, h tends to 0 and the shape of the data decides.

*Test.* p-values are those of Student's paired t-test. It is exact for normal differences, and its tails are known at
the small levels that a correction needs. Tests by signs or permutations cannot reach p < 0.25 with three seeds.

*Correction.* Holm's procedure within a table: valid however the rows depend on each other. The corrected interval of a
row is Student's interval at the level at which Holm's procedure tests this row. It excludes zero exactly if the row is
significant.

*Verdict.* One setting is ahead if the corrected interval and the bootstrap interval exclude zero. Two are even if two
one-sided tests (TOST), corrected in the same way, place the mean within the margin. Otherwise the row is undecided.

No interval of three seeds shows rare failures that none of the seeds had. Tables therefore also show the median and
the share of runs that collapsed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng

Floats = NDArray[np.float64]
ALPHA = 0.05  # probability of one false "ahead" in a whole table
MARGIN = 0.5  # points within which two settings are even
POWER = 0.8  # probability with which the number of seeds that is stated decides a row
DRAWS = 100_000  # resamples
MOST_SEEDS = 1000  # larger numbers of seeds are not stated
AHEAD, BEHIND, EVEN, UNDECIDED = "ahead", "behind", "even", "undecided"


@dataclass(frozen=True)
class Interval:
    """An interval for a mean difference. NaN if there are fewer than two seeds."""

    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Return whether a value lies outside. An interval without numbers excludes nothing."""
        return value < self.low or value > self.high


@dataclass(frozen=True)
class Judgement:
    """The comparison of two settings within a table.

    Attributes:
        n: The number of common seeds.
        mean: The mean difference.
        spread: The standard deviation of the differences, NaN for one seed.
        interval: The bootstrap 95 % interval.
        corrected: Student's interval at the level of Holm's procedure.
        level: That level; 0.05 is 5 %.
        p: The p-value of the paired t-test, NaN if there is none.
        p_holm: The same, corrected within the table.
        p_even: The p-value of the two one-sided tests, corrected within the table.
        verdict: "ahead", "behind", "even" or "undecided".
        is_within_margin: Whether the difference is within the margin. An algorithm can be ahead within the margin.
        seeds_needed: For an undecided row, the seeds that would decide it with probability 0.8 if mean and spread
            remained the same. None if it is decided, or if this cannot be computed.
    """

    n: int
    mean: float
    spread: float
    interval: Interval
    corrected: Interval
    level: float
    p: float
    p_holm: float
    p_even: float
    verdict: str
    is_within_margin: bool
    seeds_needed: int | None


def judge_differences(
    table: Sequence[Sequence[float]], *, margin: float = MARGIN, alpha: float = ALPHA
) -> list[Judgement]:
    """Judge every row of a table, corrected for the number of rows.

    Rows without a spread (a single seed, or equal differences) cannot be tested and do not count as tests.

    Args:
        table: For each row the differences, one for each common seed.
        margin: The largest difference of settings that are called even.
        alpha: The probability of at least one false "ahead" (and of one false "even") in the table.

    Example:

        >>> [row] = judge_differences([[1.2, 1.1, 1.4]])
        >>> row.verdict, round(row.p, 3)
        ('ahead', 0.005)
    """
    if not margin > 0:
        raise InputError("a margin must be positive", value=margin)
    rows = [np.asarray(row, dtype=np.float64) for row in table]
    differs = [compute_t_test(row) for row in rows]
    even = [compute_equivalence_test(row, margin) for row in rows]
    levels = find_holm_levels(differs, alpha)
    even_levels = find_holm_levels(even, alpha)
    corrected = zip(adjust_holm(differs), adjust_holm(even), strict=True)
    return [
        _judge(row, p, (p_holm, p_even), (level, even_level), margin, alpha)
        for row, p, (p_holm, p_even), level, even_level in zip(
            rows, differs, corrected, levels, even_levels, strict=True
        )
    ]


def _judge(
    d: Floats, p: float, adjusted: tuple[float, float], levels: tuple[float, float], margin: float, alpha: float
) -> Judgement:
    n, mean, spread = len(d), float(d.mean()) if len(d) else math.nan, compute_spread(d)
    interval = compute_bootstrap_interval(d, 1 - alpha)
    p_holm, p_even = adjusted
    is_equal = n > 1 and not d.any()  # the same results with every seed
    is_within = p_even <= alpha or is_equal
    verdict = UNDECIDED
    if p_holm <= alpha and interval.excludes(0.0):
        verdict = AHEAD if mean > 0 else BEHIND
    elif is_within:
        verdict = EVEN
    needed = count_seeds_needed(d, margin, *levels) if verdict == UNDECIDED else None
    corrected = compute_student_interval(d, 1 - levels[0])
    return Judgement(
        n, mean, spread, interval, corrected, levels[0], p, p_holm, p_even, verdict, is_within, needed
    )  # fmt: skip


def compute_spread(d: Floats) -> float:
    """Return the standard deviation, NaN if there are fewer than two values."""
    return float(d.std(ddof=1)) if len(d) > 1 else math.nan


def compute_student_interval(d: Floats, level: float = 1 - ALPHA) -> Interval:
    """Return Student's confidence interval of the mean, NaN if there are fewer than two values."""
    if len(d) < 2:
        return Interval(math.nan, math.nan)
    half = find_t_quantile((1 + level) / 2, len(d) - 1) * compute_spread(d) / math.sqrt(len(d))
    return Interval(float(d.mean()) - half, float(d.mean()) + half)


def compute_bootstrap_interval(d: Floats, level: float = 1 - ALPHA, draws: int = DRAWS) -> Interval:
    """Return the interval of the smoothed bootstrap-t, NaN if there are fewer than two values.

    All calls with the same n use the same random numbers, which are named by n.
    """
    return _resample(tuple(d.tolist()), level, draws)


@lru_cache(1024)  # the same comparison occurs in several tables of a study
def _resample(values: tuple[float, ...], level: float, draws: int) -> Interval:
    d = np.array(values)
    n, spread = len(d), compute_spread(d)
    if n < 2:
        return Interval(math.nan, math.nan)
    mean = float(d.mean())
    if not spread > 0:
        return Interval(mean, mean)
    index, noise = _draw_resamples(n, draws)
    e = (d - mean)[index] + (4 / (3 * n)) ** 0.2 * spread * noise
    centre = e.mean(1)
    deviation = np.sqrt(((e - centre[:, None]) ** 2).sum(1) / (n - 1))
    low, high = np.quantile(centre / deviation, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean - high * spread), float(mean - low * spread))


@lru_cache(8)
def _draw_resamples(n: int, draws: int) -> tuple[NDArray[np.int64], Floats]:
    generator = rng(0, Purpose.RESAMPLES, n)
    return generator.integers(0, n, (draws, n)), generator.standard_normal((draws, n))


def compute_t_test(d: Floats) -> float:
    """Return the two-sided p-value of Student's paired t-test of a mean of zero, NaN if there is no spread."""
    spread = compute_spread(d)
    if not spread > 0:
        return math.nan
    return 2 * compute_t_tail(abs(float(d.mean())) * math.sqrt(len(d)) / spread, len(d) - 1)


def compute_equivalence_test(d: Floats, margin: float) -> float:
    """Return the p-value of two one-sided t-tests that the mean is outside the margin, NaN if there is no spread."""
    spread = compute_spread(d)
    if not spread > 0:
        return math.nan
    return compute_t_tail((margin - abs(float(d.mean()))) * math.sqrt(len(d)) / spread, len(d) - 1)


def adjust_holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's procedure. NaN remains NaN and does not count as a test.

    Example:

        >>> adjust_holm([0.04, 0.01, float("nan")])
        [0.04, 0.02, nan]
    """
    adjusted, largest = [math.nan] * len(p), 0.0
    ranks = _rank(p)
    for rank, at in enumerate(ranks):
        largest = max(largest, min(1.0, (len(ranks) - rank) * p[at]))
        adjusted[at] = largest
    return adjusted


def find_holm_levels(p: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """Return the level at which Holm's procedure tests each row. Rows after its end have the level of its last test.

    A row is significant exactly if its p-value is at most its level. The level of a row without a test is the one
    that it would have as an additional row.
    """
    ranks = _rank(p)
    levels = [alpha / (len(ranks) + 1)] * len(p)
    for rank, at in enumerate(ranks):
        levels[at] = alpha / (len(ranks) - rank)
        if p[at] > levels[at]:
            for rest in ranks[rank:]:
                levels[rest] = levels[at]
            break
    return levels


def _rank(p: Sequence[float]) -> list[int]:
    return sorted((at for at in range(len(p)) if not math.isnan(p[at])), key=lambda at: p[at])


def count_seeds_needed(
    d: Floats, margin: float = MARGIN, level: float = ALPHA, even_level: float = ALPHA, power: float = POWER
) -> int | None:
    """Return how many seeds would probably decide between two settings, if mean and spread remained the same.

    Decided means ahead at this level, or even if the mean is within the margin, whichever needs fewer seeds. The spread
    of few seeds is uncertain, and so is this number. It is a guide to the order of magnitude.

    Returns:
        A number above len(d), or None if there is no spread or if `MOST_SEEDS` are not enough.
    """
    spread, mean = compute_spread(d), abs(float(d.mean())) if len(d) else math.nan
    if not spread > 0:
        return None
    goals = [(mean, level / 2)] + [(margin - mean, even_level)] * (mean < margin)

    def is_enough(n: int) -> bool:  # true from some n on
        needed = [find_t_quantile(1 - tail, n - 1) + find_t_quantile(power, n - 1) for _, tail in goals]
        return any(goal[0] * math.sqrt(n) >= t * spread for goal, t in zip(goals, needed, strict=True))

    n = bisect_left(range(MOST_SEEDS + 1), True, len(d) + 1, key=is_enough)
    return n if n <= MOST_SEEDS else None


def compute_t_tail(t: float, df: int) -> float:
    """Return P(T > t) of Student's distribution."""
    tail = 0.5 * _compute_beta_ratio(df / (df + t * t), df / 2, 0.5)
    return tail if t >= 0 else 1 - tail


@lru_cache(4096)
def find_t_quantile(p: float, df: int) -> float:
    """Return the t with P(T <= t) = p of Student's distribution."""
    if p < 0.5:
        return -find_t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while compute_t_tail(high, df) > 1 - p:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if compute_t_tail(middle, df) > 1 - p else (low, middle)
    return (low + high) / 2


def _compute_beta_ratio(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _compute_beta_ratio(1 - x, b, a)
    factor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for k in range(1, 1000):
        even = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return factor * value / a


@dataclass(frozen=True)
class Candidate:
    """A learning rate and a clipping norm, and the scores of its tuning runs, one for each seed.

    Attributes:
        diverged: The number of seeds that diverged. Their scores are their last values.
    """

    eta: float
    clip: float | None
    scores: tuple[float, ...]
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Return the mean score, minus infinity if there is none."""
        known = [score for score in self.scores if not math.isnan(score)]
        return sum(known) / len(known) if known and len(known) == len(self.scores) else -math.inf

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean, 0 for one seed."""
        spread = compute_spread(np.asarray(self.scores, dtype=np.float64))
        return 0.0 if math.isnan(spread) else spread / math.sqrt(len(self.scores))


def choose_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Choose by the one-standard-error rule.

    Candidates of which the fewest seeds diverged come first. Let m be the highest mean among them, and e the standard
    error of that candidate. All candidates with a mean of at least m - e are as good as the best. Among these, choose
    one with clipping if there is one, then the smallest rate, then the smallest norm.
    """
    share = min(_get_share(candidate) for candidate in candidates)
    steady = [candidate for candidate in candidates if _get_share(candidate) == share]
    best = max(steady, key=lambda candidate: (candidate.mean, -candidate.eta))
    if math.isinf(best.mean):
        return min(steady, key=lambda candidate: candidate.eta)
    good = [candidate for candidate in steady if candidate.mean >= best.mean - best.standard_error]
    return min(good, key=lambda candidate: (candidate.clip is None, candidate.eta, candidate.clip or math.inf))


def _get_share(candidate: Candidate) -> float:
    return candidate.diverged / max(len(candidate.scores), 1)
