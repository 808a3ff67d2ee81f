"""theory rounds: the smallest number of rounds for an accuracy, and its inverse."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from splitrelay.errors import OutOfRange
from splitrelay.theory import Problem, rounds, stepsize
from tests.support.theory_commands import BASE, get_error, get_json, get_output

PROBLEM = Problem(L=2, mu=1, sigma2=1, zeta2=4, B2=0.5, M=10, K=5, D2=1, A=1)


@pytest.mark.parametrize("algorithm", ["ssl", "fedavg", "ssl-swor", "fedavg-swr"])
@pytest.mark.parametrize("case", ["strongly-convex", "general-convex"])
@pytest.mark.parametrize("eps", [0.3, 0.02])
def test_one_round_less_does_not_reach_eps(algorithm: Any, case: Any, eps: float) -> None:
    problem = replace(PROBLEM, S=3) if algorithm.endswith(("-swor", "-swr")) else PROBLEM
    found = rounds(algorithm, case, problem, eps=eps)
    assert found.step.bound.total <= eps
    assert stepsize(algorithm, case, replace(problem, R=found.R)).bound.total <= eps
    assert stepsize(algorithm, case, replace(problem, R=found.R - 1)).bound.total > eps


def test_the_proved_constants_start_at_6_kappa() -> None:
    found = rounds("ssl", "strongly-convex", PROBLEM, eps=100, constants="proved")
    assert found.R == 12
    assert rounds("ssl", "strongly-convex", PROBLEM, eps=100).R == 1


def test_arrays_give_what_numbers_give() -> None:
    many = rounds("ssl", "strongly-convex", PROBLEM, eps=np.array([0.3, 0.02]))
    assert many.R.tolist() == [rounds("ssl", "strongly-convex", PROBLEM, eps=eps).R for eps in (0.3, 0.02)]


def test_an_accuracy_out_of_reach_raises() -> None:
    with pytest.raises(OutOfRange):
        rounds("ssl", "general-convex", PROBLEM, eps=1e-30)


def test_the_command_finds_rounds_and_accuracy() -> None:
    found = get_json(f"rounds ssl strongly-convex {BASE} eps=0.01")
    inverse = get_json(f"rounds ssl strongly-convex {BASE} R={found['R']:.0f}")
    assert (found["R"], found["eps"]) == (165, inverse["eps"])
    assert "165 rounds" in get_output(f"rounds ssl strongly-convex {BASE} eps=0.01")
    assert len(get_json(f"rounds ssl strongly-convex {BASE} eps=0.1,0.01")) == 2


@pytest.mark.parametrize("line", [f"rounds ssl strongly-convex {BASE}", f"rounds ssl strongly-convex {BASE} R=9 eps=1"])
def test_the_command_needs_one_of_eps_and_R(line: str) -> None:
    assert get_error(line).exit_code == 2
