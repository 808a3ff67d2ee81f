"""Does wrong input raise an error with one line and with the value and the limit in its fields?"""

import doctest
import importlib
import math
import pkgutil
from collections.abc import Callable

import numpy as np
import pytest

import splitrelay.theory
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.theory import Problem
from tests.support.theory_problems import bound, compare, last_iterate, rate, stepsize

GOOD = {"L": 2, "mu": 1, "sigma2": 1, "zeta2": 4, "B2": 0.5, "M": 10, "S": 5, "K": 5, "R": 100, "D2": 1, "A": 1.5}


def check_fields(error: InputError, fields: dict[str, object]) -> None:
    found = {name: getattr(error, name) for name in fields}
    assert str(found) == str(fields)  # as text, because NaN differs from itself
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("wrong", "kind", "fields"),
    [
        ({"sigma2": -1}, OutOfRange, {"value": -1.0, "limit": "sigma2 >= 0"}),
        ({"zeta2": -0.5}, OutOfRange, {"value": -0.5, "limit": "zeta2 >= 0"}),
        ({"D2": float("nan")}, OutOfRange, {"value": math.nan}),
        ({"A": float("inf")}, OutOfRange, {"value": math.inf}),
        ({"K": 0}, OutOfRange, {"value": 0.0, "limit": "K >= 1"}),
        ({"R": 2.5}, OutOfRange, {"value": 2.5, "limit": "R >= 1"}),
        ({"M": -3}, OutOfRange, {"value": -3.0, "limit": "M >= 1"}),
        ({"S": 11}, OutOfRange, {"value": "S=11, M=10"}),
        ({"mu": 3}, OutOfRange, {"value": "mu=3, L=2"}),
        ({"L": 0, "mu": 0}, OutOfRange, {"value": 0.0, "limit": "L > 0"}),
        ({"L": "two"}, InputError, {"value": "'two'"}),
        (
            {"L": np.asarray([2, 3]), "R": np.asarray([1, 2, 3])},
            InputError,
            {"value": "L (2,), mu (), sigma2 (), zeta2 (), B2 (), M (), S (), K (), R (3,), D2 (), A ()"},
        ),
        ({"sigma2": np.asarray([1, -2, 3])}, OutOfRange, {"value": -2.0, "limit": "sigma2 >= 0"}),
        ({"S": np.asarray([5, 12])}, OutOfRange, {"value": "S=12, M=10"}),
    ],
)
def test_an_invalid_problem_raises(wrong: dict[str, object], kind: type[InputError], fields: dict[str, object]) -> None:
    with pytest.raises(kind) as caught:
        Problem(**(GOOD | wrong))
    check_fields(caught.value, fields)


PROBLEM = Problem(**GOOD)
SC, GC, NC = "strongly-convex", "general-convex", "non-convex"


def change(**changes: object) -> Problem:
    return Problem(**(GOOD | changes))


