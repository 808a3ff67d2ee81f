"""Partitions as objects, functions and lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import splitrelay as sr
from splitrelay.api.partitions import divide, list_scheme_settings
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.runs.spec import make_spec

Y = np.arange(100) % 10


@pytest.mark.parametrize(
    ("scheme", "kind", "settings"),
    [
        (sr.ExDir(M=5, C=2, alpha=3.0), "exdir", {"M": 5, "C": 2, "alpha": 3.0, "form": "paper"}),
        (sr.IID(M=4), "iid", {"M": 4}),
        (sr.Dirichlet(M=3, alpha=1.0), "dirichlet", {"M": 3, "alpha": 1.0}),
        (sr.Pathological(M=5, C=2), "pathological", {"M": 5, "C": 2}),
        (sr.Shards(M=5, shards=2), "shards", {"M": 5, "shards": 2}),
    ],
)
def test_a_scheme_draws_what_its_name_draws(scheme: Any, kind: str, settings: dict[str, Any]) -> None:
    assert divide(scheme, Y, seed=3) == draw_partition(kind, Y, seed=3, **settings)


def test_the_own_seed_of_a_scheme_is_used() -> None:
    assert divide(sr.IID(M=4, seed=7), Y, seed=3) == divide(sr.IID(M=4), Y, seed=7)
    assert divide(sr.IID(M=4, seed=7), Y, seed=3) != divide(sr.IID(M=4), Y, seed=3)


def test_settings_of_a_scheme_are_keys_of_a_spec() -> None:
    spec = make_spec(**list_scheme_settings(sr.ExDir(M=7, C=3, seed=5)))
    assert (spec.partition.kind, spec.partition.M, spec.partition.C, spec.partition.seed) == ("exdir", 7, 3, 5)


def test_owners_positions_and_functions_divide_alike() -> None:
    owners = Y % 3
    positions = [np.flatnonzero(owners == m) for m in range(3)]
    assert divide(owners, Y, 0) == divide(positions, Y, 0) == divide(lambda y: y % 3, Y, 0)


@pytest.mark.parametrize("given", [7, [[0, 1], [1, 2]], [0, 1], [[0, 500]]])
def test_what_is_no_partition_is_refused(given: Any) -> None:
    with pytest.raises(SplitrelayError):
        divide(given, Y, 0)


def test_a_wrong_type_is_named() -> None:
    with pytest.raises(InputError) as caught:
        divide(7, Y, 0)
    assert caught.value.value == "int"
