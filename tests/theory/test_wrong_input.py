"""Does wrong input get one line that names the value, the limit and the way out?"""

import doctest
import importlib
import pkgutil
from collections.abc import Callable

import numpy as np
import pytest

import splitrelay.theory
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.theory import Problem, bound, compare, last_iterate, rate, stepsize

GOOD = {"L": 2, "mu": 1, "sigma2": 1, "zeta2": 4, "B2": 0.5, "M": 10, "S": 5, "K": 5, "R": 100, "D2": 1, "A": 1.5}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"sigma2": -1},
            "sigma2, the variance of a stochastic gradient, must not be negative; needs sigma2 >= 0; got -1",
        ),
        ({"zeta2": -0.5}, "must not be negative; needs zeta2 >= 0; got -0.5"),
        ({"D2": float("nan")}, "must be a finite number; got nan"),
        ({"A": float("inf")}, "must be a finite number; got inf"),
        ({"K": 0}, "K, the number of local steps, must be a whole number; needs K >= 1; got 0"),
        ({"R": 2.5}, "R, the number of rounds, must be a whole number; needs R >= 1; got 2.5"),
        ({"M": -3}, "needs M >= 1; got -3"),
        ({"S": 11}, "S must not exceed M; got S=11, M=10. A round cannot have more clients than there are."),
        ({"mu": 3}, "mu must not exceed L; got mu=3, L=2. An L-smooth function is at most L-strongly convex."),
        ({"L": 0, "mu": 0}, "L, the smoothness of every F_m, must be positive; needs L > 0; got 0"),
        ({"L": "two"}, "L must be a number or an array of numbers; got 'two'"),
        ({"L": np.asarray([2, 3]), "R": np.asarray([1, 2, 3])}, "the arrays of a problem must broadcast; got "),
        ({"sigma2": np.asarray([1, -2, 3])}, "needs sigma2 >= 0; got -2"),
        ({"S": np.asarray([5, 12])}, "got S=12, M=10"),
    ],
)
def test_a_problem_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Problem(**(GOOD | wrong))
    assert message in str(caught.value) and "\n" not in str(caught.value)


PROBLEM = Problem(**GOOD)
SC, GC, NC = "strongly-convex", "general-convex", "non-convex"


