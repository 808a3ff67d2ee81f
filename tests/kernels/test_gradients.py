"""Gradients of random nets against autograd in float64, and to the bit wherever a net is cut."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.kernels.random_nets import case, checked, ours


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_gradients_are_autograds(number: int) -> None:
    verdict = checked(number)
    assume(verdict is not None)
    assert verdict.good, f"net {number}: {verdict}; {case(number).model_spec.build()}"


@pytest.mark.parametrize("number", range(8))
def test_whole_is_cut_at_every_layer_of_any_net(number: int) -> None:
    one = case(number)
    g, loss = ours(one)
    for cut in range(1, len(one.model_spec.layers())):
        mine, other = ours(one, cut)
        assert mine.numpy().tobytes() == g.numpy().tobytes() and other == loss, f"cut {cut}"
