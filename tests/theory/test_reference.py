"""Formulas give the reference values to 1e-12 (50-digit arithmetic), in numbers, arrays and the printed formulas."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.errors import OutOfRange
from splitrelay.theory import Problem, applicability, lemmas
from splitrelay.theory.averaging_weights import compute_log_sum, compute_log_weight
from splitrelay.theory.bounds import compute_error_terms, compute_optimization, get_displayed_rounds
from splitrelay.theory.lemmas import (
    compute_count_sum,
    compute_count_sum_squares,
    compute_misprinted_technical_sum,
    compute_sampling_covariance,
    compute_sampling_variance,
    compute_technical_bound,
    compute_technical_sum,
    compute_technical_term,
)
from splitrelay.theory.recursions import compute_drift_bound, compute_round_bound, compute_simplified_bound
from splitrelay.theory.results import CHUNK_SIZE, MIN_PER_THREAD, map_chunks
from splitrelay.theory.theorem_constants import get_statement
from tests.support.error_fields import expect_error
from tests.support.theory_problems import (
    ALL_CASES,
    STATEMENTS,
    bound,
    compare,
    last_iterate,
    rate,
    stepsize,
    useful_local_steps,
)

REFERENCE = json.loads((Path(__file__).parent / "data" / "theory_values.json").read_text())
FORMULAS = REFERENCE["formulas"]
ELSEWHERE = {"meta", "params", "groups", "exact_noisy_quadratics"}  # described, used, and tested with the quadratics
SC, GC, NC = "strongly-convex", "general-convex", "non-convex"
QUANTITIES = ("L", "mu", "sigma2", "zeta2", "B2", "M", "S", "K", "R", "D2", "A")


@dataclass(frozen=True)
class Setting:
    """One of the reference's settings, as floats."""

    q: dict[str, float]

    @property
    def problem(self) -> Problem:
        return Problem(**{name: self.q[name] for name in QUANTITIES})

    def step(self, case: str) -> float:
        return self.q["eta_tilde_nonconvex" if case == NC else "eta_tilde"]


def number(text: Any) -> float:
    return float(Fraction(text)) if "/" in str(text) else float(text)


SETTINGS = [
    Setting({name: number(text) for name, text in row.items() if name != "frac"}) for row in REFERENCE["params"]
]
Answer = Callable[[Setting], Any]


def displayed(algorithm: str, case: str, constants: str = "proved", horizon: str = "R") -> Answer:
    """The bound where it applies; the bare formula where the reference has a value although it does not."""

    def answer(s: Setting) -> Any:
        step = s.step(case)
        inside = case != SC or step >= 1 / (s.q["mu"] * s.q["R"]) * (1 - 1e-12)
        if inside:
            found = bound(algorithm, case, s.problem, eta_tilde=step, constants=constants, horizon=horizon)
            return [found.total, list(found.terms.values())]
        with pytest.raises(OutOfRange):
            bound(algorithm, case, s.problem, eta_tilde=step, constants=constants, horizon=horizon)
        return bare(algorithm, case, s, constants, horizon)

    return answer


def bare(algorithm: str, case: str, s: Setting, constants: str, horizon: str) -> Any:
    row, q, step = (
        get_statement(algorithm, case, constants),
        s.problem.get_quantities("test", case),
        np.asarray(s.step(case)),
    )
    first = compute_optimization(row, q, step, get_displayed_rounds(row, q, horizon))
    terms = [first, *compute_error_terms(row, algorithm, q, step).values()]
    return [float(sum(terms)), [float(term) for term in terms]]


def recursion(algorithm: str, case: str) -> Answer:
    drifted = "E" if algorithm == "ssl" else "Eavg"

    def answer(s: Setting) -> Any:
        measured = {"G2": s.q["G2"]} if case == NC else {"r2": s.q["r2"], "DF": s.q["DF"]}
        return compute_round_bound(algorithm, case, s.problem, eta_tilde=s.step(case), E=s.q[drifted], **measured)

    return answer


def drifted(algorithm: str, case: str, constants: str = "proved") -> Answer:
    def answer(s: Setting) -> Any:
        measured = {"G2": s.q["G2"]} if case == NC else {"DF": s.q["DF"]}
        return compute_drift_bound(algorithm, case, s.problem, eta_tilde=s.step(case), constants=constants, **measured)

    return answer


def simple(algorithm: str, case: str) -> Answer:
    def answer(s: Setting) -> Any:
        measured = {"G2": s.q["G2"]} if case == NC else {"r2": s.q["r2"], "DF": s.q["DF"]}
        return compute_simplified_bound(algorithm, case, s.problem, eta_tilde=s.step(case), **measured)

    return answer


def order(name: str, case: str = SC, constants: str = "proved") -> Answer:
    return lambda s: rate(name, case, s.problem, constants=constants).total


