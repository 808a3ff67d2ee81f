"""theory check: the instances it draws, what it finds on a few, and that it would see a false statement."""

import numpy as np
import pytest

from splitrelay.errors import OutOfRange
from splitrelay.paper.theory_check import Row, run_checks, summarize
from splitrelay.paper.theory_check.random_problems import KINDS, MAX_KAPPA, SIGMA2, draw_instance
from splitrelay.paper.theory_check.round_lemmas import E7, check_counterexample

FEW = 12  # every kind twice


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.statement: row for row in summarize(run_checks(FEW, seed=3))}


def test_every_statement_of_the_report_is_checked(rows: dict[str, Row]) -> None:
    theorems = [name for name in rows if name.startswith("Theorem")]
    assert len(theorems) == 12
    for prefix, count in {
        "FedAvg, S": 6,
        "sharp, strongly convex": 5,
        "sharp, general convex": 5,
        "sharp, piecewise quadratic": 5,
        "sharp, logistic": 5,
        "sharp, softmax": 5,
        "sharp recursion": 5,
        "sharp drift": 2,
        "hard instance": 2,
        "last iterate": 4,
        "recursion": 4,
        "simplified recursion": 5,
        "drift": 3,
        "non-convex recursion": 2,
        "non-convex drift": 2,
        "simplified non-convex recursion": 2,
        E7: 2,
    }.items():
        assert sum(name.startswith(prefix) for name in rows) == count, prefix


def test_true_statements_hold_and_display_8_fails(rows: dict[str, Row]) -> None:
    assert [row.statement for row in rows.values() if not row.is_as_expected] == []
    assert all((row.violations > 0) == row.statement.startswith(E7) for row in rows.values())


def test_bounds_on_single_rounds_are_nearly_reached(rows: dict[str, Row]) -> None:
    recursions = [row for name, row in rows.items() if "recursion" in name and "sharp" not in name]
    assert all(1 <= row.smallest < 1.05 for row in recursions)


def test_theorems_are_loose_by_a_factor_not_by_magnitudes(rows: dict[str, Row]) -> None:
    theorems = [row for name, row in rows.items() if name.startswith("Theorem")]
    assert all(2 < row.smallest < 20 and row.smallest <= row.median for row in theorems)


def test_the_constructed_round_breaks_display_8_only() -> None:
    found = {name: float(ratios[0]) for name, ratios in check_counterexample().items()}
    printed = [value for name, value in found.items() if name.startswith(E7)]
    assert printed == pytest.approx([3 / 8, 3 / 8])
    assert min(value for name, value in found.items() if not name.startswith(E7)) == pytest.approx(4)


def test_a_violation_is_counted_and_so_is_no_number() -> None:
    (row,) = summarize([{"claim": np.array([2.0, 0.99])}, {"claim": np.array([np.nan, np.inf])}])
    assert (row.checks, row.violations) == (4, 2)
    assert not row.is_as_expected


def test_rounding_is_no_violation() -> None:
    (row,) = summarize([{"claim": np.array([1 - 1e-12, 3.0])}])
    assert (row.violations, row.smallest, row.median) == (0, 1 - 1e-12, pytest.approx(2))


def test_a_false_statement_that_never_fails_is_not_as_expected() -> None:
    (row,) = summarize([{E7: np.array([2.0])}])
    assert not row.is_as_expected


def test_an_instance_has_a_name() -> None:
    longer = list(run_checks(3, seed=5))
    for first, again in zip(run_checks(2, seed=5), longer, strict=False):
        assert all(np.array_equal(first[name], again[name]) for name in again)
    assert not np.array_equal(draw_instance(5, 1).x0, draw_instance(6, 1).x0)


def test_the_instances_fill_the_ranges() -> None:
    drawn = [draw_instance(0, number) for number in range(300)]
    assert {(i.convex.M, i.convex.d) for i in drawn} == {(M, d) for M in range(1, 5) for d in range(1, 4)}
    assert {i.K for i in drawn} == set(range(1, 11))
    assert {i.convex.sigma2 for i in drawn} == set(SIGMA2)
    assert {i.kind for i in drawn} == set(KINDS)
    kappas = [i.convex.L / (i.convex.mu_min or i.convex.mu_mean) for i in drawn]
    assert 1 - 1e-9 <= min(kappas) < 1.5 < 18 < max(kappas) <= MAX_KAPPA * (1 + 1e-9)
    zetas = [i.convex.zeta2_star**0.5 for i in drawn if i.convex.M > 1]
    assert 0.1 * (1 - 1e-9) <= min(zetas) < 0.2 < 50 < max(zetas) <= 100 * (1 + 1e-9)


def test_the_instances_hold_what_they_are_named_for() -> None:
    drawn = [instance for instance in (draw_instance(0, number) for number in range(120)) if instance.convex.M > 1]
    for instance in drawn:
        H = instance.convex.H
        assert (instance.convex.mu_min == 0) == (instance.kind == "flat clients")
        assert np.allclose(H, H[:1]) == (instance.kind == "equal curvature")
    assert any(instance.convex.delta == np.inf for instance in drawn if instance.kind == "flat clients")
    assert np.mean([instance.indefinite.mu_min < 0 for instance in drawn]) > 0.5


def test_zero_instances_raise() -> None:
    with pytest.raises(OutOfRange) as caught:
        next(run_checks(0))
    assert caught.value.limit == "instances >= 1"


def test_every_seed_has_its_instances() -> None:
    for seed in range(60):
        for number in range(0, 36, 3):
            assert draw_instance(seed, number).convex.M <= 4
