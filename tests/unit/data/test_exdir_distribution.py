"""Do the partitions follow their laws? Counted against brute-force enumeration and against plain loops."""

from collections import Counter
from itertools import combinations, product
from math import isclose, log, sqrt

import numpy as np
import pytest

from splitrelay.data.partition_schemes import (
    Covering,
    compute_log_completions,
    draw_covering,
    draw_dirichlet_weights,
    exdir,
    split_by_weights,
)
from splitrelay.randomness import Purpose, rng

SMALL = [(3, 1, 3), (4, 1, 3), (3, 2, 4), (2, 3, 5), (4, 2, 3)]  # M, C, classes
DRAWS = 4000


def limit(freedom: int) -> float:
    """What chi-square exceeds once in 10,000 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * sqrt(2 / (9 * freedom))) ** 3


def chi_square(seen: Counter, cells: list) -> float:
    expected = sum(seen.values()) / len(cells)
    return sum((seen[cell] - expected) ** 2 / expected for cell in cells)


def coverings(M: int, C: int, n: int) -> list[tuple]:
    """All ways in which M clients draw C classes each and every class has a holder: equally likely by definition."""
    draws = product(combinations(range(n), C), repeat=M)
    return [draw for draw in draws if len(set().union(*draw)) == n]


def as_draw(holds: np.ndarray) -> tuple:
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in holds)


@pytest.mark.parametrize(("M", "C", "n"), SMALL)
def test_class_draws_are_uniform_over_all_coverings(M: int, C: int, n: int) -> None:
    generator, cells, chain = rng(M * C * n, Purpose.PARTITION), coverings(M, C, n), Covering(M, C, n)
    seen = Counter(as_draw(chain.draw(generator)) for _ in range(DRAWS))
    assert set(seen) <= set(cells)
    assert chi_square(seen, cells) < limit(len(cells) - 1)


def unweighted(M: int, C: int, n: int, generator: np.random.Generator) -> np.ndarray:
    """The tempting wrong way: draw freely, as long as the clients after can still cover what is left."""
    holds, uncovered = np.zeros((M, n), dtype=bool), set(range(n))
    for m in range(M):
        allowed = [s for s in combinations(range(n), C) if len(uncovered - set(s)) <= C * (M - 1 - m)]
        chosen = allowed[generator.integers(len(allowed))]
        holds[m, list(chosen)] = True
        uncovered -= set(chosen)
    return holds


def test_a_draw_that_does_not_weigh_the_future_is_caught() -> None:
    generator, cells = rng(1, Purpose.PARTITION), coverings(4, 1, 3)
    seen = Counter(as_draw(unweighted(4, 1, 3, generator)) for _ in range(DRAWS))
    assert set(seen) == set(cells)
    assert chi_square(seen, cells) > 2 * limit(len(cells) - 1)


@pytest.mark.parametrize(("M", "C", "n"), SMALL)
def test_the_probability_of_covering_is_the_share_of_coverings(M: int, C: int, n: int) -> None:
    share = len(coverings(M, C, n)) / len(list(combinations(range(n), C))) ** M
    assert isclose(compute_log_completions(M + 1, C, n)[M, n], log(share), rel_tol=1e-12)


def test_a_probability_below_the_smallest_double_is_kept() -> None:
    exact = sum(log(k) - log(1000) for k in range(1, 1001))  # 1000! / 1000^1000
    assert isclose(compute_log_completions(1001, 1, 1000)[1000, 1000], exact, rel_tol=1e-12)


def test_as_many_clients_as_classes_make_a_permutation() -> None:
    holds = draw_covering(100, 1, 100, rng(3, Purpose.PARTITION))
    assert (holds.sum(axis=0) == 1).all() and (holds.sum(axis=1) == 1).all()


def test_several_holders_per_class_by_rejection_are_uniform() -> None:
    cells = [draw for draw in coverings(4, 1, 2) if min(Counter(c for s in draw for c in s).values()) >= 2]
    generator = rng(5, Purpose.PARTITION)
    seen = Counter(as_draw(draw_covering(4, 1, 2, generator, holders=2)) for _ in range(1500))
    assert set(seen) == set(cells)
    assert chi_square(seen, cells) < limit(len(cells) - 1)


@pytest.mark.parametrize("alpha", [0.5, 3.0, 40.0])
def test_shares_have_the_moments_of_a_dirichlet(alpha: float) -> None:
    generator, k, draws = rng(7, Purpose.PARTITION), 4, 10_000
    weights = np.array([draw_dirichlet_weights(alpha, k, generator) for _ in range(draws)])
    p = weights / weights.sum(axis=1, keepdims=True)
    variance = (k - 1) / k**2 / (k * alpha + 1)
    assert np.abs(p.mean(axis=0) - 1 / k).max() < 4.5 * sqrt(variance / draws)
    assert np.abs(p.var(axis=0) / variance - 1).max() < 0.08


def test_two_holders_with_alpha_one_split_a_class_evenly_over_all_cuts() -> None:
    generator = rng(8, Purpose.PARTITION)
    seen = Counter(int(split_by_weights(draw_dirichlet_weights(1.0, 2, generator), 5)[0]) for _ in range(5000))
    assert chi_square(seen, list(range(5))) < limit(4)


@pytest.mark.parametrize("alpha", [1e-3, 1e-12, 1e-300, 5e-324])
def test_a_tiny_alpha_gives_everything_to_one_holder_each_equally_often(alpha: float) -> None:
    generator = rng(9, Purpose.PARTITION)
    weights = np.array([draw_dirichlet_weights(alpha, 3, generator) for _ in range(1500)])
    assert np.isfinite(weights).all() and (weights.max(axis=1) == 1).all()
    first = Counter(weights.argmax(axis=1).tolist())
    assert chi_square(first, [0, 1, 2]) < limit(2)
    assert np.median(weights.sum(axis=1)) == pytest.approx(1)


@pytest.mark.parametrize("alpha", [1e12, 1e300])
def test_a_huge_alpha_gives_even_shares(alpha: float) -> None:
    assert np.ptp(draw_dirichlet_weights(alpha, 50, rng(10, Purpose.PARTITION))) < 1e-4


def plain_balanced(
    labels: np.ndarray, M: int, C: int, alpha: float, least: int, generator: np.random.Generator
) -> list:
    """The authors' rule written down a second time, sample by sample, with numpy's own Dirichlet."""
    n, N = len(set(labels.tolist())), len(labels)
    while True:
        chosen = [generator.choice(n, C, replace=False).tolist() for _ in range(M)]
        if min(Counter(c for s in chosen for c in s)[c] for c in range(n)) >= max(C * M // n // 5, 1):
            break
    while True:
        held: list[list[int]] = [[] for _ in range(M)]
        for c in range(n):
            holders = [m for m in range(M) if c in chosen[m]]
            takers = [m for m in holders if len(held[m]) < N / M] or holders
            ends = np.floor(np.cumsum(generator.dirichlet([alpha] * len(takers))) * (labels == c).sum())
            ends[-1] = (labels == c).sum()
            for m, count in zip(takers, np.diff(ends, prepend=0), strict=True):
                held[m] += [c] * int(count)
        if min(map(len, held)) >= least:
            return held


def test_the_balanced_form_agrees_with_a_plain_loop() -> None:
    labels, draws = np.repeat(np.arange(4), 120), 400
    generator = rng(11, Purpose.PARTITION)
    plain: Counter = Counter()
    ours: Counter = Counter()
    for seed in range(draws):
        held = plain_balanced(labels, 24, 2, 2.0, 3, generator)
        plain[min(sum(len(set(own)) == 1 for own in held), 4)] += 1
        counts = exdir(labels, M=24, C=2, alpha=2.0, form="balanced", min_size=3, seed=seed).counts
        ours[min(int(((counts > 0).sum(axis=1) == 1).sum()), 4)] += 1
    distance = sum((plain[k] - ours[k]) ** 2 / (plain[k] + ours[k]) for k in range(5))
    assert min(plain[k] + ours[k] for k in range(5)) > 20  # the comparison says something in every cell
    assert distance < limit(4)