def changed(**changes: object) -> Problem:
    return Problem(**(GOOD | changes))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.1),
            OutOfRange,
            "ssl strongly-convex needs 0.01 <= eta_tilde <= 0.0833 for L=2, mu=1, R=100; got 0.1",
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta=0.002),
            OutOfRange,
            "ssl strongly-convex needs 0.01 <= eta_tilde <= 0.0833 for L=2, mu=1, R=100; got 0.1, from eta=0.002",
        ),
        (
            lambda: bound("fedavg", GC, PROBLEM, eta_tilde=1 / 12 + 1e-8),
            OutOfRange,
            "fedavg general-convex needs eta_tilde <= 0.0833333333 for L=2; got 0.0833333433",
        ),
        (
            lambda: bound("ssl", NC, PROBLEM, eta_tilde=0.2),
            OutOfRange,
            "ssl non-convex needs eta_tilde <= 0.0556 for L=2, B2=0.5; got 0.2",
        ),
        (
            lambda: bound("ssl", NC, PROBLEM, eta_tilde=0.2, constants="tight"),
            OutOfRange,
            "ssl non-convex needs eta_tilde <= 0.0813 for L=2, B2=0.5, M=10; got 0.2",
        ),
        (
            lambda: bound("fedavg", SC, changed(R=11), eta_tilde=0.05),
            OutOfRange,
            "fedavg strongly-convex needs R >= 6 L/mu = 12 for L=2, mu=1; got 11. Train longer, or use general-convex.",
        ),
        (
            lambda: stepsize("ssl", SC, changed(R=11)),
            OutOfRange,
            "ssl strongly-convex needs R >= 6 L/mu = 12 for L=2, mu=1; got 11. Train longer, or use general-convex.",
        ),
        (
            lambda: bound("ssl", SC, changed(mu=0), eta_tilde=0.05),
            OutOfRange,
            "ssl strongly-convex needs mu > 0; got 0. Use general-convex, which needs no mu.",
        ),
        (
            lambda: rate("table-ssl", SC, changed(mu=0)),
            OutOfRange,
            "the rate of table-ssl strongly-convex needs mu > 0; got 0. Use general-convex, which needs no mu.",
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=np.asarray([0.05, 0.2, 0.3])),
            OutOfRange,
            "ssl strongly-convex needs 0.01 <= eta_tilde <= 0.0833 for L=2, mu=1, R=100; got 0.2."
            ' 2 of 3 settings are outside; outside="mask" leaves them blank.',
        ),
        (
            lambda: bound("fedavg-swor", GC, PROBLEM, eta_tilde=0.05),
            InputError,
            "the paper prints no bound for fedavg-swor general-convex. There is one for fedavg-swor strongly-convex,"
            " and for fedavg (all clients take part) general-convex.",
        ),
        (
            lambda: stepsize("fedavg-swr", NC, PROBLEM),
            InputError,
            "the paper prints no bound for fedavg-swr non-convex. There is one for fedavg-swr strongly-convex,"
            " and for fedavg (all clients take part) non-convex.",
        ),
        (
            lambda: bound("ssl", SC, PROBLEM),
            InputError,
            "ssl strongly-convex needs one of eta and eta_tilde; got neither. stepsize finds the best one.",
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta=0.001, eta_tilde=0.05),
            InputError,
            "ssl strongly-convex needs one of eta and eta_tilde; got both. stepsize finds the best one.",
        ),
        (
            lambda: bound("ssl", GC, PROBLEM, eta=0),
            OutOfRange,
            "eta, the learning rate of one local step, must be positive; needs eta > 0; got 0",
        ),
        (
            lambda: bound("ssl", GC, changed(R=np.asarray([1, 2])), eta_tilde=np.asarray([0.01, 0.02, 0.03])),
            InputError,
            "the step must broadcast with the problem; got (3,) and (2,)",
        ),
        (
            lambda: bound("ssl", GC, changed(D2=None), eta_tilde=0.05),
            InputError,
            "ssl general-convex needs D2, the squared distance from the start to the optimum. Give D2=...",
        ),
        (
            lambda: bound("fedavg-swor", SC, changed(S=None), eta_tilde=0.05),
            InputError,
            "fedavg-swor strongly-convex needs S, the number of clients that take part in a round. Give S=...",
        ),
        (
            lambda: last_iterate("ssl", PROBLEM, eta_tilde=0.1),
            OutOfRange,
            "the last iterate of ssl needs eta_tilde <= 0.0833 for L=2; got 0.1",
        ),
        (lambda: bound("fedagv", SC, PROBLEM), UnknownName, "unknown algorithm 'fedagv'. Did you mean 'fedavg'?"),
        (lambda: bound("minibatch-sgd", SC, PROBLEM), UnknownName, "unknown algorithm 'minibatch-sgd'. Known: "),
        (lambda: bound("ssl", "convex", PROBLEM), UnknownName, "unknown case 'convex'. Did you mean '"),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, constants="tigth"),
            UnknownName,
            "unknown constants 'tigth'. Did you mean 'tight'?",
        ),
        (lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, horizon="R+2"), UnknownName, "unknown horizon 'R+2'."),
        (lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, outside="masked"), UnknownName, "unknown outside 'masked'."),
        (lambda: stepsize("ssl", SC, PROBLEM, rule="bets"), UnknownName, "unknown rule 'bets'. Did you mean 'best'?"),
        (lambda: rate("table-fedavgs", SC, PROBLEM), UnknownName, "unknown rate 'table-fedavgs'. Did you mean"),
        (lambda: compare("convex", PROBLEM), UnknownName, "unknown case 'convex'."),
        (
            lambda: bound("ssl", NC, changed(L=1e200, mu=0, B2=0), eta_tilde=1e-202),
            OutOfRange,
            "ssl non-convex: the bound leaves the range of double precision",
        ),
        (
            lambda: rate("ssl", GC, changed(D2=1e200)),
            OutOfRange,
            "the rate of ssl general-convex leaves the range of double precision",
        ),
    ],
)
def test_a_question_without_an_answer(call: Callable[[], object], kind: type[InputError], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


MODULES = [module.name for module in pkgutil.iter_modules(splitrelay.theory.__path__, "splitrelay.theory.")]


@pytest.mark.parametrize("name", ["splitrelay.theory", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_exists() -> None:
    assert all(hasattr(splitrelay.theory, name) for name in splitrelay.theory.__all__)
