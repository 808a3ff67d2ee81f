"""The sharp bounds against plain sums, their limits and range, and the number of rounds for an accuracy."""

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory import Problem, bound, compare, rate, rounds, stepsize
from splitrelay.theory.sharp_bounds import compute_sequence_spread
from tests.support.theory_problems import BASE, for_all, get_error, get_json, get_output, problems, sizes

SC, GC, NC = "strongly-convex", "general-convex", "non-convex"
FULL: tuple[Any, ...] = ("ssl", "fedavg")
SAMPLED: tuple[Any, ...] = ("ssl-swor", "fedavg-swor", "fedavg-swr")
PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=100, D2=1)


def compute_by_sums(name: str, p: Any, g: float) -> float:
    """Evaluate the statement of docs/theory.md with every count as a plain sum, and W_R term by term."""
    M, K, S = int(p.M), int(p.K), int(p.M if p.S is None else p.S)
    n = S * K if name.startswith("ssl") else K
    eta = g / n
    k1, k2 = sum(range(n)), sum(j * j for j in range(n))
    T = float(k2)
    if name.startswith("ssl") and M > 1:
        T = sum(
            (m - 1) * (M - m + 1) / (M - 1) * K**2 + k**2 - 2 * (m - 1) / (M - 1) * K * k
            for m in range(1, S + 1)
            for k in range(K)
        )
    v = 1 / S if name == "fedavg-swr" else (M - S) / (S * max(M - 1, 1))
    q, w = (4, v) if S == 1 < M else (3, v / (1 - v) if M > 1 else 0)
    if M == 1:
        T = 0
    s, den = p.L * g, 1 - 4 * p.L**2 * eta**2 * k1
    b = 2 - 2 * q * s - p.L * eta / g * (2 + q * s) * 8 * p.L * eta**2 * k2 / den
    err = q * g**2 * (p.sigma2 / (S * K) + w * p.zeta2)
    err += p.L * eta * (2 + q * s) * 4 * eta**2 * (p.sigma2 * k1 + p.zeta2 * T) / den
    W = sum((1 - p.mu / 2 * g) ** -(r + 1) for r in range(int(p.R) + 1))
    return float((p.D2 / (g * W) + err / g) / b)


@pytest.mark.parametrize("name", FULL + SAMPLED)
@pytest.mark.parametrize(("M", "S", "K"), [(1, 1, 3), (4, 1, 3), (5, 2, 1), (5, 5, 4), (7, 3, 6)])
@pytest.mark.parametrize("R", [1, 30])
@pytest.mark.parametrize("fraction", [1, 0.1])
def test_the_bound_is_the_statement_by_plain_sums(name: Any, M: int, S: int, K: int, R: int, fraction: float) -> None:
    problem = Problem(L=2, mu=0.7, sigma2=3, zeta2=5, M=M, S=S if name in SAMPLED else None, K=K, R=R, D2=1.3)
    g = fraction / 12
    found = bound(name, SC, problem, eta_tilde=g)
    assert found.constants == "sharp"
    assert found.total == pytest.approx(compute_by_sums(name, problem, g), rel=1e-12)
    assert sum(found.terms.values()) == pytest.approx(found.total, rel=1e-14)


@pytest.mark.parametrize(("M", "S", "K"), [(2, 2, 3), (4, 2, 3), (5, 3, 2), (4, 1, 4)])
def test_the_spread_of_a_sequence_is_the_mean_over_all_orders(M: int, S: int, K: int) -> None:
    raw = np.sin(np.arange(1.0, 2 * M + 1) ** 2).reshape(M, 2)
    X = raw - raw.mean(0)
    orders = list(permutations(range(M), S))
    total = 0.0
    for order in orders:
        x = np.zeros(2)
        for m in order:
            for _ in range(K):
                total += float(x @ x) / len(orders)
                x = x + X[m]
    var = (X**2).sum(1).mean()
    assert float(compute_sequence_spread(*map(np.asarray, (M, S, K)))) * var == pytest.approx(total, rel=1e-12)


@for_all(problems(), sizes(0.01, 1))
def test_one_algorithm_has_one_bound(problem: Problem, fraction: float) -> None:
    """M = 1: SSL is FedAvg. K = 1: FedAvg is minibatch SGD. S = M: nothing is sampled. S = 1: no second client."""
    step = fraction / (6 * problem.L)

    def total(name: Any, **change: Any) -> float:
        changed = replace(problem, **change)
        return float(bound(name, SC, changed if name in SAMPLED else changed.with_all_clients(), eta_tilde=step).total)

    assert total("ssl", M=1, S=1) == pytest.approx(total("fedavg", M=1, S=1), rel=1e-12)
    assert total("fedavg-swor", S=problem.M) == pytest.approx(total("fedavg"), rel=1e-12)
    assert total("ssl-swor", S=problem.M) == pytest.approx(total("ssl"), rel=1e-12)
    assert total("ssl-swor", S=1) == pytest.approx(total("fedavg-swor", S=1), rel=1e-12)
    sides = compare(SC, replace(problem, K=1, S=None), eta_tilde=step).equal_rounds
    assert sides["fedavg"].bound.total == pytest.approx(sides["minibatch-sgd"].bound.total, rel=1e-12)


