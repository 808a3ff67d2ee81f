"""Every partition keeps the promise of all partitions; and a broken one is caught."""

from typing import Any

import numpy as np
import pytest

from splitrelay.data.partition import Partition, check_partition
from splitrelay.data.partition_schemes import SCHEMES, draw_partition, settings_of
from splitrelay.errors import ContractBroken

SETTINGS: dict[str, Any] = {"C": 2, "alpha": 0.7}
CASES = [(kind, M) for kind in SCHEMES for M in (5, 13, 150)]


def labels() -> np.ndarray:
    return np.arange(300) * 7 % 300 % 9  # nine classes of unequal sizes, well mixed


def draw(kind: str, M: int, seed: int) -> Partition:
    needed = {name: value for name, value in SETTINGS.items() if name in settings_of(kind)}
    return draw_partition(kind, labels(), M=M, seed=seed, **needed)


@pytest.mark.parametrize(("kind", "M"), CASES)
def test_every_sample_is_dealt_exactly_once(kind: str, M: int) -> None:
    for seed in range(10):
        partition = draw(kind, M, seed)
        assert partition.M == M
        check_partition(partition, N=300)


@pytest.mark.parametrize(("kind", "M"), CASES)
def test_the_same_seed_gives_the_same_partition_and_another_seed_another(kind: str, M: int) -> None:
    assert draw(kind, M, 4) == draw(kind, M, 4)
    assert draw(kind, M, 4) != draw(kind, M, 5)


@pytest.mark.parametrize("kind", SCHEMES)
def test_the_settings_draw_it_again(kind: str) -> None:
    partition = draw(kind, 6, 2)
    assert draw_partition(partition.kind, labels(), **partition.settings) == partition


@pytest.mark.parametrize("kind", SCHEMES)
def test_counts_add_up_to_the_classes_and_to_the_sizes(kind: str) -> None:
    partition = draw(kind, 13, 3)
    assert partition.counts.sum(axis=1).tolist() == partition.sizes.tolist()
    assert partition.counts.sum(axis=0).tolist() == np.bincount(labels()).tolist()


@pytest.mark.parametrize("kind", SCHEMES)
def test_nobody_can_change_it(kind: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        draw(kind, 5, 1).indices[0][0] = 3


def broken(*indices: list[int]) -> Partition:
    return Partition(tuple(np.array(held, dtype=np.int64) for held in indices), labels=np.array([0, 0, 1, 1]))


BROKEN = [
    ((broken([0, 1], [1, 2, 3])), "sample 1 was dealt 2 times, to clients .0, 1."),
    ((broken([0, 1], [3])), "1 samples were dealt to nobody, the first of them 2"),
    ((broken([0, 1], [2, 3, 4])), "outside the training set; needs 0 to 3; got 4"),
    ((broken([0, 1], [-1, 2])), "outside the training set"),
    ((broken()), "has clients and samples"),
    ((Partition((np.array([0.0, 1.0, 2.0, 3.0]),))), "whole numbers"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("partition", "message"), BROKEN)
def test_a_broken_promise_is_caught(partition: Partition, message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        check_partition(partition)
