"""Are the weights of the averaged output right, and finite at any number of rounds?"""

from itertools import islice

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import OutOfRange
from splitrelay.theory import thetas, weights
from splitrelay.theory.averaging_weights import compute_log_sum, compute_log_weight, compute_theta
from tests.support.theory_problems import for_all, sizes

steps = st.just(0.0) | sizes(1e-9, 1.9)


@for_all(steps, st.integers(0, 200))
def test_weights_are_the_powers_of_the_paper(eta_tilde: float, R: int) -> None:
    found = weights(1, eta_tilde, R)
    w = (1 - eta_tilde / 2) ** -(found.r + 1)
    assert np.allclose(found.w, w, rtol=1e-11, atol=0)
    assert np.allclose(found.share, w / w.sum(), rtol=1e-9, atol=1e-300)
    assert np.allclose(found.theta, w / np.cumsum(w), rtol=1e-9, atol=0)
    assert np.exp(found.log_W) == pytest.approx(w.sum(), rel=1e-9, abs=0)


@pytest.mark.parametrize("eta_tilde", [0.0, 1e-9, 1 / 12, 1.0])
def test_a_million_rounds_do_not_overflow(eta_tilde: float) -> None:
    found = weights(1, eta_tilde, 10**6)
    for values in (found.log_w, found.share, found.theta, found.log_W):
        assert np.all(np.isfinite(values))
    assert found.share.sum() == pytest.approx(1, rel=1e-9, abs=0)
    assert found.theta[-1] == pytest.approx(found.share[-1], rel=1e-9, abs=0)
    assert found.log_W == compute_log_sum(1, eta_tilde, 10**6)
    assert found.log_w[-1] == compute_log_weight(1, eta_tilde, 10**6)


@pytest.mark.parametrize("eta_tilde", [0.0, 1e-9, 1 / 12, 1.0])
def test_the_running_shares_follow_their_recursion(eta_tilde: float) -> None:
    running = list(islice(thetas(1, eta_tilde), 5000))
    assert np.allclose(running, compute_theta(1, eta_tilde, np.arange(5000.0)), rtol=1e-12, atol=0)


def test_moving_by_theta_makes_the_weighted_average() -> None:
    xs = [3.0, -1.0, 4.0, 1.0, -5.0]
    average = 0.0
    for x, share in zip(xs, thetas(1, 0.5), strict=False):
        average += share * (x - average)
    assert average == pytest.approx(np.average(xs, weights=weights(1, 0.5, 4).w))


def test_many_settings_run_at_once() -> None:
    first, second = islice(thetas(np.asarray([0.0, 1.0]), 0.5), 2)
    assert first.tolist() == [1, 1] and second.tolist() == [1 / 2, 1 / 1.75]


def test_weights_beyond_double_precision_are_infinite_not_wrong() -> None:
    found = weights(1, 1.0, 2000)
    assert found.w[1000] == pytest.approx(2.0**1001, rel=1e-12, abs=0) and found.w[2000] == np.inf
    assert found.log_w[2000] == 2001 * np.log(2)


def test_too_large_a_step_has_no_weights() -> None:
    with pytest.raises(OutOfRange) as caught:
        weights(1, 2, 10)
    assert caught.value.value == 1


def test_tiny_steps_lose_no_digits() -> None:
    assert compute_log_weight(1, 2e-12, 0.0) == pytest.approx(1e-12, rel=1e-11, abs=0)
    assert compute_theta(1, 2e-12, 9.0) == pytest.approx(0.1, rel=1e-11, abs=0)


@pytest.mark.parametrize("R", [-1, 10**9])
def test_a_list_of_weights_has_a_length_that_fits(R: int) -> None:
    with pytest.raises(OutOfRange) as caught:
        weights(1, 0.5, R)
    assert (caught.value.value, caught.value.limit) == (R, "0 <= R <= 10000000")
