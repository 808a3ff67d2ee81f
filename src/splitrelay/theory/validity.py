"""Where a bound holds: the range of eta_tilde, R >= 6 kappa, and what to say outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitrelay.errors import InputError, OutOfRange
from splitrelay.theory.problem import Asked, Problem, positive
from splitrelay.theory.results import Condition
from splitrelay.theory.scalar_or_array import Array, Bools, Values, in_pieces, plain, truth
from splitrelay.theory.theorem_constants import NC, SC

END = 1e-12  # the ends belong to the range, to this relative precision


@dataclass(frozen=True)
class Range:
    """low <= eta_tilde <= high; low is 0 where the statement has no lower end. `rounds` is R >= 6 kappa, if needed."""

    asker: str
    low: Array
    high: Array
    q: Asked
    high_name: str
    rounds: Condition | None = None

    @property
    def can_be_met(self) -> Bools:
        """Where there is a step at all."""
        return np.asarray(True if self.rounds is None else self.rounds.holds)

    def conditions(self, eta_tilde: Array) -> tuple[Condition, ...]:
        """Every condition with its two sides."""
        below = at_most("eta_tilde <= " + self.high_name, eta_tilde, self.high)
        if self.rounds is None:
            return (below,)
        return self.rounds, at_least("eta_tilde >= 1/(mu R)", eta_tilde, self.low), below


def at_least(name: str, left: Array, right: Array) -> Condition:
    """left >= right, the end included."""
    (holds,) = in_pieces(lambda left, right: (left >= right * (1 - END),), (left, right), (np.bool_,))
    return Condition(name, plain(left), ">=", plain(right), truth(holds))


def at_most(name: str, left: Array, right: Array) -> Condition:
    """left <= right, the end included."""
    (holds,) = in_pieces(lambda left, right: (left <= right * (1 + END),), (left, right), (np.bool_,))
    return Condition(name, plain(left), "<=", plain(right), truth(holds))


def step_range(algorithm: str, case: str, problem: Problem, constants: str) -> Range:
    """The range of the theorem; in the non-convex case the tight constants come with the wider one."""
    asker = f"{algorithm} {case}"
    q = problem.asked_by(asker, case)
    if case != SC:
        high, name = highest_step(algorithm, q, constants)
        return Range(asker, np.zeros(()), high, q, name)
    mu, R = q.mu, q.R  # a missing one is named by who asks
    with np.errstate(divide="ignore"):
        kappa = q.L / mu
    return Range(asker, problem.shortest, 1 / (6 * q.L), q, "1/(6 L)", at_least("R >= 6 L/mu", R, 6 * kappa))


def highest_step(algorithm: str, q: Asked, constants: str) -> tuple[Array, str]:
    """1/d of the tuning lemmas, with its formula."""
    if q.case != NC or algorithm == "minibatch-sgd":
        return 1 / (6 * q.L), "1/(6 L)"
    if constants != "tight":
        return 1 / (6 * q.L * (q.B2 + 1)), "1/(6 L (B2 + 1))"
    if algorithm == "ssl":
        return 1 / (6 * q.L * np.sqrt(1 + q.B2 / q.M)), "1/(6 L sqrt(1 + B2/M))"
    return 1 / (6 * q.L * np.sqrt(1 + q.B2)), "1/(6 L sqrt(1 + B2))"


def per_eta(algorithm: str, q: Asked) -> Array:
    """eta_tilde / eta: M K in SSL, K in FedAvg, 1 in minibatch SGD, which makes one step a round."""
    if algorithm == "minibatch-sgd":
        return np.ones(())
    return q.M * q.K if algorithm == "ssl" else q.K


def effective_step(algorithm: str, q: Asked, eta: Values | None, eta_tilde: Values | None) -> Array:
    """eta_tilde, from whichever of the two was given."""
    if (eta is None) == (eta_tilde is None):
        which = "neither" if eta is None else "both"
        raise InputError(f"{q.asker} needs one of eta and eta_tilde", value=which, hint="stepsize finds the best one.")
    step = positive("eta_tilde", eta_tilde) if eta is None else positive("eta", eta) * per_eta(algorithm, q)
    try:
        np.broadcast_shapes(step.shape, q.problem.shape)
    except ValueError:
        shapes = f"{step.shape} and {q.problem.shape}"
        raise InputError("the step must broadcast with the problem", value=shapes) from None
    return step


def refuse_outside(
    found: Range, eta_tilde: Array, conditions: tuple[Condition, ...], eta: Values | None = None
) -> None:
    """An error that names the range, for the first setting outside it."""
    refuse_too_few_rounds(found)
    inside = np.asarray(np.logical_and.reduce(np.broadcast_arrays(*(c.holds for c in conditions))))
    if np.all(inside):
        return
    shape = np.broadcast_shapes(inside.shape, found.q.problem.shape)
    first, count = _first_outside(inside, shape)
    step, low, high = (float(np.broadcast_to(value, shape)[first]) for value in (eta_tilde, found.low, found.high))
    got, low_text, high_text = _apart(step, low, high)
    limits = f"{low_text} <= eta_tilde <= {high_text}" if low > 0 else f"eta_tilde <= {high_text}"
    setting = ", ".join(_named(found, name, shape, first) for name in _deciding(found))
    if eta is not None:
        got = f"{got}, from eta={float(np.broadcast_to(eta, shape)[first]):.6g}"
    raise OutOfRange(f"{found.asker} needs {limits} for {setting}", value=got, hint=_how_many(count, inside.size))


def refuse_too_few_rounds(found: Range) -> None:
    """R >= 6 kappa is a condition of its own: below it no step at all is allowed."""
    if found.rounds is None or np.all(found.rounds.holds):
        return
    shape = found.q.problem.shape
    first, count = _first_outside(np.asarray(found.rounds.holds), shape)
    L, mu, R = (float(np.broadcast_to(value, shape)[first]) for value in (found.q.L, found.q.mu, found.q.R))
    if mu == 0:
        raise OutOfRange(f"{found.asker} needs mu > 0", value=0, hint="Use general-convex, which needs no mu.")
    got, need, _ = _apart(R, 6 * L / mu, 6 * L / mu)
    many = _how_many(count, max(1, int(np.prod(shape)))) or "Train longer, or use general-convex."
    raise OutOfRange(f"{found.asker} needs R >= 6 L/mu = {need} for L={L:.6g}, mu={mu:.6g}", value=got, hint=many)


def _first_outside(inside: Bools, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    outside = ~np.broadcast_to(inside, np.broadcast_shapes(inside.shape, shape))
    return tuple(int(i) for i in np.argwhere(outside)[0]), int(np.count_nonzero(outside))


def _deciding(found: Range) -> tuple[str, ...]:
    if found.rounds is not None:
        return "L", "mu", "R"
    names = ["L"]
    names += ["B2"] if "B2" in found.high_name else []
    names += ["M"] if "/M" in found.high_name else []
    return tuple(names)


def _named(found: Range, name: str, shape: tuple[int, ...], at: tuple[int, ...]) -> str:
    return f"{name}={float(np.broadcast_to(getattr(found.q, name), shape)[at]):.6g}"


def _apart(value: float, *limits: float) -> tuple[str, ...]:
    """The numbers in as few digits as keep the value apart from its limits."""
    for digits in (3, 6, 9, 12, 15):
        texts = tuple(f"{number:.{digits}g}" for number in (value, *limits))
        if texts[0] not in texts[1:] and (digits > 3 or float(texts[0]) == value):
            return texts
    return tuple(repr(number) for number in (value, *limits))


def _how_many(outside: int, total: int) -> str | None:
    return None if total == 1 else f'{outside} of {total} settings are outside; outside="mask" leaves them blank.'