def step(algorithm: str, case: str, rule: str, *wanted: str, constants: str = "proved", horizon: str = "R") -> Answer:
    def answer(s: Setting) -> Any:
        found = stepsize(algorithm, case, s.problem, rule=rule, constants=constants, horizon=horizon)
        values = [found.bound.total if name == "bound" else getattr(found, name) for name in wanted]
        return values if len(values) > 1 else values[0]

    return answer


def weights_of(s: Setting) -> Any:
    mu, eta_tilde, R = s.q["mu"], s.q["eta_tilde"], s.q["R"]
    logs = (
        compute_log_weight(mu, eta_tilde, 0.0),
        compute_log_weight(mu, eta_tilde, R),
        compute_log_sum(mu, eta_tilde, R),
    )
    return [math.exp(value) for value in logs]


ANSWERS: dict[str, Answer] = {
    "eta_ssl": lambda s: bound("ssl", GC, s.problem, eta_tilde=s.step(GC)).eta,
    "eta_fedavg": lambda s: bound("fedavg", GC, s.problem, eta_tilde=s.step(GC)).eta,
    "lemma_srs_var_swor": lambda s: compute_sampling_variance(s.q["M"], s.q["S"], s.q["zeta2"], replacement=False),
    "lemma_srs_var_swr": lambda s: compute_sampling_variance(s.q["M"], s.q["S"], s.q["zeta2"], replacement=True),
    "lemma_srs_cov_swor": lambda s: compute_sampling_covariance(s.q["M"], s.q["zeta2"]),
    "lemma_technical_exact": lambda s: compute_technical_sum(s.q["M"], s.q["K"], s.q["zeta2"]),
    "lemma_technical_bound": lambda s: compute_technical_bound(s.q["M"], s.q["K"], s.q["zeta2"]),
    "sum_curlyK": lambda s: compute_count_sum(s.q["M"], s.q["K"]),
    "sum_curlyK2": lambda s: compute_count_sum_squares(s.q["M"], s.q["K"]),
    "ssl_recursion_rhs": recursion("ssl", SC),
    "ssl_drift_convex": drifted("ssl", SC),
    "ssl_drift_convex_tight": drifted("ssl", SC, "tight"),
    "ssl_simplified_rhs": simple("ssl", SC),
    "ssl_nc_recursion_rhs_delta": recursion("ssl", NC),
    "ssl_drift_nonconvex": drifted("ssl", NC),
    "ssl_nc_simplified_rhs_delta": simple("ssl", NC),
    "fed_recursion_rhs": recursion("fedavg", SC),
    "fed_drift_convex": drifted("fedavg", SC),
    "fed_simplified_rhs": simple("fedavg", SC),
    "fed_nc_recursion_rhs_delta": recursion("fedavg", NC),
    "fed_drift_nonconvex": drifted("fedavg", NC),
    "fed_nc_simplified_rhs_delta": simple("fedavg", NC),
    "cor1_ssl_strongly_convex_order": order("ssl"),
    "cor1_ssl_general_convex_order": order("ssl", GC),
    "cor1_ssl_nonconvex_order_as_printed": order("ssl", NC, "printed"),
    "cor1_ssl_nonconvex_order_corrected": order("ssl", NC),
    "cor_fedavg_strongly_convex_order": order("fedavg"),
    "cor_fedavg_general_convex_order": order("fedavg", GC),
    "cor_fedavg_nonconvex_order_corrected": order("fedavg", NC),
    "table1_sgd": order("table-sgd"),
    "table1_karimireddy": order("table-karimireddy"),
    "table1_koloskova": order("table-koloskova"),
    "table1_fedavg_thm2": order("table-fedavg"),
    "table1_ssl_thm1": order("table-ssl"),
    "rr_mishchenko_sqdist": order("reshuffling-quoted"),
    "rr_special_case_ours": order("reshuffling"),
    "rr_lower_bound_as_quoted": order("lower-bound-quoted"),
    "K_threshold_order": lambda s: useful_local_steps("ssl", SC, s.problem),
    "K_threshold_explicit_at_eta_tilde": lambda s: useful_local_steps("ssl", SC, s.problem, eta_tilde=s.step(SC)),
    "weights_w0_wR_WR": weights_of,
}
for horizon, suffix in (("R", ""), ("R+1", "_Rplus1")):
    ANSWERS |= {
        f"thm1_ssl_strongly_convex{suffix}": displayed("ssl", SC, horizon=horizon),
        f"thm1_ssl_general_convex{suffix}": displayed("ssl", GC, horizon=horizon),
        f"thm1_ssl_nonconvex{suffix}": displayed("ssl", NC, horizon=horizon),
        f"thm2_fedavg_strongly_convex{suffix}": displayed("fedavg", SC, horizon=horizon),
    }
