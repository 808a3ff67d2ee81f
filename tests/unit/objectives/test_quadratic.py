"""Quadratics: gradients, and every constant that the theorems ask for."""

import math
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitrelay.errors import InputError, OutOfRange
from splitrelay.objectives.quadratic import Quadratics, ScalarQuadratics
from splitrelay.objectives.quadratic_groups import paper_groups
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error


def random_quadratics(seed: int, M: int = 3, d: int = 2, sigma2: float = 0.0) -> Quadratics:
    generator = rng(seed, Purpose.INSTANCES)
    root = generator.normal(size=(M, d, d))
    return Quadratics(root @ root.swapaxes(1, 2) + 0.1 * np.eye(d), generator.normal(size=(M, d)), sigma2)


def never() -> np.random.Generator:
    raise AssertionError("the generator was made")


@given(st.integers(0, 50), st.integers(1, 4), st.integers(1, 3))
def test_the_gradient_is_that_of_F_m(seed: int, M: int, d: int) -> None:
    problem = random_quadratics(seed, M, d)
    x, direction = rng(seed, Purpose.INIT).normal(size=(2, d))
    for m in range(M):
        # Central differences are exact on quadratics, up to rounding.
        slope = (problem.F_m(m, x + direction) - problem.F_m(m, x - direction)) / 2
        assert slope == pytest.approx(problem.gradient(m, x, None) @ direction, rel=1e-9, abs=1e-9)


def test_F_is_the_mean_of_all_clients() -> None:
    problem, x = random_quadratics(1), np.array([0.3, -2.0])
    assert problem.F(x) == pytest.approx(np.mean([problem.F_m(m, x) for m in range(3)]))
    assert problem.full_gradient(x) == pytest.approx(np.mean([problem.gradient(m, x, None) for m in range(3)], axis=0))


def test_many_settings_in_one_x() -> None:
    problem = random_quadratics(1)
    xs = rng(0, Purpose.INIT).normal(size=(4, 5, 2))
    together = problem.gradient(1, xs, None)
    assert together.shape == xs.shape
    assert together[2, 3] == pytest.approx(problem.gradient(1, xs[2, 3], None))


def test_x_star_is_the_least() -> None:
    problem = random_quadratics(2)
    assert problem.full_gradient(problem.x_star) == pytest.approx([0, 0], abs=1e-12)
    assert problem.F(problem.x_star + np.array([1e-3, 0])) > problem.F_star


def test_noise_has_variance_sigma2_in_all() -> None:
    problem = random_quadratics(3, d=3, sigma2=2.5)
    xi = np.array(problem.draw(0, 20_000, lambda: rng(7, Purpose.NOISE, 0, 0, 0)))
    assert (xi**2).sum(1).mean() == pytest.approx(2.5, rel=0.02)
    assert problem.gradient(0, np.ones(3), xi[0]) == pytest.approx(problem.gradient(0, np.ones(3), None) + xi[0])


def test_without_noise_no_generator_is_made() -> None:
    assert random_quadratics(1).draw(0, 3, never) == [None, None, None]
    assert ScalarQuadratics([1], [0]).draw(0, 2, never) == [None, None]


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 3))
def test_tr_Lambda_is_the_covariance_over_all_orders(seed: int, M: int, d: int) -> None:
    problem = random_quadratics(seed, M, d)
    g = problem.at_optimum
    sums = [
        sum((problem.H[pi[j]] @ g[pi[i]] for j in range(M) for i in range(j)), np.zeros(d))
        for pi in permutations(range(M))
    ]
    assert problem.tr_Lambda == pytest.approx(np.var(sums, axis=0).sum(), rel=1e-9, abs=1e-12)


@given(st.integers(0, 30), st.integers(2, 4), st.integers(1, 3), st.floats(0.01, 3))
def test_zeta2_bounds_heterogeneity_everywhere_and_is_reached(seed: int, M: int, d: int, above: float) -> None:
    problem = random_quadratics(seed, M, d)
    B2 = problem.B2_min + above
    zeta2 = problem.zeta2(B2)
    apart = problem.H - problem.H_bar
    gap = B2 * problem.H_bar @ problem.H_bar - np.mean(apart @ apart, axis=0)
    worst = problem.x_star + np.linalg.solve(gap, np.einsum("mij,mj->i", apart, problem.at_optimum) / M)

    def needed(x: np.ndarray) -> float:
        full = problem.full_gradient(x)
        spread = np.mean([((problem.gradient(m, x, None) - full) ** 2).sum() for m in range(M)])
        return float(spread - B2 * (full**2).sum())

    assert needed(worst) == pytest.approx(zeta2, rel=1e-6)
    for x in rng(seed, Purpose.INIT).normal(size=(20, d)) * 10:
        assert needed(x) <= zeta2 * (1 + 1e-9)


