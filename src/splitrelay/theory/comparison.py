"""SSL, FedAvg and minibatch SGD side by side, and the number of local steps that still help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.bounds import evaluate_bound
from splitrelay.theory.problem import Problem, check_positive
from splitrelay.theory.rates import rate
from splitrelay.theory.results import (
    CASES,
    CONSTANTS,
    WINNERS,
    Algorithm,
    Array,
    Bools,
    Bound,
    Case,
    Codes,
    Comparison,
    Condition,
    Constants,
    Horizon,
    Outside,
    Rate,
    Side,
    StepSize,
    Values,
    map_chunks,
    unwrap_values,
)
from splitrelay.theory.stepsizes import choose_step, stepsize
from splitrelay.theory.theorem_constants import (
    SC,
    STATEMENTS,
    check_algorithm,
    check_choice,
    get_statement,
    resolve_constants,
)
from splitrelay.theory.validity import require_at_least

FULL = ("ssl", "fedavg", "minibatch-sgd")
PARTIAL = {"fedavg-swor": "equal compute, without replacement", "fedavg-swr": "equal compute, with replacement"}
NONE, SSL, OTHER, EQUAL = range(len(WINNERS))
SAMPLED = "S clients a round, without replacement"  # SSL and FedAvg with the same S over the same R rounds
NO_PARTIAL = "there is no bound for partial participation in this case with these constants"
NO_ROUND = "S R / M is less than one round"
WORST_CASE = "The bounds order worst cases. They do not say which algorithm or which step is better on a given problem."
SEQUENCE = "With all clients, equal rounds cost equal compute, but SSL makes its M K steps of a round in sequence."
ARTEFACT = (
    "FedAvg's bound is smaller at equal rounds only because Theorem 1's constants are up to 1.5 times Theorem 2's,"
    " even though SSL has the smaller drift. With constants=tight it is never smaller."
)
FEWER_STEPS = (
    "FedAvg's bound is smaller at equal rounds because it makes only K steps in sequence, SSL M K: where heterogeneity"
    " and noise are small, the longer sequence costs more than it gains."
)
SAME = "With one client both algorithms are the same."


def compare(
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values | None = None,
    constants: Constants | None = None,
    horizon: Horizon = "R",
    outside: Outside = "mask",
) -> Comparison:
    """Compare the bounds at equal rounds with all clients and, if S is given, at equal compute.

    At equal compute, R rounds of FedAvg with S clients stand against S R / M rounds of SSL with all clients and, with
    the sharp constants, against R rounds of SSL with S clients.

    Args:
        eta_tilde: the step of all algorithms. By default each algorithm has the step that minimizes its own bound.
        outside: "mask" gives NaN outside the range of a statement, "refuse" raises OutOfRange.

    The other arguments are those of `bound`.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=100, D2=1)
    >>> compare("strongly-convex", problem).smaller
    {'equal rounds': 'ssl'}
    """
    check_choice("case", case, CASES)
    name = resolve_constants(constants, case)
    check_choice("constants", name, CONSTANTS)
    build_side = partial(_build_side, case=case, eta_tilde=eta_tilde, constants=name, horizon=horizon, outside=outside)
    everyone = problem.with_all_clients()
    equal_rounds = {algorithm: build_side(algorithm, everyone) for algorithm in FULL}
    is_single = np.equal(problem.get_quantities("the comparison").M, 1)
    winner_codes = {"equal rounds": _find_smaller(equal_rounds["ssl"], equal_rounds["fedavg"], is_single)}
    equal_compute = {}
    if problem.S is not None:
        fewer = everyone.with_rounds(compute_rounds_at_equal_compute(problem))
        equal_compute = {"ssl": build_side("ssl", fewer)}
        if case in STATEMENTS["ssl-swor"].get(name, {}):
            equal_compute["ssl-swor"] = build_side("ssl-swor", problem)
        equal_compute |= {algorithm: build_side(algorithm, problem) for algorithm in PARTIAL}
        for algorithm, label in PARTIAL.items():
            winner_codes[label] = _find_smaller(equal_compute["ssl"], equal_compute[algorithm], is_single)
        if "ssl-swor" in equal_compute:
            winner_codes[SAMPLED] = _find_smaller(equal_compute["ssl-swor"], equal_compute["fedavg-swor"], is_single)
    reason = FEWER_STEPS if name == "sharp" else ARTEFACT
    notes = [WORST_CASE, SEQUENCE] + [reason] * bool(np.any(winner_codes["equal rounds"] == OTHER))
    notes += [SAME] * bool(np.any(is_single))
    return Comparison(
        case=case,
        constants=name,
        equal_rounds=equal_rounds,
        equal_compute=equal_compute,
        conditions=build_comparison_conditions(case, problem, name),
        notes=tuple(notes),
        winner_codes=winner_codes,
        compute_useful_K=partial(_compute_useful_K, case, everyone, equal_rounds, name),
    )


def compute_rounds_at_equal_compute(problem: Problem) -> Values:
    """Compute S R / M, the rounds of SSL with the local steps of R rounds of FedAvg; NaN below one round."""
    q = problem.get_quantities("equal compute")
    rounds = q.S * q.R / q.M
    return unwrap_values(np.where(rounds >= 1, rounds, np.nan))


def build_comparison_conditions(case: str, problem: Problem, constants: str) -> tuple[Condition, ...]:
    """Return the conditions under which SSL has the smaller bound at equal compute (E24).

    The sharp bounds need no 6 kappa rounds. The last condition concerns sampling without replacement, and only S < M.
    """
    q = problem.get_quantities("the comparison")
    if case != SC or not np.all(q.mu > 0):
        return ()
    kappa = q.L / q.mu
    conditions = []
    if constants != "sharp":
        conditions.append(require_at_least("R >= 6 L/mu (the theorems apply over R rounds)", q.R, 6 * kappa))
    if problem.S is None:
        return tuple(conditions)
    if constants != "sharp":
        limit = 6 * kappa * q.M / q.S
        conditions.append(require_at_least("R >= 6 (L/mu) M/S (Theorem 1 applies over S R/M rounds)", q.R, limit))
    if np.any(q.M > q.S):
        left_out = np.where(q.M > q.S, q.M - q.S, np.nan)
        name = "R >= (L/mu) (M/S) (M-1)/(M-S) (SSL's drift is below the sampling term of FedAvg without replacement)"
        conditions.append(require_at_least(name, q.R, kappa * (q.M / q.S) * (q.M - 1) / left_out))
    return tuple(conditions)


def _build_side(
    name: str,
    problem: Problem,
    *,
    case: Case,
    eta_tilde: Values | None,
    constants: str,
    horizon: str,
    outside: str,
) -> Side:
    rounds = unwrap_values(problem.get_quantities("the comparison").R)
    if case not in STATEMENTS[name].get(constants, {}):
        return Side(name, rounds, None, None, NO_PARTIAL)
    evaluate = partial(_evaluate_side, name, case, problem, eta_tilde, constants, horizon)
    bound, step = evaluate(outside)
    why_not = "" if np.all(bound.applicable) else NO_ROUND
    if not np.any(np.isnan(rounds)) and why_not:
        try:  # the error of the strict evaluation explains the first setting that is outside
            evaluate("refuse")
        except OutOfRange as error:
            why_not = str(error)
    return Side(name, rounds, bound, step, why_not, partial(_compute_rate, name, case, problem, constants))


def _compute_rate(name: str, case: Case, problem: Problem, constants: Any) -> Rate | None:
    if name in PARTIAL and case != SC:
        return None
    if name != "minibatch-sgd":
        return rate(name, case, problem, constants=constants)
    return rate("table-sgd", case, problem) if case == SC and np.all(np.asarray(problem.mu) > 0) else None


def _evaluate_side(
    name: str, case: str, problem: Problem, eta_tilde: Values | None, constants: str, horizon: str, outside: str
) -> tuple[Bound, StepSize | None]:
    if eta_tilde is not None:
        step = check_positive("eta_tilde", eta_tilde)
        return evaluate_bound(name, case, problem, step, constants, horizon, outside), None
    best = choose_step(name, case, problem, "best", constants, horizon, outside)
    return best.bound, best


def _find_smaller(ssl: Side, other: Side, is_same: Bools) -> Codes:
    """Return the index into WINNERS of the smaller bound, EQUAL up to 1e-12, NONE where a bound does not apply.

    Where `is_same` the two algorithms are one, and no constants can rank it against itself.
    """
    if ssl.bound is None or other.bound is None:
        return np.asarray(NONE, dtype=np.int8)

    def compare_totals(left: Array, right: Array, same: Bools) -> Sequence[Codes]:
        smaller = np.where(left < right, np.int8(SSL), np.int8(OTHER))
        codes = np.where(same | (np.abs(left - right) <= 1e-12 * np.abs(right)), np.int8(EQUAL), smaller)
        return (np.where(np.isnan(left) | np.isnan(right), np.int8(NONE), codes),)

    inputs: Any = (np.asarray(ssl.bound.total), np.asarray(other.bound.total), is_same)
    (codes,) = map_chunks(compare_totals, inputs, (np.int8,))
    return np.asarray(codes)


def _compute_useful_K(case: Case, problem: Problem, sides: Mapping[str, Side], constants: Any) -> dict[str, Values]:
    useful: dict[str, Values] = {}
    names: tuple[Algorithm, ...] = ("ssl", "fedavg")
    for name in names:
        bound = sides[name].bound
        assert bound is not None  # both theorems have all three cases
        if case == SC:
            useful[f"{name}, order"] = useful_local_steps(name, case, problem)
        step = np.where(bound.applicable, bound.eta_tilde, 1.0)  # 1.0 is a placeholder: its result becomes NaN
        limit = useful_local_steps(name, case, problem, eta_tilde=unwrap_values(step), constants=constants)
        useful[f"{name}, at its step"] = unwrap_values(np.where(bound.applicable, limit, np.nan))
    return useful


@dataclass(frozen=True)
class Crossing:
    """A number of rounds from which on the other algorithm has the smaller bound."""

    R: float
    smaller: str


def find_crossings(
    algorithms: tuple[Algorithm, Algorithm], case: Case, problem: Problem, rounds: Array
) -> tuple[list[Array], list[Crossing]]:
    """Return the bounds of two algorithms, each at its best step, over some numbers of rounds, and where they cross.

    A crossing is found exactly, to one round, if it is between two of `rounds` and no second one is there too.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1)
    >>> find_crossings(("ssl", "fedavg"), "strongly-convex", problem, np.array([1.0, 10, 100]))[1]
    [Crossing(R=4.0, smaller='ssl')]
    """

    def compute_totals(R: Values) -> list[Array]:
        steps = (stepsize(name, case, problem.with_rounds(R), outside="mask") for name in algorithms)
        return [np.asarray(step.bound.total) for step in steps]

    def find_smaller(R: float) -> str:
        return algorithms[int(np.argmin(compute_totals(R)))]

    totals = compute_totals(rounds)
    sign = np.sign(totals[0] - totals[1])
    crossings = []
    for j in np.flatnonzero(sign[:-1] * sign[1:] < 0):  # a NaN outside the validity of a bound is no crossing
        low, high = float(rounds[j]), float(rounds[j + 1])
        smaller = find_smaller(high)
        while high - low > 1:
            middle = float(floor((low + high) / 2))
            low, high = (low, middle) if find_smaller(middle) == smaller else (middle, high)
        crossings.append(Crossing(high, smaller))
    return totals, crossings


def useful_local_steps(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values | None = None,
    constants: Constants | None = None,
) -> Values:
    """Compute the K above which the noise term is below the heterogeneity drift, so that more local steps do not help.

    Without a step this is the order in the paper (SSL, strongly convex): (sigma^2 / zeta_*^2) (mu / L) R. With a step
    it uses the constants of the bound: for the proved ones (4/5) sigma^2 / (L eta_tilde zeta_*^2), for the sharp ones
    their limit for large K. For FedAvg both are M times smaller (with the sharp constants 2 M times).
    The result is infinite where zeta = 0 and zero where sigma = 0.
    """
    check_algorithm(algorithm, case)
    row = get_statement(algorithm, case, resolve_constants(constants, case))
    q = problem.get_quantities(f"the useful K of {algorithm} {case}", case)
    if algorithm not in ("ssl", "fedavg"):
        raise InputError(f"{q.subject} is not defined: the sampling term does not fall with K")
    clients: Array | float = 1.0 if algorithm == "ssl" else q.M
    if eta_tilde is not None:
        s = q.L * check_positive("eta_tilde", eta_tilde)
        ratio: Array | float = row.noise / row.heterogeneity_drift
        if row.is_sharp:  # for large K: 4 k1/n^2 -> 2, and M 4 T/n^3 -> 2/3 for SSL, 4 T/n^3 -> 4/3 for FedAvg
            ratio = 3 * (1 - 2 * s * s) / ((2 + 3 * s) * (2 / 3 if algorithm == "ssl" else 4 / 3))
        scale = ratio / s
    elif case == SC:
        scale = q.mu / q.L * q.R
    else:
        raise InputError(f"{q.subject} needs eta_tilde", hint="The paper states the order for strongly-convex only.")
    noise, heterogeneity = np.broadcast_arrays(q.sigma2 * scale / clients, q.heterogeneity)
    limit = np.where(noise > 0, np.inf, 0.0)
    return unwrap_values(np.divide(noise, heterogeneity, out=limit, where=heterogeneity > 0))