@for_all(problems(), sizes(0, 1))
def test_sharp_is_never_above_tight_or_proved(problem: Problem, place: float) -> None:
    """Where both apply; S >= 2 or a single client, since the tight corollary does not cover S = 1."""
    low, high = 1 / (problem.mu * problem.R), 1 / (6 * problem.L)
    step = low * (high / low) ** place
    for name in ("ssl", "fedavg", "fedavg-swor", "fedavg-swr"):
        chosen = replace(problem, S=max(problem.S, min(problem.M, 2)))
        chosen = chosen if name in SAMPLED else chosen.with_all_clients()
        if name == "fedavg-swr" and problem.M == 1:
            continue
        sharp = bound(name, SC, chosen, eta_tilde=step).total
        for constants in ("tight", "proved"):
            assert sharp <= bound(name, SC, chosen, eta_tilde=step, constants=constants, horizon="R+1").total


@for_all(problems())
def test_without_strong_convexity_it_is_the_general_convex_bound(problem: Problem) -> None:
    step = 1 / (6 * problem.L)
    for name in FULL + SAMPLED:
        chosen = problem if name in SAMPLED else problem.with_all_clients()
        flat = bound(name, SC, replace(chosen, mu=0), eta_tilde=step).total
        nearly = bound(name, SC, replace(chosen, mu=problem.L * 1e-14), eta_tilde=step).total
        assert flat == bound(name, GC, chosen, eta_tilde=step).total
        assert nearly == pytest.approx(flat, rel=1e-6)


def test_one_round_and_a_large_condition_number_are_covered() -> None:
    assert bound("ssl", SC, replace(PROBLEM, R=1, mu=1e-3), eta_tilde=1 / 12).applicable
    with pytest.raises(OutOfRange) as caught:
        bound("ssl", SC, replace(PROBLEM, R=1, mu=1e-3), eta_tilde=1 / 11)
    assert caught.value.limit == "eta_tilde <= 0.0833333"


@for_all(problems(), st.sampled_from([SC, GC]), st.sampled_from(FULL + SAMPLED))
def test_no_step_has_a_smaller_bound_than_the_best(problem: Problem, case: Any, name: Any) -> None:
    chosen = problem if name in SAMPLED else problem.with_all_clients()
    best = stepsize(name, case, chosen)
    others = best.high * np.concatenate([10.0 ** -np.arange(0, 12, 0.25), [0.5, 0.9, 0.99, 1]])
    near = np.minimum(best.eta_tilde * np.array([0.9, 0.999, 1.001, 1.1]), best.high)
    totals = bound(name, case, chosen, eta_tilde=np.concatenate([others, near])).total
    assert best.bound.total <= totals.min() * (1 + 1e-12)


def test_the_rules_of_the_paper_have_sharp_bounds_too() -> None:
    few = replace(PROBLEM, R=3)
    best, mended = (stepsize("ssl", SC, few, rule=rule) for rule in ("best", "mended"))
    assert best.bound.total <= mended.bound.total
    assert mended.explicit is None


@pytest.mark.parametrize("name", FULL + SAMPLED)
def test_arrays_give_what_numbers_give(name: Any) -> None:
    S = 4 if name in SAMPLED else None
    many = Problem(L=2, mu=np.array([0, 0.1, 1]), sigma2=1, zeta2=4, M=10, S=S, K=np.array([1, 5, 9]), R=50, D2=1)
    steps, totals = stepsize(name, SC, many).eta_tilde, bound(name, SC, many, eta_tilde=0.05).total
    for j, (mu, K) in enumerate([(0, 1), (0.1, 5), (1, 9)]):
        one = replace(many, mu=mu, K=K)
        assert totals[j] == pytest.approx(bound(name, SC, one, eta_tilde=0.05).total, rel=1e-14)
        assert steps[j] == pytest.approx(stepsize(name, SC, one).eta_tilde, rel=1e-6)


def test_S_is_used_or_refused() -> None:
    """F_m = x^2/2 +- 10 x, K = 1: with S = 1 of 2 clients the exact limit is 100 g/(2 (2 - g)) > 0.05."""
    problem = Problem(L=1, mu=1, sigma2=0, zeta2=100, M=2, S=1, K=1, R=5000, D2=1)
    exact = 0.01 * 100 / (2 * (2 - 0.01))
    assert bound("fedavg-swor", SC, problem, eta_tilde=0.01).total >= exact
    for name in FULL:
        for constants in ("sharp", "proved", "printed", "tight"):
            with pytest.raises(OutOfRange) as caught:
                bound(name, SC, problem, eta_tilde=0.01, constants=constants)
            assert caught.value.limit == "S = M = 2"
        with pytest.raises(OutOfRange):
            stepsize(name, GC, problem)
        with pytest.raises(InputError):
            rate(name, SC, problem)
    masked = bound("fedavg", SC, replace(problem, S=np.array([1, 2])), eta_tilde=0.01, outside="mask")
    assert np.isnan(masked.total).tolist() == [True, False]


