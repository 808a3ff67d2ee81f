"""What each kind of partition promises beyond dealing every sample once, and what it refuses."""

import numpy as np
import pytest

from splitrelay.data.heterogeneity import Heterogeneity, measure_heterogeneity
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_covering, draw_partition, exdir
from splitrelay.errors import InputError, OutOfRange, UnknownName, WorkError
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
LABELS = np.tile(np.arange(5), 40)  # 200 samples, 40 of each class
SEEDS = range(40)


def many(C: int, form: str) -> list[tuple[Partition, Heterogeneity]]:
    drawn = [exdir(MNIST, M=500, C=C, alpha=10.0, form=form, seed=seed) for seed in SEEDS]
    return [(partition, measure_heterogeneity(partition)) for partition in drawn]


def share_inside(values: list[float], low: float, high: float) -> float:
    return float(np.mean([low <= value <= high for value in values]))


# Ranges of facts.md 3: 95 % of fresh draws of the authors' code lie inside.
def test_balanced_C1_is_as_uneven_as_the_authors_code() -> None:
    drawn = many(1, "balanced")
    assert share_inside([told.sizes.sd for _, told in drawn], 37.0, 45.6) >= 0.85
    assert share_inside([told.sizes.median for _, told in drawn], 112, 118) >= 0.85
    holders = np.concatenate([(partition.counts > 0).sum(axis=0) for partition, _ in drawn]).tolist()
    assert share_inside(holders, 32, 66) >= 0.9
    assert all(told.one_class_clients == 500 for _, told in drawn)


def test_balanced_C2_is_as_uneven_as_the_authors_code() -> None:
    drawn = many(2, "balanced")
    assert share_inside([told.sizes.sd for _, told in drawn], 25.5, 28.9) >= 0.85
    assert share_inside([told.sizes.median for _, told in drawn], 116, 120) >= 0.85
    assert share_inside([told.one_class_clients for _, told in drawn], 1, 9.5) >= 0.85
    holders = np.concatenate([(partition.counts > 0).sum(axis=0) for partition, _ in drawn]).tolist()
    assert share_inside(holders, 76, 126) >= 0.9
    assert all(told.sizes.min >= 10 for _, told in drawn)


def test_the_papers_form_has_no_one_class_clients_at_C2() -> None:
    drawn = many(2, "paper")
    assert all(told.one_class_clients == 0 for _, told in drawn)
    assert share_inside([told.sizes.sd for _, told in drawn], 26.3, 30.1) >= 0.8


def test_no_client_holds_more_classes_than_C() -> None:
    for seed in SEEDS:
        assert ((exdir(LABELS, M=8, C=2, alpha=0.3, seed=seed).counts > 0).sum(axis=1) <= 2).all()


def test_balanced_leaves_nobody_below_the_smallest_size() -> None:
    for seed in SEEDS:
        assert exdir(LABELS, M=10, C=2, alpha=1.0, form="balanced", min_size=7, seed=seed).sizes.min() >= 7


@pytest.mark.parametrize("seed", range(20))
def test_balanced_ends_where_the_authors_code_divides_by_zero(seed: int) -> None:
    assert exdir(MNIST, M=10, C=2, alpha=10.0, form="balanced", seed=seed).N == 60_000


def test_the_classes_do_not_depend_on_alpha() -> None:
    held = [exdir(LABELS, M=5, C=1, alpha=alpha).counts for alpha in (100.0, 1.0)]
    assert np.array_equal(*held)


def test_exdir_with_all_classes_is_dirichlet() -> None:
    assert exdir(LABELS, M=7, C=5, alpha=0.4, seed=3) == draw_partition("dirichlet", LABELS, M=7, alpha=0.4, seed=3)


def test_clients_without_samples_are_listed_and_not_among_the_clients() -> None:
    partition = draw_partition("dirichlet", LABELS, M=100, alpha=0.01)
    assert len(partition.empty) > 50
    assert sorted(partition.empty + partition.clients) == list(range(100))
    assert all(len(partition.indices[m]) == 0 for m in partition.empty)


def test_iid_parts_differ_by_one_sample_at_most() -> None:
    assert np.ptp(draw_partition("iid", LABELS, M=7).sizes) == 1


def test_iid_mixes_the_classes() -> None:
    assert measure_heterogeneity(draw_partition("iid", MNIST, M=10)).total_variation.max < 0.03


def test_pathological_gives_every_holder_of_a_class_the_same() -> None:
    counts = draw_partition("pathological", MNIST, M=30, C=3).counts
    assert ((counts > 0).sum(axis=1) == 3).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_shards_are_pieces_of_the_sorted_set() -> None:
    partition = draw_partition("shards", LABELS, M=10, shards=2)
    assert set(partition.sizes.tolist()) == {20}
    assert set(partition.counts.ravel().tolist()) <= {0, 10, 20}  # 40 of a class make four whole shards


