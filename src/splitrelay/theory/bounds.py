"""The bounds of Theorem 1 (SSL), Theorem 2 (FedAvg) and of the corollaries on partial participation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.formulas import formulas
from splitrelay.theory.problem import Asked, Problem, numbers
from splitrelay.theory.results import (
    HORIZONS,
    OUTSIDE,
    Algorithm,
    Bound,
    Case,
    Condition,
    Constants,
    Horizon,
    Outside,
)
from splitrelay.theory.scalar_or_array import Array, Bools, Truth, Values, in_pieces, plain, truth
from splitrelay.theory.theorem_constants import (
    MEASURE,
    NC,
    POWER,
    SC,
    Statement,
    check_algorithm,
    check_choice,
    error_constants,
    statement,
    units,
)
from splitrelay.theory.validity import Range, effective_step, per_eta, refuse_outside, step_range


def bound(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> Bound:
    """The bound at a step. Outside its range it is refused, or NaN where outside="mask"; never a number.

    constants: "printed" is the paper's display, "proved" what its argument gives once mended (E6), "tight" the
    tightened Theorem 1 (Theorem 2 has its own already) with wider non-convex ranges. horizon: "R" as displayed (the
    corollaries on partial participation display R + 1), "R+1" the sharper form that the proofs give.
    """
    check_algorithm(algorithm, case)
    return evaluated(algorithm, case, problem, None, constants, horizon, outside, eta=eta, eta_tilde=eta_tilde)


def evaluated(
    algorithm: str,
    case: str,
    problem: Problem,
    step: Array | None,
    constants: str,
    horizon: str,
    outside: str,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    found: Range | None = None,
    rounds: Array | None = None,
) -> Bound:
    """The same for every row of the table of statements, minibatch SGD included; `step` is a checked eta_tilde.

    found and rounds are step_range's and displayed_rounds', where the caller has them already.
    """
    row = statement(algorithm, case, constants)
    check_choice("outside", outside, OUTSIDE)
    with np.errstate(all="ignore"):  # what is not finite is refused or blanked at the end
        found = step_range(algorithm, case, problem, constants) if found is None else found
        step = effective_step(algorithm, found.q, eta, eta_tilde) if step is None else step
        conditions = found.conditions(step)
        if outside == "refuse":
            refuse_outside(found, step, conditions, eta)
        rounds = displayed_rounds(row, found.q, horizon) if rounds is None else rounds
        facts: dict[str, Any] = {"algorithm": algorithm, "case": case, "constants": constants, "statement": row.where}
        one_more = row.one_more_round or horizon == "R+1"
        facts |= {
            "measure": MEASURE[case],
            "rounds": plain(rounds),
            "formulas": formulas(algorithm, case, row, one_more),
            "per_eta": plain(per_eta(algorithm, found.q)),
        }
        parts = units(algorithm, found.q)

        def terms() -> dict[str, Array]:
            first = {"optimization": optimization(row, found.q, step, rounds)}
            return first | error_terms(row, algorithm, found.q, step)

        return finished(
            facts, _total(row, found.q, step, rounds, parts), terms, step, conditions, start(found.q), outside
        )


def _total(row: Statement, q: Asked, step: Array, rounds: Array, parts: Mapping[str, Array]) -> Array:
    """The sum of all terms, none of which is kept."""

    def work(step: Array, rounds: Array, mu: Array, left: Array, *parts: Array) -> Sequence[Array]:
        return (
            sum(
                _errors(row, dict(zip(names, parts, strict=True)), step).values(),
                _first(row, q.case, mu, left, step, rounds),
            ),
        )

    names = list(error_constants(row))
    given = (step, rounds, q.mu if q.case == SC else np.zeros(()), _left(q), *(parts[name] for name in names))
    (total,) = in_pieces(work, given, (np.float64,))
    return np.asarray(total)


def displayed_rounds(row: Statement, q: Asked, horizon: str) -> Array:
    """R or R + 1, whichever stands in the display; R + 1 wherever the sharper form is asked for."""
    check_choice("horizon", horizon, HORIZONS)
    return q.R + 1 if row.one_more_round or horizon == "R+1" else q.R


def optimization(row: Statement, q: Asked, eta_tilde: Array, rounds: Array) -> Array:
    """The first term: what is left of the start."""
    return _first(row, q.case, q.mu if q.case == SC else np.zeros(()), _left(q), eta_tilde, rounds)


def error_terms(row: Statement, algorithm: str, q: Asked, eta_tilde: Array) -> dict[str, Array]:
    """The other terms: what noise, sampling and drift add, by name and in printed order."""
    return _errors(row, units(algorithm, q), eta_tilde)


def _left(q: Asked) -> Array:
    return q.A if q.case == NC else q.D2


def _first(row: Statement, case: str, mu: Array, left: Array, eta_tilde: Array, rounds: Array) -> Array:
    if case == SC:
        return np.asarray(row.optimization * mu * left * np.exp(-mu * eta_tilde * rounds / 2))
    return np.asarray(row.optimization * left / (eta_tilde * rounds))


def _errors(row: Statement, parts: Mapping[str, Array], eta_tilde: Array) -> dict[str, Array]:
    powers = {1: eta_tilde, 2: eta_tilde * eta_tilde}
    return {name: constant * parts[name] * powers[POWER[name]] for name, constant in error_constants(row).items()}


def start(q: Asked) -> Array:
    """From here on a bound says no more than smoothness does at x0 (A itself where it is given)."""
    if q.case == NC:
        return 2 * q.L * q.A  # >= ||grad F(x0)||^2
    return q.A if q.problem.A is not None else q.L * q.D2 / 2


def finished(
    facts: Mapping[str, Any],
    total: Array,
    terms: Callable[[], Mapping[str, Array]],
    eta_tilde: Array,
    conditions: tuple[Condition, ...],
    vacuous_from: Array,
    outside: str,
) -> Bound:
    """Blank what does not apply, and bring everything to one shape."""
    finite = np.isfinite(total)
    if outside == "refuse" and not np.all(finite):
        raise OutOfRange(f"{facts['algorithm']} {facts['case']}: the bound leaves the range of double precision")
    applicable: Bools = reduce(np.logical_and, (condition.holds for condition in conditions), finite)
    shape, everywhere = applicable.shape, bool(applicable.all())

    def blanked(values: Array) -> Values:
        inside = values if everywhere else np.where(applicable, values, np.nan)
        return plain(np.broadcast_to(inside, shape))

    def later() -> dict[str, Values]:
        with np.errstate(all="ignore"):
            return {name: blanked(values) for name, values in terms().items()}

    return Bound(
        **facts,
        total=blanked(total),
        eta_tilde=plain(np.broadcast_to(eta_tilde, shape)),
        conditions=conditions,
        vacuous=truth(applicable & (total >= vacuous_from)),
        applicable=truth(applicable),
        later=later,
    )


def applicability(problem: Problem, eta_tilde: Values) -> dict[str, Truth]:
    """Whether the strongly convex theorems apply: the step in its range, R >= 6 kappa, and R + 1 >= 6 kappa."""
    found = step_range("ssl", SC, problem, "proved")
    conditions = found.conditions(numbers("eta_tilde", eta_tilde))
    longer = step_range("ssl", SC, problem.over_rounds(found.q.R + 1), "proved")
    return {
        "strongly_convex": truth(np.logical_and.reduce(np.broadcast_arrays(*(c.holds for c in conditions)))),
        "R_ge_6kappa": truth(found.can_be_met),
        "R_plus_1_ge_6kappa": truth(longer.can_be_met),
    }
