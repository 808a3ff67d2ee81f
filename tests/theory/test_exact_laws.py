"""Exact laws on quadratics: against the reference, against brute force over orders, against Monte Carlo."""

import json
from collections.abc import Callable
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitrelay.errors import OutOfRange
from splitrelay.objectives import exact_moments
from splitrelay.objectives.exact_distributions import fedavg_point, mean_absolute, ssl_law
from splitrelay.objectives.quadratic import Quadratics, ScalarQuadratics
from splitrelay.objectives.quadratic_groups import paper_groups
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

REFERENCE = json.loads((Path(__file__).parent / "data" / "exact_quadratics.json").read_text())["exact_noisy_quadratics"]
GRID = np.array([0.003, 0.006, 0.01, 0.03, 0.06, 0.1, 0.3, 0.6])
NAMES = ("ssl", "fedavg", "fedavg_swor", "fedavg_swr")
NINE = ScalarQuadratics.beside([group.problem for group in paper_groups()])
deterministic = settings(max_examples=40)

# group, eta: FedAvg's contraction, fixed point, log10 |x_500|; SSL's contraction, mean, sd, E|x_500|, RMS, least
# (None: 0*), largest
TABLE: list[tuple[Any, ...]] = [
    (1, 0.003, 0.9704, 0, -5.52, 0.94168, 8.9451e-13, 0.0026033, 0.0020879, 0.0026033, None, 0.01502),
    (1, 0.03, 0.73742, 0, -65.14, 0.54379, 5.2161e-132, 0.082155, 0.069711, 0.082155, None, 0.1511),
    (1, 0.3, 0.028248, 0, -773.51, 0.00079792, 0, 0.9443, 0.9443, 0.9443, 0.9435, 0.9451),
    (4, 0.003, 0.97045, 0.0044954, -2.35, 0.94167, -0.00045096, 0.0026032, 0.0021183, 0.0026419, None, 0.01547),
    (4, 0.03, 0.74095, 0.044423, -1.35, 0.54322, 5.1572e-05, 0.082153, 0.069722, 0.082153, None, 0.1511),
    (4, 0.3, 0.05671, 0.31458, -0.50, 0.00064925, 0.26093, 0.99813, 0.99813, 1.0317, 0.7366, 1.26),
    (7, 0.003, 0.9708, 0.013649, -1.86, 0.94159, -0.0013511, 0.0026016, 0.0023564, 0.0029315, None, 0.01635),
    (7, 0.03, 0.76931, 0.15022, -0.82, 0.53862, 0.00021636, 0.082141, 0.069821, 0.082141, None, 0.1502),
    (7, 0.3, 0.50005, 2.5003, 0.40, 0.00010486, 1.0003, 1.4998, 1.4998, 1.8028, 0.4994, 2.5),
]
# group: FedAvg's best eta and |x_500| (None: under all that doubles can hold), SSL's best eta, E|x_500|, RMS, winner
WINNERS: list[tuple[Any, ...]] = [
    (1, 0.6, None, 0.003, 0.002088, 0.002603, "fedavg"),
    (2, 0.6, None, 0.003, 0.02088, 0.02603, "fedavg"),
    (3, 0.6, None, 0.003, 0.2088, 0.2603, "fedavg"),
    (4, 0.003, 0.004498, 0.003, 0.002118, 0.002642, "ssl"),
    (5, 0.003, 0.04496, 0.003, 0.02118, 0.02642, "ssl"),
    (6, 0.003, 0.4495, 0.003, 0.2118, 0.2642, "ssl"),
    (7, 0.003, 0.01365, 0.003, 0.002356, 0.002931, "ssl"),
    (8, 0.003, 0.1365, 0.003, 0.02356, 0.02931, "ssl"),
    (9, 0.003, 1.365, 0.003, 0.2356, 0.2931, "ssl"),
]
AS_PRINTED = 1e-4  # relative: the tables carry four or five digits


