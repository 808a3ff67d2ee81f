"""The bounds of Theorem 1 (SSL), Theorem 2 (FedAvg) and the corollaries on partial participation; the last iterate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.problem import Problem, Quantities, check_numbers
from splitrelay.theory.results import (
    ALGORITHMS,
    HORIZONS,
    OUTSIDE,
    Algorithm,
    Array,
    Bools,
    Bound,
    Case,
    Condition,
    Constants,
    Horizon,
    Outside,
    Truth,
    Values,
    map_chunks,
    unwrap_truth,
    unwrap_values,
)
from splitrelay.theory.sharp_bounds import TINY, compute_sharp_terms, compute_sharp_total
from splitrelay.theory.theorem_constants import (
    CONVEX_LIMIT,
    MEASURE,
    NC,
    POWER,
    SC,
    STATEMENTS,
    Statement,
    check_algorithm,
    check_choice,
    compute_step_ratio,
    compute_units,
    format_bound,
    format_last_iterate,
    get_error_constants,
    get_statement,
    resolve_constants,
)
from splitrelay.theory.validity import (
    StepRange,
    build_client_condition,
    check_step,
    compute_step_range,
    resolve_eta_tilde,
)


def bound(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    constants: Constants | None = None,
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> Bound:
    """Compute the bound at a step.

    Args:
        algorithm: one of ALGORITHMS.
        case: one of CASES.
        problem: the quantities of the problem.
        eta: the learning rate of one local step. Give this or eta_tilde.
        eta_tilde: the effective learning rate.
        constants: "sharp" keeps exact counts and needs no R >= 6 kappa; it is the default in the convex cases.
            "proved" is what the paper's proof gives after corrections (E6), the default in the non-convex case.
            "printed" is the formula in the paper. "tight" is Theorem 1 with the constants of Theorem 2, partial
            participation that meets Theorem 2 at S = M, and wider ranges in the non-convex case.
        horizon: "R" as in the theorems, or "R+1", the sharper form that their proofs give. The sharp bounds and the
            printed and proved corollaries on partial participation always have R + 1.
        outside: "refuse" raises OutOfRange outside the range of the statement, "mask" returns NaN there.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=100, D2=1)
    >>> round(bound("ssl", "strongly-convex", problem, eta_tilde=1 / 12, constants="proved").total, 6)
    0.101303
    """
    check_algorithm(algorithm, case)
    name = resolve_constants(constants, case)
    return evaluate_bound(algorithm, case, problem, None, name, horizon, outside, eta=eta, eta_tilde=eta_tilde)


def evaluate_bound(
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
    steps: StepRange | None = None,
    rounds: Array | None = None,
) -> Bound:
    """Compute the bound of any row of STATEMENTS, including minibatch SGD.

    Args:
        step: an eta_tilde that is already checked, or None to use eta or eta_tilde.
        steps: the result of `compute_step_range`, if the caller has it.
        rounds: the result of `get_displayed_rounds`, if the caller has it.
    """
    row = get_statement(algorithm, case, constants)
    check_choice("outside", outside, OUTSIDE)
    with np.errstate(all="ignore"):  # build_bound handles numbers that are not finite
        steps = compute_step_range(algorithm, case, problem, constants) if steps is None else steps
        q = steps.q
        step = resolve_eta_tilde(algorithm, q, eta, eta_tilde) if step is None else step
        conditions = steps.build_conditions(step)
        if outside == "refuse":
            check_step(steps, step, conditions, eta)
        rounds = get_displayed_rounds(row, q, horizon) if rounds is None else rounds
        facts: dict[str, Any] = {
            "algorithm": algorithm,
            "case": case,
            "constants": constants,
            "statement": row.location,
            "measure": MEASURE[case],
            "rounds": unwrap_values(rounds),
            "formulas": format_bound(algorithm, case, row, row.one_more_round or horizon == "R+1"),
            "step_ratio": unwrap_values(compute_step_ratio(algorithm, q)),
        }

        def compute_terms() -> dict[str, Array]:
            if row.is_sharp:
                return compute_sharp_terms(algorithm, q, step, rounds)
            first = {"optimization": compute_optimization(row, q, step, rounds)}
            return first | compute_error_terms(row, algorithm, q, step)

        compute_total = partial(compute_sharp_total if row.is_sharp else partial(_compute_total, row), algorithm)
        total = compute_total(q, step, rounds)
        return build_bound(facts, total, compute_terms, step, conditions, _compute_start_level(q), outside)


def _compute_total(row: Statement, algorithm: str, q: Quantities, step: Array, rounds: Array) -> Array:
    """Add all terms chunk by chunk, without storing the terms."""
    names, units = list(get_error_constants(row)), compute_units(algorithm, q, row.recursion)

    def add_terms(step: Array, rounds: Array, mu: Array, distance: Array, *units: Array) -> Sequence[Array]:
        errors = _multiply_errors(row, dict(zip(names, units, strict=True)), step)
        return (sum(errors.values(), _multiply_optimization(row, q.case, mu, distance, step, rounds)),)

    inputs = (step, rounds, *_get_start(q), *(units[name] for name in names))
    (total,) = map_chunks(add_terms, inputs, (np.float64,))
    return np.asarray(total)


def get_displayed_rounds(row: Statement, q: Quantities, horizon: str) -> Array:
    """Return the number of rounds in the formula: R + 1 if the statement or the horizon says so, else R."""
    check_choice("horizon", horizon, HORIZONS)
    return q.R + 1 if row.one_more_round or horizon == "R+1" else q.R


def compute_optimization(row: Statement, q: Quantities, eta_tilde: Array, rounds: Array) -> Array:
    """Compute the first term, which depends on the distance of x0 from the optimum."""
    return _multiply_optimization(row, q.case, *_get_start(q), eta_tilde, rounds)


def compute_error_terms(row: Statement, algorithm: str, q: Quantities, eta_tilde: Array) -> dict[str, Array]:
    """Compute the terms of noise, sampling and drift, by name and in the paper's order."""
    return _multiply_errors(row, compute_units(algorithm, q, row.recursion), eta_tilde)


