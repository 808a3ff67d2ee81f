"""Do the formulas that people read say what the program computes?"""

import re
from dataclasses import replace

import numpy as np
import pytest

from splitrelay.theory import Problem, lemmas
from tests.support.paper_statements import bound, compare, last_iterate
from tests.support.theory_problems import ALL_CASES, STATEMENTS

PROBLEM = Problem(L=2, mu=1, sigma2=1.5, zeta2=4, B2=0.5, M=10, S=4, K=5, R=100, D2=1.25, A=1.75)


def computed(text: str, names: dict[str, float]) -> float:
    """A formula in ASCII, where a space multiplies and ^ is a power."""
    python = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text).replace("^", "**")
    return float(eval(python, {"exp": np.exp}, names))


def quantities(**more: float) -> dict[str, float]:
    return {name: getattr(PROBLEM, name) for name in PROBLEM.names} | more


@pytest.mark.parametrize("horizon", ["R", "R+1"])
@pytest.mark.parametrize("which", STATEMENTS, ids=" ".join)
def test_each_term_of_a_bound(which: tuple[str, str, str], horizon: str) -> None:
    algorithm, case, constants = which
    found = bound(algorithm, case, PROBLEM, eta_tilde=0.05, constants=constants, horizon=horizon)
    by_hand = {name: computed(text, quantities(eta_tilde=0.05)) for name, text in found.formulas.items()}
    assert list(by_hand) == list(found.terms) and by_hand == pytest.approx(found.terms, rel=1e-13, abs=0)


@pytest.mark.parametrize("algorithm", ["ssl", "fedavg", "fedavg-swor", "fedavg-swr"])
def test_each_term_of_the_last_iterate(algorithm: str) -> None:
    found = last_iterate(algorithm, PROBLEM, eta_tilde=0.05)
    by_hand = {name: computed(text, quantities(eta_tilde=0.05)) for name, text in found.formulas.items()}
    assert by_hand == pytest.approx(found.terms, rel=1e-12, abs=0)


@pytest.mark.parametrize("case", ALL_CASES)
def test_each_term_of_minibatch_sgd(case: str) -> None:
    found = compare(case, PROBLEM, eta_tilde=0.05).equal_rounds["minibatch-sgd"].bound
    by_hand = {name: computed(text, quantities(eta_tilde=0.05)) for name, text in found.formulas.items()}
    assert by_hand == pytest.approx(found.terms, rel=1e-13, abs=0)


def test_each_lemma() -> None:
    measured = {"r2": 0.7, "DF": 0.4, "G2": 0.9}
    for lemma in lemmas(PROBLEM, eta_tilde=0.05, E=0.06, E_mean=0.01, **measured):
        text, _, _ = lemma.formula.partition(", v = ")
        ssl = lemma.name.startswith("ssl")
        if lemma.group == "counts":
            continue  # sums: tested as such
        v = 1 / 4 if "fedavg-swr" in lemma.name else 6 / (4 * 9)
        names = quantities(**measured, E=0.06 if ssl else 0.01, et=0.05, MK=50, SK=20, v=v)
        names["eta"] = 0.05 / (50 if ssl else 5)
        assert computed(text, names) == pytest.approx(lemma.value, rel=1e-12), lemma


def test_the_printed_theorem_reads_like_the_paper() -> None:
    found = bound("ssl", "strongly-convex", replace(PROBLEM, S=None), eta_tilde=0.05)
    assert list(found.formulas.values()) == [
        "3 mu D2 exp(-mu eta_tilde R/2)",
        "6 eta_tilde sigma2/(M K)",
        "45/4 L eta_tilde^2 sigma2/(M K)",
        "15/2 L eta_tilde^2 zeta2/M",
    ]
