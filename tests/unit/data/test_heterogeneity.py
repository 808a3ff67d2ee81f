"""The measures of heterogeneity, on counts small enough to work by hand."""

import numpy as np
import pytest

from splitrelay.data.heterogeneity import compute_spread, compute_total_variation, measure_heterogeneity
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError
from tests.support.error_fields import expect_error


def four_clients() -> Partition:
    """Client 0 has two samples of class 0, client 1 one of each class, client 2 none, client 3 two of class 1."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    held = ([0, 1], [2, 3], [], [4, 5])
    return Partition(tuple(np.array(positions, dtype=np.int64) for positions in held), labels)


def test_total_variation_by_hand() -> None:
    # The whole set is (1/2, 1/2); the clients' laws are (1, 0), (1/2, 1/2), (0, 1).
    assert compute_total_variation(four_clients().counts).tolist() == [0.5, 0.0, 0.5]


def test_earth_movers_is_the_L1_distance() -> None:
    measured = measure_heterogeneity(four_clients())
    assert measured.earth_movers.max == 1.0
    assert measured.earth_movers.mean == pytest.approx(2 / 3)


def test_sizes_count_empty_clients_and_classes_do_not() -> None:
    measured = measure_heterogeneity(four_clients())
    assert (measured.sizes.min, measured.sizes.mean, measured.sizes.max) == (0, 1.5, 2)
    assert (measured.classes_per_client.min, measured.classes_per_client.mean) == (1, pytest.approx(4 / 3))
    assert measured.clients_per_class.min == measured.clients_per_class.max == 2
    assert (measured.one_class_clients, measured.empty) == (2, (2,))


def test_spread_by_hand() -> None:
    measured = compute_spread(np.array([1, 2, 3, 6]))
    assert (measured.min, measured.median, measured.mean, measured.max) == (1, 2.5, 3, 6)
    assert measured.sd == pytest.approx((14 / 4) ** 0.5)


def test_one_class_each_is_as_far_as_can_be() -> None:
    labels = np.repeat(np.arange(10), 30)
    measured = measure_heterogeneity(draw_partition("exdir", labels, M=10, C=1, alpha=1.0))
    assert measured.total_variation.min == pytest.approx(0.9)
    assert measured.one_class_clients == 10


def test_without_labels_there_is_nothing_to_measure() -> None:
    with expect_error(InputError, hint="data=NAME"):
        measure_heterogeneity(Partition((np.arange(3),)))