def _get_start(q: Quantities) -> tuple[Array, Array]:
    """Return mu (0 where the first term has none) and A or D^2."""
    return q.mu if q.case == SC else np.zeros(()), q.A if q.case == NC else q.D2


def _multiply_optimization(
    row: Statement, case: str, mu: Array, distance: Array, eta_tilde: Array, rounds: Array
) -> Array:
    if case == SC:
        exact = row.optimization * mu * distance * np.exp(-mu * eta_tilde * rounds / 2)
        return np.maximum(exact, np.where(mu * distance > 0, TINY, 0))  # an upper bound must not round down to zero
    return np.asarray(row.optimization * distance / (eta_tilde * rounds))


def _multiply_errors(row: Statement, units: Mapping[str, Array], eta_tilde: Array) -> dict[str, Array]:
    powers = {1: eta_tilde, 2: eta_tilde * eta_tilde}
    return {name: constant * units[name] * powers[POWER[name]] for name, constant in get_error_constants(row).items()}


def _compute_start_level(q: Quantities) -> Array:
    """Return the value that is known at x0 without training. A bound that is not below it is vacuous."""
    if q.case == NC:
        return 2 * q.L * q.A  # >= ||grad F(x0)||^2
    return q.A if q.problem.A is not None else q.L * q.D2 / 2


def build_bound(
    facts: Mapping[str, Any],
    total: Array,
    compute_terms: Callable[[], Mapping[str, Array]],
    eta_tilde: Array,
    conditions: tuple[Condition, ...],
    start_level: Array,
    outside: str,
) -> Bound:
    """Build a Bound: set values to NaN where the conditions fail, and broadcast everything to one shape.

    Args:
        facts: the remaining fields of Bound, by name.
        compute_terms: computes the terms when they are first read.
        start_level: the bound is vacuous where it is not below this value.
        outside: "refuse" raises OutOfRange if the total overflows.
    """
    finite = np.isfinite(total)
    if outside == "refuse" and not np.all(finite):
        raise OutOfRange(f"{facts['algorithm']} {facts['case']}: the bound leaves the range of double precision")
    applicable: Bools = reduce(np.logical_and, (condition.holds for condition in conditions), finite)
    shape, applies_everywhere = applicable.shape, bool(applicable.all())

    def mask(values: Array) -> Values:
        inside = values if applies_everywhere else np.where(applicable, values, np.nan)
        return unwrap_values(np.broadcast_to(inside, shape))

    def compute_masked_terms() -> dict[str, Values]:
        with np.errstate(all="ignore"):
            return {name: mask(values) for name, values in compute_terms().items()}

    return Bound(
        **facts,
        total=mask(total),
        eta_tilde=unwrap_values(np.broadcast_to(eta_tilde, shape)),
        conditions=conditions,
        vacuous=unwrap_truth(applicable & (total >= start_level)),
        applicable=unwrap_truth(applicable),
        compute_terms=compute_masked_terms,
    )