ONE_CLASS = {
    "exdir": {"C": 1, "alpha": 9.0},
    "dirichlet": {"alpha": 9.0},
    "pathological": {"C": 1},
    "shards": {},
    "iid": {},
}


@pytest.mark.parametrize("kind", ONE_CLASS)
def test_which_samples_of_a_class_a_client_gets_is_random(kind: str) -> None:
    first = draw_partition(kind, np.zeros(100, dtype=int), M=2, **ONE_CLASS[kind]).indices[0]
    assert 20 < len(first) < 80
    assert len(np.flatnonzero(np.diff(first) > 1)) > 10  # far from a row of neighbours


def test_labels_need_not_start_at_zero() -> None:
    shifted = draw_partition("exdir", LABELS * 7 - 3, M=6, C=2, alpha=1.0)
    assert shifted.classes.tolist() == [-3, 4, 11, 18, 25]
    assert np.array_equal(shifted.counts, draw_partition("exdir", LABELS, M=6, C=2, alpha=1.0).counts)


REFUSED = [
    ("exdir", {"M": 2, "C": 2, "alpha": 1.0}, {"value": "M*C = 4", "limit": "M*C >= 5", "hint": "C >= 3"}),
    ("exdir", {"M": 5, "C": 6, "alpha": 1.0}, {"what": "C", "value": 6, "limit": "1 <= C <= 5"}),
    ("exdir", {"M": 0, "C": 1, "alpha": 1.0}, {"what": "M", "value": 0, "limit": "M >= 1"}),
    ("exdir", {"M": 5, "C": 1, "alpha": 0.0}, {"what": "alpha", "value": 0.0, "limit": "0 < alpha"}),
    ("exdir", {"M": 5, "C": 1, "alpha": float("nan")}, {"what": "alpha", "value": "nan", "limit": "0 < alpha"}),
    (
        "exdir",
        {"M": 21, "C": 1, "alpha": 1.0, "form": "balanced"},
        {"what": "210", "value": 200, "hint": ("M <= 20", "min_size <= 9")},
    ),
    (
        "exdir",
        {"M": 5, "C": 1, "alpha": 1.0, "min_size": 3},
        {"what": "form=paper", "value": "min_size=3", "hint": "form=balanced"},
    ),
    (
        "dirichlet",
        {"M": 5, "alpha": 1.0, "min_size": 50},
        {"what": "250", "value": 200, "hint": ("M <= 4", "min_size <= 40")},
    ),
    ("iid", {"M": 201}, {"what": "M", "value": 201, "limit": "1 <= M <= 200"}),
    ("shards", {"M": 101, "shards": 2}, {"value": "200", "limit": "202"}),
    ("pathological", {"M": 2, "C": 2}, {"value": "M*C = 4", "limit": "M*C >= 5"}),
]


@pytest.mark.parametrize(("kind", "settings", "fields"), REFUSED)
def test_impossible_settings_are_rejected_with_numbers(kind: str, settings: dict, fields: dict) -> None:
    with expect_error(OutOfRange, **fields):
        draw_partition(kind, LABELS, **settings)


def test_unreachable_min_size_is_an_error() -> None:
    with expect_error(
        WorkError, what=("ExDir(1, 0.001)", "20 clients", "200 samples"), hint=("alpha", "M", "min_size")
    ):
        exdir(LABELS, M=20, C=1, alpha=1e-3, form="balanced", min_size=9)


def test_unreachable_number_of_holders_is_an_error() -> None:
    with expect_error(WorkError, what=("1 of 2", "4 clients", "3"), hint=("C", "M", "form=paper")):
        draw_covering(4, 1, 2, rng(1, Purpose.PARTITION), holders=3)


def test_unknown_names_get_a_suggestion() -> None:
    with expect_error(UnknownName, name="exdri", hint="exdir"):
        draw_partition("exdri", LABELS)
    with expect_error(UnknownName, name="alhpa", hint="alpha"):
        draw_partition("exdir", LABELS, M=5, C=1, alhpa=1.0)
    with expect_error(UnknownName, name="balancd", hint="balanced"):
        exdir(LABELS, M=5, C=1, alpha=1.0, form="balancd")


def test_missing_settings_are_named() -> None:
    with expect_error(InputError, what=("exdir", "C, alpha"), hint=("M", "min_size")):
        draw_partition("exdir", LABELS, M=5)


@pytest.mark.parametrize("labels", [np.array([]), np.array([], dtype=int), np.zeros((3, 2), dtype=int), np.ones(3)])
def test_invalid_labels_are_rejected(labels: np.ndarray) -> None:
    with pytest.raises(InputError):
        draw_partition("iid", labels, M=1)