def test_no_zeta2_goes_with_a_B2_too_small() -> None:
    problem = random_quadratics(4)
    assert problem.zeta2(0.9 * problem.B2_min) == math.inf
    equal = Quadratics(np.ones((2, 1, 1)), np.array([[3.0], [-3.0]]))
    assert equal.B2_min == 0
    assert equal.zeta2(0) == equal.zeta2_star == 9


def test_delta_where_local_optima_are_not_unique_or_not_there() -> None:
    flat = np.array([[[1.0, 0], [0, 0]], [[1.0, 0], [0, 2.0]]])
    assert Quadratics(flat, np.array([[1.0, 0], [-1.0, 0]])).delta == 0
    assert Quadratics(flat, np.array([[1.0, 1], [-1.0, -1]])).delta == math.inf
    assert Quadratics(np.array([[[3.0]], [[-1.0]]]), np.array([[1.0], [-1.0]])).delta == math.inf


def test_delta_is_not_what_decides() -> None:
    def scalar(g: list[float]) -> Quadratics:
        return Quadratics(np.array([1.0, 2, 3]).reshape(3, 1, 1), np.array(g).reshape(3, 1))

    first, second = scalar([1, -2, 1]), scalar([1, -4, 3])
    assert first.delta == pytest.approx(1 / 9)
    assert first.eta_tilde_star(10) == 0
    assert second.delta == pytest.approx(0)
    assert second.c_H == pytest.approx([2 / 3])


def test_indefinite_clients_have_negative_mu_and_L_of_the_largest_absolute_value() -> None:
    problem = Quadratics(np.array([[[-3.0]], [[5.0]]]), np.zeros((2, 1)))
    assert (problem.L, problem.mu_min, problem.mu_mean) == (5, -3, 1)


@pytest.mark.parametrize(
    ("H", "V", "sigma2", "kind", "fields"),
    [
        (np.ones((2, 1)), np.ones((2, 1)), 0.0, InputError, {"value": ("H (2, 1)", "V (2, 1)")}),
        (np.ones((0, 1, 1)), np.ones((0, 1)), 0.0, InputError, {"value": ("H (0, 1, 1)", "V (0, 1)")}),
        (np.full((1, 1, 1), np.nan), np.ones((1, 1)), 0.0, InputError, {"what": ("H", "V"), "hint": "NaN"}),
        (np.array([[[1.0, 1], [0, 1]]]), np.ones((1, 2)), 0.0, InputError, {"what": "H_m", "hint": "(H_m + H_m') / 2"}),
        (np.ones((1, 1, 1)), np.ones((1, 1)), -1.0, OutOfRange, {"value": -1.0, "limit": "0 <= sigma2 < inf"}),
        (np.ones((1, 1, 1)), np.ones((1, 1)), math.nan, OutOfRange, {"value": "nan", "limit": "0 <= sigma2 < inf"}),
    ],
)
def test_what_are_no_quadratics_is_refused(
    H: np.ndarray, V: np.ndarray, sigma2: float, kind: type[InputError], fields: dict[str, Any]
) -> None:
    with expect_error(kind, **fields):
        Quadratics(H, V, sigma2)


def test_without_a_minimiser_there_is_no_x_star() -> None:
    with expect_error(OutOfRange, what="F", value=0.0, limit="H_m"):
        Quadratics(np.array([[[1.0]], [[-1.0]]]), np.ones((2, 1))).x_star  # noqa: B018


def test_scalar_quadratics_on_fractions_stay_fractions() -> None:
    clients = ScalarQuadratics([Fraction(4, 3), Fraction(2, 3)], [Fraction(1), Fraction(-2)])
    assert clients.gradient(0, Fraction(1, 2), None) == Fraction(5, 3)
    assert clients.x_star == Fraction(1, 2)


def test_scalar_quadratics_side_by_side_equal_each_alone() -> None:
    problems = [group.problem for group in paper_groups()]
    clients = ScalarQuadratics.beside(problems)
    x = rng(0, Purpose.INIT).normal(size=(9, 4))
    for m in range(clients.M):
        together = clients.gradient(m, x, None)
        alone = [problem.gradient(m, x[g][:, None], None)[:, 0] for g, problem in enumerate(problems)]
        assert np.array_equal(together, np.array(alone))
    assert np.array_equal(clients.x_star, np.zeros((9, 1)))


def test_scalar_noise_is_that_of_one_dimension() -> None:
    clients = ScalarQuadratics(np.ones(2), np.zeros(2), sigma2=4.0)
    xi = clients.draw(0, 3, lambda: rng(7, Purpose.NOISE, 0, 0, 0))
    alone = Quadratics(np.ones((2, 1, 1)), np.zeros((2, 1)), 4.0).draw(0, 3, lambda: rng(7, Purpose.NOISE, 0, 0, 0))
    assert xi == pytest.approx(np.ravel(alone))


def test_only_like_problems_stand_side_by_side() -> None:
    with expect_error(InputError, what=("M", "sigma2")):
        ScalarQuadratics.beside([random_quadratics(0), random_quadratics(1)])