def last_iterate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    eta: Values | None = None,
    eta_tilde: Values | None = None,
    outside: Outside = "refuse",
) -> Bound:
    """Compute E||x^R - x*||^2 <= (1 - mu eta_tilde / 2)^R D^2 + (2/mu) (c1 eta_tilde + c2 eta_tilde^2).

    This bound is derived here from the simplified recursions, for the strongly convex case. It needs no averaging, no
    lower limit of the step and no R >= 6 kappa. It is vacuous where it is not below D^2. The arguments are those of
    `bound`.
    """
    check_algorithm(algorithm, SC)
    check_choice("outside", outside, OUTSIDE)
    proved = [name for name in ALGORITHMS if SC in STATEMENTS[name].get("proved", {})]
    if algorithm not in proved:
        hint = f"It is proved for {', '.join(proved)}. theory bound has the averaged output of {algorithm}."
        raise InputError(f"no bound on the last iterate of {algorithm} is proved", hint=hint)
    q = problem.get_quantities(f"the last iterate of {algorithm}")
    with np.errstate(all="ignore"):  # build_bound handles numbers that are not finite
        step = resolve_eta_tilde(algorithm, q, eta, eta_tilde)
        clients = build_client_condition(algorithm, q)
        steps = StepRange(q, np.zeros(()), CONVEX_LIMIT.compute(q), CONVEX_LIMIT, clients=clients)
        conditions = steps.build_conditions(step)
        if outside == "refuse":
            check_step(steps, step, conditions, eta)
        recursion = get_statement(algorithm, SC, "proved").recursion
        mu, units, powers = q.positive_mu, compute_units(algorithm, q, recursion), {1: step, 2: step * step}
        terms = {"optimization": np.exp(q.R * np.log1p(-mu * step / 2)) * q.D2}
        for name, c in get_error_constants(recursion).items():
            terms[name] = 2 / mu * c * units[name] * powers[POWER[name]]
        facts: dict[str, Any] = {
            "algorithm": algorithm,
            "case": SC,
            "constants": "proved",
            "statement": "last iterate (derived)",
            "measure": "E||x^R - x*||^2",
            "rounds": unwrap_values(q.R),
            "formulas": format_last_iterate(algorithm, recursion),
            "step_ratio": unwrap_values(compute_step_ratio(algorithm, q)),
        }
        total = np.asarray(sum(terms.values()))
        return build_bound(facts, total, lambda: terms, step, conditions, q.D2, outside)


def applicability(problem: Problem, eta_tilde: Values) -> dict[str, Truth]:
    """Return whether the strongly convex theorems apply.

    Returns:
        "strongly_convex": the step is in its range and R >= 6 kappa; "R_ge_6kappa" and "R_plus_1_ge_6kappa": the
        condition on the rounds alone, for R and for R + 1.
    """
    steps = compute_step_range("ssl", SC, problem.with_all_clients(), "proved")
    conditions = steps.build_conditions(check_numbers("eta_tilde", eta_tilde))
    longer = compute_step_range("ssl", SC, steps.q.problem.with_rounds(steps.q.R + 1), "proved")
    return {
        "strongly_convex": unwrap_truth(np.logical_and.reduce(np.broadcast_arrays(*(c.holds for c in conditions)))),
        "R_ge_6kappa": unwrap_truth(steps.is_nonempty),
        "R_plus_1_ge_6kappa": unwrap_truth(longer.is_nonempty),
    }