def test_the_non_convex_default_is_the_proved_statement() -> None:
    problem = replace(PROBLEM, A=1, B2=0.5)
    assert bound("ssl", NC, problem, eta_tilde=0.01).constants == "proved"
    with pytest.raises(InputError):
        bound("ssl", NC, problem, eta_tilde=0.01, constants="sharp")


def test_partial_participation_meets_theorem_two_with_tight_constants() -> None:
    everyone, sampled = PROBLEM, replace(PROBLEM, S=10)
    tight = bound("fedavg-swor", SC, sampled, eta_tilde=1 / 12, constants="tight")
    assert tight.total == pytest.approx(bound("fedavg", SC, everyone, eta_tilde=1 / 12, constants="tight").total)
    some = bound("fedavg-swr", SC, replace(PROBLEM, S=5), eta_tilde=1 / 12, constants="tight")
    assert some.terms["sampling"] == pytest.approx(4 / 12 * 4 / 4)


def test_a_positive_bound_does_not_round_down_to_zero() -> None:
    quiet = replace(PROBLEM, sigma2=0, zeta2=0, R=10**7)
    for constants in ("sharp", "tight", "proved"):
        assert 0 < bound("ssl", SC, quiet, eta_tilde=1 / 12, constants=constants).total < 1e-300
    assert bound("ssl", SC, replace(quiet, D2=0), eta_tilde=1 / 12).total == 0


def test_the_papers_setting_has_an_answer() -> None:
    """M = 500, S = 10, kappa = 100, R = 1000: S R/M = 20 rounds are far below 6 kappa."""
    found = compare(SC, Problem(L=100, mu=1, sigma2=1, zeta2=4, M=500, S=10, K=5, R=1000, D2=1))
    assert "none" not in found.smaller.values()
    assert all(math.isfinite(side.bound.total) for side in found.equal_compute.values())


ROUNDS_PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, K=5, D2=1, A=1)


@pytest.mark.parametrize("algorithm", ["ssl", "fedavg", "ssl-swor", "fedavg-swr"])
@pytest.mark.parametrize("case", ["strongly-convex", "general-convex"])
@pytest.mark.parametrize("eps", [0.3, 0.02])
def test_one_round_less_does_not_reach_eps(algorithm: Any, case: Any, eps: float) -> None:
    problem = replace(ROUNDS_PROBLEM, S=3) if algorithm.endswith(("-swor", "-swr")) else ROUNDS_PROBLEM
    found = rounds(algorithm, case, problem, eps=eps)
    assert found.step.bound.total <= eps
    assert stepsize(algorithm, case, replace(problem, R=found.R)).bound.total <= eps
    assert stepsize(algorithm, case, replace(problem, R=found.R - 1)).bound.total > eps


def test_the_proved_constants_start_at_6_kappa() -> None:
    found = rounds("ssl", "strongly-convex", ROUNDS_PROBLEM, eps=100, constants="proved")
    assert found.R == 12
    assert rounds("ssl", "strongly-convex", ROUNDS_PROBLEM, eps=100).R == 1


def test_arrays_of_rounds_give_what_numbers_give() -> None:
    many = rounds("ssl", "strongly-convex", ROUNDS_PROBLEM, eps=np.array([0.3, 0.02]))
    assert many.R.tolist() == [rounds("ssl", "strongly-convex", ROUNDS_PROBLEM, eps=eps).R for eps in (0.3, 0.02)]


def test_an_accuracy_out_of_reach_raises() -> None:
    with pytest.raises(OutOfRange):
        rounds("ssl", "general-convex", ROUNDS_PROBLEM, eps=1e-30)


def test_the_command_finds_rounds_and_accuracy() -> None:
    found = get_json(f"rounds ssl strongly-convex {BASE} eps=0.01")
    inverse = get_json(f"rounds ssl strongly-convex {BASE} R={found['R']:.0f}")
    assert (found["R"], found["eps"]) == (165, inverse["eps"])
    assert "165 rounds" in get_output(f"rounds ssl strongly-convex {BASE} eps=0.01")
    assert len(get_json(f"rounds ssl strongly-convex {BASE} eps=0.1,0.01")) == 2


@pytest.mark.parametrize("line", [f"rounds ssl strongly-convex {BASE}", f"rounds ssl strongly-convex {BASE} R=9 eps=1"])
def test_the_command_needs_one_of_eps_and_R(line: str) -> None:
    assert get_error(line).exit_code == 2