@pytest.mark.parametrize(
    ("call", "kind", "fields"),
    [
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.1),
            OutOfRange,
            {"value": "0.1", "limit": "0.01 <= eta_tilde <= 0.0833"},
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta=0.002),
            OutOfRange,
            {"value": "0.1, from eta=0.002", "limit": "0.01 <= eta_tilde <= 0.0833"},
        ),
        (
            lambda: bound("fedavg", GC, PROBLEM, eta_tilde=1 / 12 + 1e-8),
            OutOfRange,
            {"value": "0.0833333433", "limit": "eta_tilde <= 0.0833333333"},
        ),
        (
            lambda: bound("ssl", NC, PROBLEM, eta_tilde=0.2),
            OutOfRange,
            {"value": "0.2", "limit": "eta_tilde <= 0.0556"},
        ),
        (
            lambda: bound("ssl", NC, PROBLEM, eta_tilde=0.2, constants="tight"),
            OutOfRange,
            {"value": "0.2", "limit": "eta_tilde <= 0.0813"},
        ),
        (
            lambda: bound("fedavg", SC, change(R=11), eta_tilde=0.05),
            OutOfRange,
            {"value": "11", "limit": "R >= 6 L/mu = 12"},
        ),
        (lambda: stepsize("ssl", SC, change(R=11)), OutOfRange, {"value": "11", "limit": "R >= 6 L/mu = 12"}),
        (lambda: bound("ssl", SC, change(mu=0), eta_tilde=0.05), OutOfRange, {"value": 0}),
        (lambda: rate("table-ssl", SC, change(mu=0)), OutOfRange, {"value": 0}),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=np.asarray([0.05, 0.2, 0.3])),
            OutOfRange,
            {"value": "0.2", "limit": "0.01 <= eta_tilde <= 0.0833"},
        ),
        (lambda: bound("fedavg-swor", GC, PROBLEM, eta_tilde=0.05), InputError, {}),
        (lambda: stepsize("fedavg-swr", NC, PROBLEM), InputError, {}),
        (lambda: bound("ssl", SC, PROBLEM), InputError, {"value": "neither"}),
        (lambda: bound("ssl", SC, PROBLEM, eta=0.001, eta_tilde=0.05), InputError, {"value": "both"}),
        (lambda: bound("ssl", GC, PROBLEM, eta=0), OutOfRange, {"value": 0.0, "limit": "eta > 0"}),
        (
            lambda: bound("ssl", GC, change(R=np.asarray([1, 2])), eta_tilde=np.asarray([0.01, 0.02, 0.03])),
            InputError,
            {"value": "(3,) and (2,)"},
        ),
        (lambda: bound("ssl", GC, change(D2=None), eta_tilde=0.05), InputError, {}),
        (lambda: bound("fedavg-swor", SC, change(S=None), eta_tilde=0.05), InputError, {}),
        (
            lambda: last_iterate("ssl", PROBLEM, eta_tilde=0.1),
            OutOfRange,
            {"value": "0.1", "limit": "eta_tilde <= 0.0833"},
        ),
        (lambda: bound("fedagv", SC, PROBLEM), UnknownName, {"kind": "algorithm", "name": "fedagv"}),
        (lambda: bound("minibatch-sgd", SC, PROBLEM), UnknownName, {"kind": "algorithm", "name": "minibatch-sgd"}),
        (lambda: bound("ssl", "convex", PROBLEM), UnknownName, {"kind": "case", "name": "convex"}),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, constants="tigth"),
            UnknownName,
            {"kind": "constants", "name": "tigth"},
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, horizon="R+2"),
            UnknownName,
            {"kind": "horizon", "name": "R+2"},
        ),
        (
            lambda: bound("ssl", SC, PROBLEM, eta_tilde=0.05, outside="masked"),
            UnknownName,
            {"kind": "outside", "name": "masked"},
        ),
        (lambda: stepsize("ssl", SC, PROBLEM, rule="bets"), UnknownName, {"kind": "rule", "name": "bets"}),
        (lambda: rate("table-fedavgs", SC, PROBLEM), UnknownName, {"kind": "rate", "name": "table-fedavgs"}),
        (lambda: compare("convex", PROBLEM), UnknownName, {"kind": "case", "name": "convex"}),
        (lambda: bound("ssl", NC, change(L=1e200, mu=0, B2=0), eta_tilde=1e-202), OutOfRange, {}),
        (lambda: rate("ssl", GC, change(D2=1e200)), OutOfRange, {}),
    ],
)
def test_an_invalid_call_raises(call: Callable[[], object], kind: type[InputError], fields: dict[str, object]) -> None:
    with pytest.raises(kind) as caught:
        call()
    check_fields(caught.value, fields)


MODULES = [module.name for module in pkgutil.iter_modules(splitrelay.theory.__path__, "splitrelay.theory.")]


@pytest.mark.parametrize("name", ["splitrelay.theory", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_exists() -> None:
    assert all(hasattr(splitrelay.theory, name) for name in splitrelay.theory.__all__)
