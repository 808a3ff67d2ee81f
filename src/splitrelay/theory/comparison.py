"""SSL against FedAvg, side by side, and minibatch SGD beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.bounds import evaluated
from splitrelay.theory.problem import Problem, positive
from splitrelay.theory.rates import rate
from splitrelay.theory.results import (
    CASES,
    CONSTANTS,
    WINNERS,
    Algorithm,
    Bound,
    Case,
    Comparison,
    Condition,
    Constants,
    Horizon,
    Outside,
    Rate,
    Side,
    StepSize,
)
from splitrelay.theory.scalar_or_array import Array, Codes, Values, in_pieces, plain
from splitrelay.theory.stepsizes import chosen
from splitrelay.theory.theorem_constants import SC, check_choice
from splitrelay.theory.useful_steps import useful_local_steps
from splitrelay.theory.validity import at_least

FULL = ("ssl", "fedavg", "minibatch-sgd")
PARTIAL = {"fedavg-swor": "equal compute, without replacement", "fedavg-swr": "equal compute, with replacement"}
NONE, OURS, OTHER, EQUAL = range(len(WINNERS))
NO_PARTIAL = "the paper prints no bound for partial participation beyond strongly-convex"
NO_ROUND = "S R / M is less than one round"
WORST_CASE = "The bounds order worst cases; they do not say who wins on a given problem, nor at which step."
SEQUENCE = "With all clients, equal rounds cost equal compute; but SSL makes its M K steps of a round in sequence."
ARTEFACT = (
    "FedAvg's bound is the smaller one at equal rounds only because Theorem 1's constants are up to 1.5 times"
    " Theorem 2's, even for M=1, where the algorithms are the same; with constants=tight it is never smaller."
)


def compare(
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values | None = None,
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "mask",
) -> Comparison:
    """At equal rounds (all clients) and, where S is given, at equal compute: SSL over S R / M rounds.

    Each at the step that minimises its own bound, or all at one eta_tilde. Settings outside a range are blank.
    """
    check_choice("case", case, CASES)
    check_choice("constants", constants, CONSTANTS)
    side = partial(_side, case=case, eta_tilde=eta_tilde, constants=constants, horizon=horizon, outside=outside)
    equal_rounds = {name: side(name, problem) for name in FULL}
    equal_compute = {}
    if problem.S is not None:
        fewer = problem.over_rounds(rounds_at_equal_compute(problem))
        equal_compute = {"ssl": side("ssl", fewer)} | {name: side(name, problem) for name in PARTIAL}
    codes = {"equal rounds": _smaller(equal_rounds["ssl"], equal_rounds["fedavg"])}
    codes |= {
        label: _smaller(equal_compute["ssl"], equal_compute[name]) for name, label in PARTIAL.items() if equal_compute
    }
    notes = [WORST_CASE, SEQUENCE] + [ARTEFACT] * bool(np.any(codes["equal rounds"] == OTHER))
    return Comparison(
        case=case,
        constants=constants,
        equal_rounds=equal_rounds,
        equal_compute=equal_compute,
        conditions=comparison_conditions(case, problem),
        notes=tuple(notes),
        codes=codes,
        later=partial(_useful_K, case, problem, equal_rounds, constants),
    )


def rounds_at_equal_compute(problem: Problem) -> Values:
    """S R / M, SSL's rounds for the local steps of R rounds of FedAvg with S clients; NaN below one round."""
    q = problem.asked_by("equal compute")
    rounds = q.S * q.R / q.M
    return plain(np.where(rounds >= 1, rounds, np.nan))


def comparison_conditions(case: str, problem: Problem) -> tuple[Condition, ...]:
    """What "SSL is better at equal compute" takes for granted (E24), after R >= 6 kappa at equal rounds."""
    if case != SC:
        return ()
    q = problem.asked_by("the comparison")
    kappa = q.L / q.positive_mu
    found = [at_least("R >= 6 L/mu (the theorems apply over R rounds)", q.R, 6 * kappa)]
    if problem.S is not None:
        left_out = np.where(q.M > q.S, q.M - q.S, np.nan)  # with all clients nothing is sampled, nothing to be below
        drift_below = np.where(q.M > q.S, kappa * (q.M / q.S) * (q.M - 1) / left_out, np.inf)
        found += [
            at_least("R >= 6 (L/mu) M/S (Theorem 1 applies over S R/M rounds)", q.R, 6 * kappa * q.M / q.S),
            at_least("R >= (L/mu) (M/S) (M-1)/(M-S) (SSL's drift is below FedAvg's sampling term)", q.R, drift_below),
        ]
    return tuple(found)


def _side(
    name: str,
    problem: Problem,
    *,
    case: Case,
    eta_tilde: Values | None,
    constants: Constants,
    horizon: str,
    outside: str,
) -> Side:
    rounds = plain(problem.asked_by("the comparison").R)
    if name in PARTIAL and case != SC:
        return Side(name, rounds, None, None, NO_PARTIAL)
    at = partial(_bound_and_step, name, case, problem, eta_tilde, constants, horizon)
    bound, step = at(outside)
    why_not = "" if np.all(bound.applicable) else NO_ROUND
    if not np.any(np.isnan(rounds)) and why_not:
        try:
            at("refuse")
        except OutOfRange as error:
            why_not = str(error)
    return Side(name, rounds, bound, step, why_not, partial(_order, name, case, problem, constants))


def _order(name: str, case: Case, problem: Problem, constants: Constants) -> Rate | None:
    if name != "minibatch-sgd":
        return rate(name, case, problem, constants=constants)
    return rate("table-sgd", case, problem) if case == SC else None


def _bound_and_step(
    name: str, case: str, problem: Problem, eta_tilde: Values | None, constants: str, horizon: str, outside: str
) -> tuple[Bound, StepSize | None]:
    if eta_tilde is not None:
        given = positive("eta_tilde", eta_tilde)
        return evaluated(name, case, problem, given, constants, horizon, outside), None
    step = chosen(name, case, problem, "best", constants, horizon, outside)
    return step.bound, step


def _smaller(ssl: Side, other: Side) -> Codes:
    """Whose bound is the smaller one; "equal" to 1e-12; "none" where one of them does not apply."""
    if ssl.bound is None or other.bound is None:
        return np.asarray(NONE, dtype=np.int8)
    totals = np.asarray(ssl.bound.total), np.asarray(other.bound.total)
    (codes,) = in_pieces(_nearer_to_zero, totals, (np.int8,))
    return np.asarray(codes)


def _nearer_to_zero(left: Array, right: Array) -> Sequence[Codes]:
    apart = np.where(left < right, np.int8(OURS), np.int8(OTHER))
    known = np.where(np.abs(left - right) <= 1e-12 * np.abs(right), np.int8(EQUAL), apart)
    return (np.where(np.isnan(left) | np.isnan(right), np.int8(NONE), known),)


def _useful_K(case: Case, problem: Problem, sides: Mapping[str, Side], constants: Constants) -> dict[str, Values]:
    found: dict[str, Values] = {}
    names: tuple[Algorithm, ...] = ("ssl", "fedavg")
    for name in names:
        bound = sides[name].bound
        assert bound is not None  # both theorems have all three cases
        if case == SC:
            found[f"{name}, order"] = useful_local_steps(name, case, problem)
        step = np.where(bound.applicable, bound.eta_tilde, 1.0)  # blank below where there is none
        limit = useful_local_steps(name, case, problem, eta_tilde=plain(step), constants=constants)
        found[f"{name}, at its step"] = plain(np.where(bound.applicable, limit, np.nan))
    return found
