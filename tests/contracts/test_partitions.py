"""Check the contract of all partition schemes, and that a wrong partition violates it."""

from typing import Any

import numpy as np
import pytest

from splitrelay.data.partition import Partition, check_partition
from splitrelay.data.partition_schemes import SCHEMES, draw_partition, list_settings
from splitrelay.errors import ContractBroken
from tests.support.error_fields import expect_error

SETTINGS: dict[str, Any] = {"C": 2, "alpha": 0.7}
CASES = [(kind, M) for kind in SCHEMES for M in (5, 13, 150)]


def labels() -> np.ndarray:
    return np.arange(300) * 7 % 300 % 9  # nine classes of unequal sizes, well mixed


def draw(kind: str, M: int, seed: int) -> Partition:
    needed = {name: value for name, value in SETTINGS.items() if name in list_settings(kind)}
    return draw_partition(kind, labels(), M=M, seed=seed, **needed)


@pytest.mark.parametrize(("kind", "M"), CASES)
def test_every_sample_has_exactly_one_client(kind: str, M: int) -> None:
    for seed in range(10):
        partition = draw(kind, M, seed)
        assert partition.M == M
        check_partition(partition, N=300)


@pytest.mark.parametrize(("kind", "M"), CASES)
def test_partition_depends_on_the_seed(kind: str, M: int) -> None:
    assert draw(kind, M, 4) == draw(kind, M, 4)
    assert draw(kind, M, 4) != draw(kind, M, 5)


@pytest.mark.parametrize("kind", SCHEMES)
def test_settings_reproduce_the_partition(kind: str) -> None:
    partition = draw(kind, 6, 2)
    assert draw_partition(partition.kind, labels(), **partition.settings) == partition


@pytest.mark.parametrize("kind", SCHEMES)
def test_counts_sum_to_class_and_client_sizes(kind: str) -> None:
    partition = draw(kind, 13, 3)
    assert partition.counts.sum(axis=1).tolist() == partition.sizes.tolist()
    assert partition.counts.sum(axis=0).tolist() == np.bincount(labels()).tolist()


@pytest.mark.parametrize("kind", SCHEMES)
def test_positions_are_read_only(kind: str) -> None:
    held = draw(kind, 5, 1).indices[0]
    before = held.copy()
    with pytest.raises(ValueError):
        held[0] += 1
    assert np.array_equal(held, before)


def broken(*indices: list[int]) -> Partition:
    return Partition(tuple(np.array(held, dtype=np.int64) for held in indices), labels=np.array([0, 0, 1, 1]))


BROKEN = [
    ((broken([0, 1], [1, 2, 3])), {"what": ("sample 1", "2", "[0, 1]"), "limit": True}),
    ((broken([0, 1], [3])), {"what": ("1", "2"), "limit": None}),
    ((broken([0, 1], [2, 3, 4])), {"value": 4, "limit": "0 to 3"}),
    ((broken([0, 1], [-1, 2])), {"value": -1, "limit": "0 to 3"}),
    ((broken()), {"value": ("M = 0", "N = 4")}),
    ((Partition((np.array([0.0, 1.0, 2.0, 3.0]),))), {"value": "float64"}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("partition", "fields"), BROKEN)
def test_invalid_partition_violates_the_contract(partition: Partition, fields: dict[str, Any]) -> None:
    with expect_error(ContractBroken, **fields):
        check_partition(partition)
