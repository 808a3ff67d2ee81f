"""One local step, piece by piece."""

import math

import numpy as np

from splitrelay.algorithms import Step, Visit
from splitrelay.engine import take_local_steps
from splitrelay.engine.vector import compute_direction
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.vectors import Mean, mean, norm2
from tests.support.error_fields import expect_error


def visited(step: Step, x: float, K: int) -> float:
    return take_local_steps(Visit(0, 0, 0, x, step, K), [None] * K, lambda m, x, xi: x)


def test_plain_steps() -> None:
    assert visited(Step(0.5), 8.0, 3) == 1.0


def test_momentum_is_torchs() -> None:
    x, buffer, expected = 1.0, None, 1.0
    for _ in range(4):
        g = expected
        buffer = g if buffer is None else 0.9 * buffer + g
        expected = expected - 0.1 * buffer
    assert visited(Step(0.1, momentum=0.9), x, 4) == expected


def test_shift_comes_first_then_clip_then_decay_then_prox() -> None:
    step = Step(1.0, weight_decay=0.5, clip=2.0, prox=3.0, shift=7.0)
    clipped = 2.0 / (10.0 + 1e-6) * 10.0
    assert compute_direction(step, x=4.0, start=3.0, g=3.0) == clipped + 0.5 * 4.0 + 3.0 * 1.0


def test_a_short_gradient_is_not_clipped() -> None:
    assert compute_direction(Step(1.0, clip=5.0), 0.0, 0.0, 3.0) == 3.0


def test_norms_and_means() -> None:
    assert norm2(np.array([3.0, 4.0])) == 25.0 and norm2(-3) == 9
    assert mean([1.0, 2.0, 6.0]) == 3.0 and mean(iter([1.0])) == 1.0
    weighted = Mean[float]()
    assert weighted.value(7.0) == 7.0
    for x, weight in ((1.0, 3), (2.0, 1)):
        weighted.add(x, weight)
    assert weighted.value(7.0) == 1.25


def test_names_make_different_numbers_and_the_same_name_the_same() -> None:
    names = [(1, Purpose.ORDER, 0), (1, Purpose.ORDER, 1), (2, Purpose.ORDER, 0), (1, Purpose.BATCHES, 0)]
    draws = [float(rng(*name).random()) for name in names]
    assert len(set(draws)) == len(names)
    assert draws == [float(rng(*name).random()) for name in names]
    assert math.isclose(float(rng(1, Purpose.ORDER, 0).random()), draws[0], rel_tol=0)


def test_a_negative_seed_is_refused() -> None:
    with expect_error(InputError, what="seed", value=-1):
        rng(-1, Purpose.INIT)
