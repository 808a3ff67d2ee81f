"""Validity of a bound: the range of eta_tilde, the condition R >= 6 kappa, and the errors outside of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.problem import Problem, Quantities, check_positive
from splitrelay.theory.results import Array, Bools, Condition, Values, map_chunks, unwrap_truth, unwrap_values
from splitrelay.theory.theorem_constants import (
    SAMPLING_FACTOR,
    SC,
    StepLimit,
    compute_step_ratio,
    get_statement,
)

TOLERANCE = 1e-12  # the limits belong to the range, with this relative precision


@dataclass(frozen=True)
class StepRange:
    """The steps of a statement: low <= eta_tilde <= high.

    `low` is 0 if the statement has no lower limit. `rounds` is the condition R >= 6 kappa, if the statement needs it.
    """

    q: Quantities
    low: Array
    high: Array
    limit: StepLimit
    rounds: Condition | None = None
    clients: Condition | None = None  # on S, if the statement has one

    @property
    def is_nonempty(self) -> Bools:
        """Whether the range contains a step, for each setting."""
        rounds, clients = (True if one is None else one.holds for one in (self.rounds, self.clients))
        return np.logical_and(rounds, clients)

    def build_conditions(self, eta_tilde: Array) -> tuple[Condition, ...]:
        """Return every condition of the statement with its two sides."""
        below = require_at_most("eta_tilde <= " + self.limit.formula, eta_tilde, self.high)
        clients = () if self.clients is None else (self.clients,)
        if self.rounds is None:
            return (*clients, below)
        return *clients, self.rounds, require_at_least("eta_tilde >= 1/(mu R)", eta_tilde, self.low), below


def require_at_least(name: str, left: Array, right: Array) -> Condition:
    """Build the condition left >= right, with equality allowed up to TOLERANCE."""
    (holds,) = map_chunks(lambda left, right: (left >= right * (1 - TOLERANCE),), (left, right), (np.bool_,))
    return Condition(name, unwrap_values(left), ">=", unwrap_values(right), unwrap_truth(holds))


def require_at_most(name: str, left: Array, right: Array) -> Condition:
    """Build the condition left <= right, with equality allowed up to TOLERANCE."""
    (holds,) = map_chunks(lambda left, right: (left <= right * (1 + TOLERANCE),), (left, right), (np.bool_,))
    return Condition(name, unwrap_values(left), "<=", unwrap_values(right), unwrap_truth(holds))


def compute_step_range(algorithm: str, case: str, problem: Problem, constants: str) -> StepRange:
    """Compute the range of eta_tilde of a statement. Only the strongly convex case has a lower limit."""
    q = problem.get_quantities(f"{algorithm} {case}", case)
    row = get_statement(algorithm, case, constants)
    limit, clients = row.step_limit, build_client_condition(algorithm, q, needs_two=row.needs_two_clients)
    if case != SC or row.is_sharp:
        return StepRange(q, np.zeros(()), limit.compute(q), limit, clients=clients)
    mu, R = q.mu, q.R  # read before min_step, so that an error about a missing one names this statement
    with np.errstate(divide="ignore"):
        kappa = q.L / mu
    return StepRange(
        q, problem.min_step, limit.compute(q), limit, require_at_least("R >= 6 L/mu", R, 6 * kappa), clients
    )


def build_client_condition(algorithm: str, q: Quantities, *, needs_two: bool = False) -> Condition | None:
    """Build the condition on S: statements about all clients need S = M, some about sampled clients need S >= 2."""
    if algorithm in SAMPLING_FACTOR:
        return require_at_least("S >= 2", q.S, np.where(q.M > 1, 2.0, 1.0)) if needs_two else None
    if q.problem.S is None or np.all(q.S == q.M):
        return None
    return require_at_least("S >= M", q.S, q.M)


def resolve_eta_tilde(algorithm: str, q: Quantities, eta: Values | None, eta_tilde: Values | None) -> Array:
    """Return eta_tilde. Exactly one of eta and eta_tilde must be given."""
    if (eta is None) == (eta_tilde is None):
        which = "neither" if eta is None else "both"
        raise InputError(
            f"{q.subject} needs one of eta and eta_tilde", value=which, hint="stepsize finds the best one."
        )
    if eta is None:
        step = check_positive("eta_tilde", eta_tilde)
    else:
        step = check_positive("eta", eta) * compute_step_ratio(algorithm, q)
    try:
        np.broadcast_shapes(step.shape, q.problem.shape)
    except ValueError:
        shapes = f"{step.shape} and {q.problem.shape}"
        raise InputError("the step must broadcast with the problem", value=shapes) from None
    return step


def check_step(
    steps: StepRange, eta_tilde: Array, conditions: tuple[Condition, ...], eta: Values | None = None
) -> None:
    """Raise OutOfRange with the allowed range for the first setting that is outside of it."""
    check_clients(steps)
    check_rounds(steps)
    inside = np.asarray(np.logical_and.reduce(np.broadcast_arrays(*(c.holds for c in conditions))))
    if np.all(inside):
        return
    q, shape = steps.q, np.broadcast_shapes(inside.shape, steps.q.problem.shape)
    first, count = _find_first_outside(inside, shape)

    def get_first(values: Values) -> float:
        return float(np.broadcast_to(values, shape)[first])

    low = get_first(steps.low)
    got, low_text, high_text = _format_distinct(get_first(eta_tilde), low, get_first(steps.high))
    limits = f"{low_text} <= eta_tilde <= {high_text}" if low > 0 else f"eta_tilde <= {high_text}"
    names = steps.limit.names if steps.rounds is None else ("L", "mu", "R")
    setting = ", ".join(f"{name}={get_first(getattr(q, name)):.6g}" for name in names)
    if eta is not None:
        got = f"{got}, from eta={get_first(eta):.6g}"
    raise OutOfRange(f"{q.subject}, {setting}", limit=limits, value=got, hint=_format_count(count, inside.size))


def check_clients(steps: StepRange) -> None:
    """Raise OutOfRange where the statement does not cover S."""
    if steps.clients is None or np.all(steps.clients.holds):
        return
    q, shape = steps.q, steps.q.problem.shape
    first, count = _find_first_outside(np.asarray(steps.clients.holds), shape)
    S, M = (int(np.broadcast_to(value, shape)[first]) for value in (q.S, q.M))
    algorithm = q.subject.split()[-2] if len(q.subject.split()) > 1 else q.subject
    hint = _format_count(count, max(1, int(np.prod(shape))))
    if steps.clients.name == "S >= M":
        sampled = {"ssl": "ssl-swor", "fedavg": "fedavg-swor or fedavg-swr"}.get(algorithm)
        use = f"{sampled} has S of M clients; " if sampled else ""
        hint = hint or f"All clients take part here: {use}omit S otherwise."
        raise OutOfRange(f"{q.subject}, M={M}", limit=f"S = M = {M}", value=S, hint=hint)
    raise OutOfRange(f"{q.subject}, M={M}", limit="S >= 2", value=S, hint=hint or "constants=sharp covers S = 1.")


def check_rounds(steps: StepRange) -> None:
    """Raise OutOfRange where R < 6 kappa: no step is allowed there."""
    if steps.rounds is None or np.all(steps.rounds.holds):
        return
    q, shape = steps.q, steps.q.problem.shape
    first, count = _find_first_outside(np.asarray(steps.rounds.holds), shape)
    L, mu, R = (float(np.broadcast_to(value, shape)[first]) for value in (q.L, q.mu, q.R))
    if mu == 0:
        raise OutOfRange(f"{q.subject} needs mu > 0", value=0, hint="Use general-convex, which needs no mu.")
    got, limit, _ = _format_distinct(R, 6 * L / mu, 6 * L / mu)
    hint = _format_count(count, max(1, int(np.prod(shape)))) or "Train longer, or use general-convex."
    setting = f"{q.subject}, L={L:.6g}, mu={mu:.6g}"
    raise OutOfRange(setting, limit=f"R >= 6 L/mu = {limit}", value=got, hint=hint)


def _find_first_outside(inside: Bools, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the index of the first setting outside and the number of settings outside."""
    outside = ~np.broadcast_to(inside, np.broadcast_shapes(inside.shape, shape))
    return tuple(int(i) for i in np.argwhere(outside)[0]), int(np.count_nonzero(outside))


def _format_distinct(value: float, *limits: float) -> tuple[str, ...]:
    """Format the numbers with as few digits as distinguish the value from its limits."""
    for digits in (3, 6, 9, 12, 15):
        texts = tuple(f"{number:.{digits}g}" for number in (value, *limits))
        if texts[0] not in texts[1:] and (digits > 3 or float(texts[0]) == value):
            return texts
    return tuple(repr(number) for number in (value, *limits))


def _format_count(outside: int, total: int) -> str | None:
    return None if total == 1 else f'{outside} of {total} settings are outside; outside="mask" leaves them blank.'