ANSWERS |= {
    "tight_ssl_strongly_convex": displayed("ssl", SC, "tight"),
    "tight_ssl_general_convex": displayed("ssl", GC, "tight"),
    "thm2_fedavg_general_convex": displayed("fedavg", GC),
    "thm2_fedavg_nonconvex": displayed("fedavg", NC),
}
for scheme in ("swor", "swr"):
    ANSWERS |= {
        f"partial_{scheme}_as_printed": displayed(f"fedavg-{scheme}", SC, "printed"),
        f"partial_{scheme}_corrected": displayed(f"fedavg-{scheme}", SC),
        f"partial_{scheme}_recursion_rhs_corrected": recursion(f"fedavg-{scheme}", SC),
        f"partial_{scheme}_simplified_rhs": simple(f"fedavg-{scheme}", SC),
        f"cor_partial_{scheme}_order": order(f"fedavg-{scheme}"),
    }
for label, algorithm, constants in (
    ("ssl", "ssl", "proved"),
    ("ssl_tight", "ssl", "tight"),
    ("fedavg", "fedavg", "proved"),
):
    best_gc = step(algorithm, GC, "best", "eta_tilde", "bound", constants=constants, horizon="R+1")
    ANSWERS |= {
        f"tune_sc_{label}_gamma_paper_c1": step(algorithm, SC, "printed", "eta_tilde", "branch", constants=constants),
        f"tune_sc_{label}_corrected_gamma_branch_tau": step(
            algorithm, SC, "mended", "eta_tilde", "branch", "tau", constants=constants
        ),
        f"tune_sc_{label}_explicit_bound": step(algorithm, SC, "mended", "explicit", constants=constants),
        f"opt_sc_{label}_eta_tilde_and_bound": step(algorithm, SC, "best", "eta_tilde", "bound", constants=constants),
        f"tune_gc_{label}_gamma": step(algorithm, GC, "printed", "eta_tilde", "branch", constants=constants),
        f"tune_gc_{label}_explicit_bound": step(algorithm, GC, "printed", "explicit", constants=constants),
        f"opt_gc_{label}_eta_tilde_and_bound_Rplus1": best_gc,
    }
for algorithm in ("ssl", "fedavg"):
    ANSWERS |= {
        f"tune_nc_{algorithm}_gamma": step(algorithm, NC, "printed", "eta_tilde", "branch"),
        f"tune_nc_{algorithm}_explicit_bound": step(algorithm, NC, "printed", "explicit"),
    }


def agrees(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(agrees, found, wanted))
    try:
        return math.isclose(found, number(wanted), rel_tol=1e-12, abs_tol=0)
    except ValueError:
        return bool(found == wanted)  # the name of a branch


def test_every_key_of_the_reference_is_asked_for() -> None:
    assert set(FORMULAS) == set(ANSWERS)
    assert set(REFERENCE) - ELSEWHERE == {"formulas", "applicability", "technical_lemma_table"}


@pytest.mark.parametrize("key", FORMULAS)
def test_reference_value(key: str) -> None:
    wrong = [
        (index, found, wanted)
        for index, (setting, wanted) in enumerate(zip(SETTINGS, FORMULAS[key], strict=True))
        if wanted is not None and not agrees(found := ANSWERS[key](setting), wanted)
    ]
    assert wrong == []


def test_where_the_reference_has_no_value_there_is_none() -> None:
    """One client has no covariance; without heterogeneity K is never too large; at the optimum no step is best."""
    absent = {key: [i for i, value in enumerate(values) if value is None] for key, values in FORMULAS.items()}
    one_client, homogeneous, at_optimum = SETTINGS[2], SETTINGS[1], SETTINGS[7]
    assert absent.pop("lemma_srs_cov_swor") == [2] and math.isnan(ANSWERS["lemma_srs_cov_swor"](one_client))
    for key in ("K_threshold_order", "K_threshold_explicit_at_eta_tilde"):
        assert absent.pop(key) == [1] and ANSWERS[key](homogeneous) == math.inf
    rest = {key: where for key, where in absent.items() if where}
    assert all("tune" in key or "opt_gc" in key for key in rest) and set(map(tuple, rest.values())) == {(7,)}
    with expect_error(OutOfRange, what=("ssl", "general-convex", "D2 = 0")):
        stepsize("ssl", GC, at_optimum.problem)


def test_applicability() -> None:
    """Setting 17 has R = 30 = 6 kappa: an end of the range, which belongs to it. There the reference's own rounding
    of 0.05 / 0.01 says no, so the exact fraction decides."""
    for setting, row, wanted in zip(SETTINGS, REFERENCE["params"], REFERENCE["applicability"], strict=True):
        found = applicability(setting.problem, setting.q["eta_tilde"])
        kappa = Fraction(row["L"]) / Fraction(row["mu"])
        if row["R"] == 6 * kappa:
            wanted = wanted | {"R_ge_6kappa": True}
        assert found == wanted