def random_quadratics(seed: int, M: int, d: int, sigma2: float = 0.0) -> Quadratics:
    generator = rng(seed, Purpose.INSTANCES)
    root = generator.normal(size=(M, d, d))
    return Quadratics(root @ root.swapaxes(1, 2) + 0.1 * np.eye(d), generator.normal(size=(M, d)), sigma2)


def visited(problem: Quadratics, m: int, x: np.ndarray, eta: float, K: int) -> np.ndarray:
    for _ in range(K):
        x = x - eta * problem.gradient(m, x, None)
    return x


def ssl_ends(problem: Quadratics, x0: np.ndarray, eta: float, K: int, R: int) -> np.ndarray:
    """Every end of every sequence of orders."""
    ends = []
    for orders in product(permutations(range(problem.M)), repeat=R):
        x = x0
        for m in (m for order in orders for m in order):
            x = visited(problem, m, x, eta, K)
        ends.append(x)
    return np.array(ends)


# The tables of the quadratic study


@pytest.fixture(scope="module")
def laws() -> tuple[Any, Any]:
    return fedavg_point(NINE, GRID, 10, 500, 10.0), ssl_law(NINE, GRID, 10, 500, 10.0)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_number_of_the_table(laws: tuple[Any, Any], row: tuple[Any, ...]) -> None:
    (group, eta, Q, fixed, log10, q, mean, sd, absolute, rms, least, largest) = row
    fedavg, ssl = laws
    at = group - 1, int(np.flatnonzero(eta == GRID)[0])
    assert fedavg.contraction[at] == pytest.approx(Q, rel=AS_PRINTED)
    assert fedavg.fixed_point[at] == pytest.approx(fixed, rel=AS_PRINTED)
    assert fedavg.log10_error[at] == pytest.approx(log10, abs=0.006)
    assert ssl.contraction[at] == pytest.approx(q, rel=AS_PRINTED)
    assert ssl.mean[at] == pytest.approx(mean, rel=AS_PRINTED)
    assert ssl.deviation[at] == pytest.approx(sd, rel=AS_PRINTED)
    assert ssl.mean_absolute[at] == pytest.approx(absolute, rel=AS_PRINTED)
    assert ssl.rms[at] == pytest.approx(rms, rel=AS_PRINTED)
    assert ssl.largest[at] == pytest.approx(largest, rel=5e-4)
    assert ssl.touches[at] == (least is None)
    assert least is None or ssl.smallest[at] == pytest.approx(least, rel=AS_PRINTED)


@pytest.mark.parametrize("row", WINNERS, ids=lambda row: str(row[0]))
def test_the_winner_of_every_group(laws: tuple[Any, Any], row: tuple[Any, ...]) -> None:
    group, fedavg_eta, error, ssl_eta, absolute, rms, winner = row
    fedavg, ssl = laws
    best, its = int(fedavg.log10_error[group - 1].argmin()), int(ssl.mean_absolute[group - 1].argmin())
    assert (GRID[best], GRID[its]) == (fedavg_eta, ssl_eta)
    assert fedavg.error[group - 1, best] == (0 if error is None else pytest.approx(error, rel=3e-4))
    assert ssl.mean_absolute[group - 1, its] == pytest.approx(absolute, rel=3e-4)
    assert ssl.rms[group - 1, its] == pytest.approx(rms, rel=3e-4)
    assert winner == ("ssl" if ssl.mean_absolute[group - 1, its] < fedavg.error[group - 1, best] else "fedavg")


def test_the_logarithm_tells_on_where_doubles_end(laws: tuple[Any, Any]) -> None:
    fedavg, _ = laws
    assert fedavg.error[0, -1] == 0
    assert fedavg.log10_error[0, -1] == pytest.approx(-1989, abs=0.6)


