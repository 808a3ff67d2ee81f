"""Errors travel: a worker process hands them back whole."""

import copy

import pytest

from splitrelay.errors import Diverged, OutOfRange, SplitrelayError, UnknownName


@pytest.mark.parametrize(
    "error",
    [
        UnknownName("algorithm", "fedagv", ["fedavg", "ssl"]),
        OutOfRange("eta", limit="eta > 0", value=-1.0),
        Diverged("NaN", hint="Lower eta."),
    ],
)
def test_an_error_comes_home_as_it_left(error: SplitrelayError) -> None:
    back = copy.copy(error)  # by the same method as between processes: __reduce_ex__
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