@pytest.mark.parametrize("row", REFERENCE["technical_lemma_table"], ids=lambda row: f"M={row['M']},K={row['K']}")
def test_technical_lemma_table(row: dict[str, Any]) -> None:
    M, K = row["M"], row["K"]
    assert math.isclose(compute_technical_sum(M, K), number(row["exact_over_sigma2"]), rel_tol=1e-12)
    assert math.isclose(compute_technical_bound(M, K), number(row["bound_over_sigma2"]), rel_tol=1e-12)
    assert math.isclose(compute_misprinted_technical_sum(M, K), number(row["wrong_plus_sign"]), rel_tol=1e-12)
    m, k = np.meshgrid(np.arange(1, M + 1), np.arange(K))
    assert math.isclose(np.sum(compute_technical_term(M, K, m, k)), compute_technical_sum(M, K), rel_tol=1e-12)


def test_all_settings_in_one_call() -> None:
    """Arrays give what numbers give, setting by setting."""
    columns = {name: np.asarray([s.q[name] for s in SETTINGS]) for name in QUANTITIES}
    steps = np.asarray([s.q["eta_tilde"] for s in SETTINGS])
    together = bound("ssl", SC, Problem(**columns), eta_tilde=steps, outside="mask")
    for index, setting in enumerate(SETTINGS):
        alone = bound("ssl", SC, setting.problem, eta_tilde=steps[index], outside="mask")
        assert together.applicable[index] == alone.applicable == REFERENCE["applicability"][index]["strongly_convex"]
        assert np.array_equal(together.total[index], alone.total, equal_nan=True)


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


R = np.unique(np.geomspace(12, 1e6, CHUNK_SIZE + 500).astype(int))  # more than one piece for each K
KNOWN = {"L": 2, "mu": 1, "sigma2": 1, "zeta2": 4, "B2": 0.5, "M": 10, "S": 5, "D2": 1, "A": 1.5}
CHOSEN = [(0, 0), (CHUNK_SIZE // 2, 1), (-1, 1)]


@pytest.mark.parametrize("case", ALL_CASES)
def test_each_setting_of_many_is_what_it_is_alone(case: str) -> None:
    many = compare(case, Problem(**KNOWN, R=R[:, np.newaxis], K=np.array([1, 50])))
    for i, j in CHOSEN:
        one = compare(case, Problem(**KNOWN, R=int(R[i]), K=[1, 50][j]))
        for name, side in one.equal_rounds.items():
            found = many.equal_rounds[name]
            assert found.bound.total[i, j] == pytest.approx(side.bound.total, rel=1e-14, nan_ok=True)
            assert found.bound.eta[i, j] == pytest.approx(side.bound.eta, rel=1e-14, nan_ok=True)
            assert found.step.branch[i, j] == side.step.branch
            terms = {term: values[i, j] for term, values in found.bound.terms.items()}
            assert terms == pytest.approx(side.bound.terms, rel=1e-14, nan_ok=True)
        assert {label: winners[i, j] if winners.shape else winners for label, winners in _winners(many)} == one.smaller


def _winners(found):
    return [(label, np.asarray(winners)) for label, winners in found.smaller.items()]


@pytest.mark.parametrize("case", ALL_CASES)
def test_the_terms_sum_to_the_total(case: str) -> None:
    bound = compare(case, Problem(**KNOWN, R=R, K=5)).equal_rounds["ssl"].bound
    assert sum(bound.terms.values()) == pytest.approx(bound.total, rel=1e-14, nan_ok=True)


def test_pieces_broadcast_and_keep_the_shape() -> None:
    rows, columns = np.arange(300.0)[:, np.newaxis], np.arange(200.0)
    total, larger = map_chunks(lambda a, b: (a + b, a > b), (rows, columns), (np.float64, np.bool_))
    assert (total == rows + columns).all() and (larger == (rows > columns)).all()
    (nothing,) = map_chunks(lambda a: (a,), (np.zeros((0, 3)),), (np.float64,))
    assert nothing.shape == (0, 3)


def test_threads_give_what_one_pass_gives() -> None:
    x, y = np.linspace(-1, 1, 2 * MIN_PER_THREAD + 7), np.array(0.5)
    with np.errstate(invalid="ignore"):  # settings of the caller hold in every thread
        (found,) = map_chunks(lambda x, y: (np.sqrt(x) * y,), (x, y), (np.float64,))
        assert np.array_equal(found, np.sqrt(x) * y, equal_nan=True)
