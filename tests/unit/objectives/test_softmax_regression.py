"""Softmax regression: gradients, curvature, noise and heterogeneity against finite differences and by hand."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from splitrelay.errors import InputError, OutOfRange
from splitrelay.objectives.softmax_regression import BIAS, Softmax, feature_rows, mean_image
from splitrelay.paper.convex import minimise
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

Array = npt.NDArray[np.float64]


def tiny(batch: int | None = 2, mu: float = 0.1) -> Softmax:
    """Three clients with 4, 3 and 5 of twelve samples in three dimensions, three classes."""
    generator = rng(7, Purpose.INSTANCES, 0)
    features, labels = generator.standard_normal((12, 3)), generator.integers(3, size=12)
    return Softmax(features, labels, np.split(np.arange(12), [4, 7]), mu, 3, batch)


def somewhere(*settings: int) -> Array:
    return rng(7, Purpose.INSTANCES, 1).standard_normal((3, 3, *settings))


def hessian(objective: Softmax, m: int, x: Array) -> Array:
    """Of F_m, by differences of its gradient."""
    columns, step = [], 1e-5
    for j in range(x.size):
        move = step * np.eye(x.size)[j].reshape(x.shape)
        columns.append((objective.gradient(m, x + move) - objective.gradient(m, x - move)).ravel() / (2 * step))
    return np.stack(columns)


def test_the_gradient_is_the_slope_of_the_objective() -> None:
    objective, x, step = tiny(), somewhere(), 1e-6
    for m in range(objective.M):
        slopes = [
            (objective.F_m(m, x + move) - objective.F_m(m, x - move)) / (2 * step)
            for move in step * np.eye(9).reshape(9, 3, 3)
        ]
        assert objective.gradient(m, x).ravel() == pytest.approx(slopes, abs=1e-8)


def test_F_is_the_plain_mean_over_clients_of_any_size() -> None:
    objective, x = tiny(), somewhere()
    assert objective.F(x) == pytest.approx(np.mean([objective.F_m(m, x) for m in range(3)]), rel=1e-13)
    assert objective.full_gradient(x) == pytest.approx(objective.gradients(x).mean(axis=0), rel=1e-12)


def test_settings_side_by_side_are_those_settings_alone() -> None:
    objective, x, rows = tiny(), somewhere(4), np.array([5, 6, 6])
    for j in range(4):
        assert objective.gradient(1, x, rows)[..., j] == pytest.approx(
            objective.gradient(1, x[..., j], rows), rel=1e-12
        )
        assert objective.F(x)[j] == pytest.approx(float(objective.F(x[..., j])), rel=1e-13)
        assert objective.full_gradient(x)[..., j] == pytest.approx(objective.full_gradient(x[..., j]), rel=1e-12)


def test_the_curvature_is_the_slope_of_the_gradient() -> None:
    objective, x, v, step = tiny(), somewhere(), somewhere(2)[..., 1], 1e-6
    slope = (objective.full_gradient(x + step * v) - objective.full_gradient(x - step * v)) / (2 * step)
    assert objective.curvature(x)(v) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 5.0])
def test_no_client_is_rounder_than_L_or_flatter_than_mu(scale: float) -> None:
    objective, x = tiny(), scale * somewhere()
    for m in range(objective.M):
        eigenvalues = np.linalg.eigvalsh(hessian(objective, m, x))
        assert eigenvalues[-1] <= objective.L
        assert eigenvalues[0] >= objective.mu - 1e-8


def test_L_is_reached_where_two_classes_are_equally_likely() -> None:
    objective = Softmax(np.array([[3.0]]), np.array([0]), [np.array([0])], 0.5, 2)
    assert np.linalg.eigvalsh(hessian(objective, 0, np.zeros((1, 2))))[-1] == pytest.approx(objective.L, rel=1e-8)
    assert math.isclose(objective.L, 9 / 2 + 0.5)


def test_the_mean_over_all_batches_is_the_full_gradient() -> None:
    objective, x = tiny(), somewhere()
    pairs = [np.array([i, j]) for i in range(4, 7) for j in range(4, 7)]
    mean = np.mean([objective.gradient(1, x, rows) for rows in pairs], axis=0)
    assert mean == pytest.approx(objective.gradient(1, x), rel=1e-12)


def test_the_noise_is_the_variance_over_all_batches() -> None:
    objective, x = tiny(), somewhere()
    pairs = [np.array([i, j]) for i in range(4, 7) for j in range(4, 7)]
    apart = [((objective.gradient(1, x, rows) - objective.gradient(1, x)) ** 2).sum() for rows in pairs]
    assert objective.noise(x)[1] == pytest.approx(np.mean(apart), rel=1e-10)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_no_noise_exceeds_the_one_that_holds_everywhere(scale: float) -> None:
    objective = tiny()
    assert objective.noise(scale * somewhere()).max() <= objective.sigma2_everywhere


def test_full_batches_have_no_noise_and_make_no_generator() -> None:
    objective = tiny(batch=None)
    assert objective.draw(0, 3, lambda: pytest.fail("a generator was made")) == [None] * 3
    assert objective.noise(somewhere()).tolist() == [0, 0, 0]
    assert objective.sigma2_everywhere == 0


def test_batches_are_named_and_stay_with_their_client() -> None:
    objective = tiny()
    first, again = (objective.draw(1, 50, lambda: rng(1, Purpose.BATCHES, 0, 1, 0)) for _ in range(2))
    assert np.array_equal(first, again)
    assert set(np.ravel(first)) == {4, 5, 6}


def test_zeta_star_by_hand() -> None:
    """Two clients with one sample each, a = 1, of classes 0 and 1.

    x* = 0 by symmetry; the gradients there are (-1/2, 1/2) and (1/2, -1/2), so zeta_*^2 = 1/2.
    """
    objective = Softmax(np.ones((2, 1)), np.array([0, 1]), [np.array([0]), np.array([1])], 0.3, 2)
    optimum = minimise(objective)
    assert optimum.x == pytest.approx(np.zeros((1, 2)), abs=1e-12)
    assert objective.zeta2(optimum.x) == pytest.approx(0.5, rel=1e-12)
    assert math.isclose(optimum.F, math.log(2))


def test_the_optimum_is_optimal() -> None:
    objective = tiny(mu=1e-3)
    optimum = minimise(objective)
    assert optimum.gradient_norm <= 1e-8
    assert np.linalg.norm(objective.gradients(optimum.x).mean(axis=0)) <= 1e-8
    for j in range(9):
        assert objective.F(optimum.x + 1e-2 * np.eye(9)[j].reshape(3, 3)) > optimum.F


def test_the_optimum_does_not_depend_on_the_batches() -> None:
    assert minimise(tiny(batch=None)).F == minimise(tiny(batch=1)).F


def test_rows_are_centred_of_length_one_and_end_with_the_bias() -> None:
    images = np.array([[[[0, 8], [2, 2]]], [[[4, 0], [2, 6]]]], dtype=np.uint8)
    rows = feature_rows(images, mean_image(images))
    assert rows[0] == pytest.approx(np.array([-2, 4, 0, -2, BIAS * math.sqrt(24)]) / math.sqrt(24))
    assert rows[1, :4] == pytest.approx(-rows[0, :4])


def test_an_image_that_is_the_mean_stays_zero() -> None:
    images = np.full((2, 1, 2, 2), 5, dtype=np.uint8)
    assert feature_rows(images, mean_image(images)).tolist() == [[0, 0, 0, 0, BIAS]] * 2


def test_a_client_without_samples_is_refused() -> None:
    with expect_error(InputError, what=("F_m", "client 1"), hint="alpha"):
        Softmax(np.ones((2, 1)), np.array([0, 1]), [np.arange(2), np.arange(0)], 0.1, 2)


def test_a_mu_of_zero_is_refused() -> None:
    with expect_error(OutOfRange, value=0, limit="mu > 0"):
        tiny(mu=0)


def test_labels_of_another_length_are_refused() -> None:
    with expect_error(InputError, what="(N, d)", value=("(2, 1)", "(1,)")):
        Softmax(np.ones((2, 1)), np.array([0]), [np.arange(2)], 0.1, 2)
