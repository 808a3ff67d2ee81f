"""Orders are functions of r: fair, repeatable, and what their names say."""

import pytest

from splitrelay.errors import OutOfRange
from splitrelay.participation import Consumed, Fixed, Permutation, Sampled, WithReplacement
from tests.support.error_fields import expect_error


@pytest.mark.parametrize("order", [Permutation(5, 1), Sampled(5, 3, 1), Consumed(5, 3, 1), WithReplacement(5, 3, 1)])
def test_the_same_round_has_the_same_order(order) -> None:
    assert [order(r) for r in range(9)] == [order(r) for r in range(9)]
    assert len({tuple(order(r)) for r in range(9)}) > 1


def test_a_permutation_visits_everyone_once() -> None:
    assert all(sorted(Permutation(6, 2)(r)) == list(range(6)) for r in range(20))


def test_permutations_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for r in range(6000):
        order = tuple(Permutation(3, 11)(r))
        counts[order] = counts.get(order, 0) + 1
    chi_square = sum((n - 1000) ** 2 / 1000 for n in counts.values())
    assert len(counts) == 6 and chi_square < 20.5  # 0.1 % of the law with 5 degrees of freedom


def test_sampled_clients_are_distinct() -> None:
    assert all(len(set(Sampled(7, 4, 3)(r))) == 4 for r in range(30))


@pytest.mark.parametrize(("M", "S"), [(6, 2), (6, 6), (5, 3), (7, 5)])
def test_consuming_sees_everyone_once_per_permutation(M: int, S: int) -> None:
    stream = [m for r in range(4 * M) for m in Consumed(M, S, 8)(r)]
    for start in range(0, len(stream) - M + 1, M):
        assert sorted(stream[start : start + M]) == list(range(M))


def test_with_replacement_repeats_a_client_at_times() -> None:
    assert any(len(set(WithReplacement(4, 3, 1)(r))) < 3 for r in range(20))


def test_fixed_is_fixed() -> None:
    assert [Fixed((2, 0))(r) for r in range(3)] == [(2, 0)] * 3


@pytest.mark.parametrize("kind", [Sampled, Consumed])
def test_more_participants_than_clients_is_refused(kind) -> None:
    with expect_error(OutOfRange, what="S", value=4, limit="1 <= S <= M = 3"):
        kind(3, 4, seed=1)