@pytest.mark.parametrize("group", range(1, 10))
def test_at_a_common_rate_ssl_is_better_where_the_table_says(laws: tuple[Any, Any], group: int) -> None:
    fedavg, ssl = laws
    better = GRID[ssl.mean_absolute[group - 1] < fedavg.error[group - 1]].tolist()
    assert better == ([], [0.003, 0.006, 0.01], GRID.tolist())[(group - 1) // 3]


def test_in_the_last_groups_fedavg_ends_at_ssls_worst_order(laws: tuple[Any, Any]) -> None:
    fedavg, ssl = laws
    assert ssl.largest[6, 3:] == pytest.approx(fedavg.fixed_point[6, 3:], rel=1e-9)


# The law over orders, against every order


def one_dimensional(seed: int, M: int) -> ScalarQuadratics:
    generator = rng(seed, Purpose.INSTANCES)
    return ScalarQuadratics(generator.uniform(0.1, 2, size=M), generator.normal(size=M))


@deterministic
@given(st.integers(0, 100), st.sampled_from([(1, 6), (2, 6), (3, 3)]), st.integers(1, 4), st.floats(0.01, 1.4))
def test_the_law_is_that_of_all_orders(seed: int, M_R: tuple[int, int], K: int, eta: float) -> None:
    M, R = M_R
    clients = one_dimensional(seed, M)
    problem = Quadratics(np.reshape(clients.h, (M, 1, 1)), np.reshape(clients.a, (M, 1)))
    ends = ssl_ends(problem, np.array([3.0]), eta, K, R)[:, 0] - clients.x_star
    law = ssl_law(clients, eta, K, R, 3.0)
    close: Callable[[float], Any] = lambda value: pytest.approx(value, rel=1e-9, abs=1e-12)  # noqa: E731
    assert law.mean == close(ends.mean())
    assert law.deviation == close(ends.std())
    assert law.rms == close(np.sqrt((ends**2).mean()))
    assert law.mean_absolute == close(np.abs(ends).mean())
    assert law.largest == close(np.abs(ends).max())
    assert law.smallest >= np.abs(ends).min() * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize("eta", [0.3, 0.5, 0.9])
def test_the_best_of_all_orders_where_each_round_outweighs_the_later_ones(eta: float) -> None:
    clients = ScalarQuadratics([4 / 3, 2 / 3], [1.0, -1.0])
    law = ssl_law(clients, eta, 3, 6, 3.0)
    problem = Quadratics(np.reshape(clients.h, (2, 1, 1)), np.reshape(clients.a, (2, 1)))
    assert abs(law.contraction) < 1 / 2
    assert law.smallest == pytest.approx(np.abs(ssl_ends(problem, np.array([3.0]), eta, 3, 6)).min(), rel=1e-9)


@pytest.mark.parametrize("row", [(1.0, -1.0), (1.5, -1.0, -0.5)], ids=["even", "uneven"])
@pytest.mark.parametrize("q", [0.3, 0.5, 0.6180339887, 0.7548776662, 0.9, 0.99, -0.8])
def test_the_mean_absolute_value_against_the_integral(q: float, row: tuple[float, ...]) -> None:
    mean, terms = 0.4, np.multiply.outer(q ** np.arange(40), row)
    # E|z| = (2/pi) int_0^inf (1 - E cos(zt))/t^2 dt; beyond the end the 1 alone integrates to 1/end.
    edges = np.linspace(0, 1000, 40_001)
    t = (edges[1:] + edges[:-1]) / 2
    wave = np.exp(1j * mean * t)
    for values in terms:
        wave *= np.mean([np.exp(1j * value * t) for value in values], axis=0)
    integral = (((1 - wave.real) / t**2).sum() * (edges[1] - edges[0]) + 1 / edges[-1]) * 2 / np.pi
    assert mean_absolute(mean, terms) == pytest.approx(integral, rel=3e-6)


def test_a_uniform_law_has_its_known_mean() -> None:
    # sum of 2^-j eps_j, j = 1, 2, ... is uniform on [-1, 1]; shifted by s its mean absolute value is (1 + s^2)/2.
    terms = np.multiply.outer(0.5 ** np.arange(1, 60), [1.0, -1.0])
    for shift in (0.0, 0.25, 0.7, 1.5):
        expected = (1 + shift**2) / 2 if shift < 1 else shift
        assert mean_absolute(shift, terms) == pytest.approx(expected, rel=1e-12)


def test_settings_that_diverge_are_infinite_not_wrong() -> None:
    clients = ScalarQuadratics(np.array([1.0, 2.0]), np.array([1.0, -1.0]))
    law = ssl_law(clients, np.array([0.1, 50.0]), 10, 500, 10.0)
    assert np.isfinite(law.mean_absolute).tolist() == [True, False]
    assert fedavg_point(clients, 50.0, 10, 500, 10.0).error == np.inf


def test_too_many_clients_for_a_law_are_refused() -> None:
    with expect_error(OutOfRange, value="M = 7", limit="M <= 6"):
        ssl_law(one_dimensional(0, 7), 0.1, 1, 5, 1.0)


# Moments


def round_of(name: str, problem: Quadratics, eta_tilde: float, K: int, S: int) -> exact_moments.Round:
    if name == "ssl":
        return exact_moments.ssl_round(problem, eta_tilde / (problem.M * K), K)
    chosen = {"fedavg": (None, False), "fedavg_swor": (S, False), "fedavg_swr": (S, True)}[name]
    return exact_moments.fedavg_round(problem, eta_tilde / K, K, *chosen)


@pytest.mark.parametrize(("name", "case"), [(name, case) for case in REFERENCE for name in NAMES if name in case])
def test_moments_agree_with_the_reference(name: str, case: dict[str, Any]) -> None:
    problem = Quadratics(np.array(case["H"]), np.array(case["V"]), case["sigma2"])
    found = exact_moments.trajectory(
        problem,
        round_of(name, problem, case["eta_tilde"], case["K"], case.get("S", 1)),
        np.array(case["x0"]),
        case["R"],
        case["weights_ratio_1_minus_mu_et_over_2"],
    )
    assert found.summary() == pytest.approx(case[name], rel=1e-11)


@pytest.mark.parametrize("case", REFERENCE)
def test_drifts_agree_with_the_reference(case: dict[str, Any]) -> None:
    problem = Quadratics(np.array(case["H"]), np.array(case["V"]), case["sigma2"])
    x0, K, eta = np.array(case["x0"]), case["K"], case["eta_tilde"] / case["K"]
    assert exact_moments.ssl_drift(problem, x0, eta / problem.M, K) == pytest.approx(case["drift_ssl_at_x0"], rel=1e-11)
    assert exact_moments.fedavg_drift(problem, x0, eta, K) == pytest.approx(case["drift_fed_at_x0"], rel=1e-11)


@deterministic
@given(st.integers(0, 100), st.sampled_from([(1, 4), (2, 4), (3, 2), (4, 1)]), st.integers(1, 3), st.integers(1, 3))
def test_ssl_moments_are_those_of_all_orders(seed: int, M_R: tuple[int, int], d: int, K: int) -> None:
    problem, R = random_quadratics(seed, M_R[0], d), M_R[1]
    x0 = np.arange(1.0, d + 1)
    apart = ssl_ends(problem, x0, 0.05, K, R) - problem.x_star
    found = exact_moments.trajectory(problem, exact_moments.ssl_round(problem, 0.05, K), x0, R)
    assert found.r2[-1] == pytest.approx((apart**2).sum(1).mean(), rel=1e-9)
    assert found.F[-1] == pytest.approx((problem.F(apart + problem.x_star) - problem.F_star).mean(), rel=1e-8)


@deterministic
@given(st.integers(0, 100), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_sampled_moments_are_those_of_all_samples(seed: int, M: int, S: int, replacement: bool) -> None:
    problem, S, x0 = random_quadratics(seed, M, 2), min(S, M), np.array([1.0, -2.0])
    ends = [visited(problem, m, x0, 0.05, 3) for m in range(M)]
    samples = product(range(M), repeat=S) if replacement else combinations(range(M), S)
    expected = np.mean([((np.mean([ends[m] for m in s], axis=0) - problem.x_star) ** 2).sum() for s in samples])
    found = exact_moments.trajectory(problem, exact_moments.fedavg_round(problem, 0.05, 3, S, replacement), x0, 1)
    assert found.r2[-1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shrink", [1.0, 0.9])
def test_the_averaged_output_is_the_weighted_mean_of_the_path(shrink: float) -> None:
    problem, x0, R = random_quadratics(5, 2, 2), np.array([1.0, -2.0]), 4
    weights = shrink ** -(np.arange(R + 1) + 1.0)
    values = []
    for orders in product([(0, 1), (1, 0)], repeat=R):
        path = [x0]
        for order in orders:
            path.append(visited(problem, order[1], visited(problem, order[0], path[-1], 0.05, 3), 0.05, 3))
        values.append(problem.F(weights @ np.array(path) / weights.sum()) - problem.F_star)
    found = exact_moments.trajectory(problem, exact_moments.ssl_round(problem, 0.05, 3), x0, R, shrink)
    assert found.Fbar[-1] == pytest.approx(np.mean(values), rel=1e-9)
    assert found.psi[-1] == pytest.approx(weights @ found.F / weights.sum(), rel=1e-12)
    assert np.all(found.Fbar <= found.psi * (1 + 1e-12))  # Jensen


def test_many_settings_at_once_equal_each_alone() -> None:
    problem, etas, x0 = random_quadratics(6, 3, 2, 1.0), np.array([0.01, 0.03, 0.1]), np.array([1.0, 2.0])
    together = exact_moments.trajectory(problem, exact_moments.ssl_round(problem, etas, 2), x0, 5, 1 - etas / 2)
    for i, eta in enumerate(etas):
        alone = exact_moments.trajectory(problem, exact_moments.ssl_round(problem, eta, 2), x0, 5, 1 - eta / 2)
        assert together.Fbar[:, i] == pytest.approx(alone.Fbar, rel=1e-12)
        assert together.G2[:, i] == pytest.approx(alone.G2, rel=1e-12)


def test_drift_over_all_orders_without_noise() -> None:
    problem, x, eta, K = random_quadratics(7, 3, 2), np.array([1.0, -1.0]), 0.05, 4
    drifts = []
    for order in permutations(range(3)):
        y, total = x, 0.0
        for m in order:
            for _ in range(K):
                total += ((y - x) ** 2).sum()
                y = y - eta * problem.gradient(m, y, None)
        drifts.append(total)
    assert exact_moments.ssl_drift(problem, x, eta, K) == pytest.approx(np.mean(drifts), rel=1e-12)


def test_monte_carlo_agrees_with_the_moments() -> None:
    problem, x0, eta, K, R, runs = random_quadratics(8, 3, 2, 2.0), np.array([1.0, -2.0]), 0.04, 2, 5, 40_000
    generator = rng(1, Purpose.NOISE, 0, 0, 0)
    xs, drift = np.tile(x0, (runs, 1)), 0.0
    for r in range(R):
        start, orders = xs, generator.permuted(np.tile(np.arange(3), (runs, 1)), axis=1)
        for m in (m for m in orders.T for _ in range(K)):
            drift += ((xs - start) ** 2).sum() / runs if r == 0 else 0.0
            noise = generator.normal(size=(runs, 2)) * np.sqrt(problem.sigma2 / 2)
            xs = xs - eta * (np.einsum("rij,rj->ri", problem.H[m], xs) + problem.V[m] + noise)
    found = exact_moments.trajectory(problem, exact_moments.ssl_round(problem, eta, K), x0, R)
    squares = ((xs - problem.x_star) ** 2).sum(1)
    assert found.r2[-1] == pytest.approx(squares.mean(), abs=4 * squares.std() / np.sqrt(runs))
    assert exact_moments.ssl_drift(problem, x0, eta, K) == pytest.approx(drift, rel=0.01)


def test_monte_carlo_agrees_with_samples_whose_duplicates_train_apart() -> None:
    problem, x0, eta, K, runs = random_quadratics(9, 3, 1, 3.0), np.array([1.0]), 0.1, 2, 60_000
    generator = rng(2, Purpose.NOISE, 0, 0, 0)
    xs = np.tile(x0, (runs, 2, 1))
    drawn = generator.integers(0, 3, size=(runs, 2))
    for _ in range(K):
        noise = generator.normal(size=(runs, 2, 1)) * np.sqrt(problem.sigma2)
        xs = xs - eta * (problem.H[drawn][..., 0] * xs + problem.V[drawn] + noise)
    squares = ((xs.mean(1) - problem.x_star) ** 2).sum(1)
    found = exact_moments.trajectory(problem, exact_moments.fedavg_round(problem, eta, K, 2, True), x0, 1)
    assert found.r2[-1] == pytest.approx(squares.mean(), abs=4 * squares.std() / np.sqrt(runs))


def test_in_the_long_run_moments_come_to_rest() -> None:
    problem = random_quadratics(10, 3, 2, 1.0)
    for round_ in (exact_moments.ssl_round(problem, 0.05, 2), exact_moments.fedavg_round(problem, 0.05, 2, 2)):
        late = exact_moments.trajectory(problem, round_, np.array([1.0, 1.0]), 2000)
        F, r2 = exact_moments.stationary(problem, round_)
        assert (late.F[-1], late.r2[-1]) == (pytest.approx(F, rel=1e-9), pytest.approx(r2, rel=1e-9))


def test_the_fixed_point_is_kept_and_biased_by_c_H_to_first_order() -> None:
    problem, eta, K = random_quadratics(11, 3, 2), 1e-5, 10
    fixed = exact_moments.fixed_point(problem, exact_moments.fedavg_round(problem, eta, K))
    kept = np.mean([visited(problem, m, fixed, eta, K) for m in range(3)], axis=0)
    assert kept == pytest.approx(fixed, rel=1e-12)
    bias = np.linalg.solve(problem.H_bar, problem.c_H)
    assert (fixed - problem.x_star) / (eta * (K - 1) / 2) == pytest.approx(bias, rel=1e-2)
    ssl = exact_moments.fixed_point(problem, exact_moments.ssl_round(problem, eta, K))
    assert (ssl - problem.x_star) / (-eta / 2) == pytest.approx(bias, rel=1e-2)


def test_the_variance_over_orders_is_tr_Lambda_to_leading_order() -> None:
    problem, eta, K = random_quadratics(12, 4, 2), 1e-4, 3
    F, _ = exact_moments.stationary(problem, exact_moments.ssl_round(problem, eta, K))
    eta_tilde, bias = problem.M * K * eta, problem.c_H @ np.linalg.solve(problem.H_bar, problem.c_H)
    leading = eta**2 / 8 * bias + eta_tilde**3 * problem.tr_Lambda / (4 * problem.M**4)
    assert float(F) == pytest.approx(leading, rel=1e-2)


def test_more_clients_than_sets_can_hold_are_refused() -> None:
    problem = random_quadratics(0, 13, 1)
    with expect_error(OutOfRange, value="M = 13", limit="M <= 12"):
        exact_moments.ssl_round(problem, 0.01, 1)
    with expect_error(OutOfRange, value="S = 14", limit="1 <= S <= M = 13"):
        exact_moments.fedavg_round(problem, 0.01, 1, S=14)
