"""Steps: the printed rule, the mended rule (E14), and the exact minimiser of the bound.

In all of them the bound is  optimization(g) + c1 g + c2 g^2  with g = eta_tilde, convex in g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.bounds import displayed_rounds, evaluated
from splitrelay.theory.problem import Asked, Problem
from splitrelay.theory.results import BRANCHES, RULES, Algorithm, Case, Constants, Horizon, Outside, Rule, StepSize
from splitrelay.theory.scalar_or_array import Array, Codes, Values, in_pieces, plain, truth
from splitrelay.theory.theorem_constants import (
    NC,
    POWER,
    SC,
    Recursion,
    Statement,
    check_algorithm,
    check_choice,
    error_constants,
    recursion,
    statement,
    units,
)
from splitrelay.theory.validity import Range, refuse_too_few_rounds, step_range


@dataclass(frozen=True)
class Choice:
    """What a rule says: the step, the branch that decided, tau and the lemma's explicit bound where it has them."""

    eta_tilde: Array
    code: Codes  # of the branch, in BRANCHES
    tau: Array | None = None
    explicit: Array | None = None


@dataclass(frozen=True)
class Setting:
    """All that a rule may look at."""

    algorithm: str
    q: Asked
    found: Range
    row: Statement
    recursion: Recursion
    rounds: Array  # in the display of the bound

    def orders(self, row: Statement | Recursion) -> tuple[Array, Array]:
        """c1 and c2: the sums of the error terms of first and of second order in eta_tilde."""
        parts, c = units(self.algorithm, self.q), {1: np.zeros(()), 2: np.zeros(())}
        for name, constant in error_constants(row).items():
            c[POWER[name]] = c[POWER[name]] + constant * parts[name]
        return c[1], c[2]

    @property
    def start(self) -> Array:
        """r0 of the tuning lemmas: D^2, or A in the non-convex case."""
        return self.q.A if self.q.case == NC else self.q.D2


def stepsize(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    rule: Rule = "best",
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> StepSize:
    """The step of one rule, with the bound that it gives.

    "printed" is the paper's choice; "mended" mends it where the paper looks at c1 alone (E14, strongly convex);
    "best" minimises the bound itself, on [1/(mu R), 1/(6 L)] in the strongly convex case.
    """
    check_algorithm(algorithm, case)
    return chosen(algorithm, case, problem, rule, constants, horizon, outside)


def stepsizes(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    constants: Constants = "proved",
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> dict[str, StepSize]:
    """The steps of all three rules, by name."""
    check_algorithm(algorithm, case)
    return {rule: chosen(algorithm, case, problem, rule, constants, horizon, outside) for rule in RULES}


def chosen(
    algorithm: str, case: str, problem: Problem, rule: str, constants: str, horizon: str, outside: str
) -> StepSize:
    """The same for every row of the table of statements, minibatch SGD included."""
    check_choice("rule", rule, RULES)
    row, found = statement(algorithm, case, constants), step_range(algorithm, case, problem, constants)
    if outside == "refuse":
        refuse_too_few_rounds(found)
    rounds = displayed_rounds(row, found.q, horizon)
    setting = Setting(algorithm, found.q, found, row, recursion(algorithm, case, constants), rounds)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        choice = RULE[rule, case == SC](setting)
    return _finished(setting, rule, choice, constants, horizon, outside)


def printed_strongly(s: Setting) -> Choice:
    """g = min{ ln(max{2, a^2 r0 T / c}) / (a T), 1/d } with c = c1: the term in c2 does not enter (E14)."""
    c1, _ = s.orders(s.recursion)
    a, T = s.q.mu / 2, s.q.R
    return _log_or_cap(s, _ratio(a**2 * s.start * T, c1))


def mended_strongly(s: Setting) -> Choice:
    """tau = max{2, min(a^2 r0 T / c1, a^3 r0 T^2 / c2)}: whichever error term would dominate decides."""
    c1, c2 = s.orders(s.recursion)
    a, T = s.q.mu / 2, s.q.R
    choice = _log_or_cap(s, np.minimum(_ratio(a**2 * s.start * T, c1), _ratio(a**3 * s.start * T**2, c2)))
    assert choice.tau is not None  # _log_or_cap sets it
    log_tau = np.log(choice.tau)
    # Psi_T <= 3 a r0 exp(-a T / d) + (3 + ln tau) c1 / (a T) + (3 + ln^2 tau) c2 / (a T)^2; an absent c adds nothing
    left = 3 * a * s.start * np.exp(-a * T * s.found.high)
    first = np.where(c1 > 0, (3 + log_tau) * c1 / (a * T), 0)
    second = np.where(c2 > 0, (3 + log_tau**2) * c2 / (a * T) ** 2, 0)
    return Choice(choice.eta_tilde, choice.code, choice.tau, (left + first + second) / s.recursion.b)


def printed_unweighted(s: Setting) -> Choice:
    """g = min{ (r0 / (c1 (T+1)))^(1/2), (r0 / (c2 (T+1)))^(1/3), 1/d }: general convex and non-convex."""
    c1, c2 = s.orders(s.recursion)
    share, d = s.start / (s.q.R + 1), 1 / s.found.high
    first, second = np.sqrt(_ratio(share, c1)), np.cbrt(_ratio(share, c2))
    step = np.minimum(np.minimum(first, second), s.found.high)
    code = np.where(s.found.high <= np.minimum(first, second), CAP, np.where(first <= second, FIRST, SECOND))
    explicit = 2 * np.sqrt(c1 * share) + 2 * np.cbrt(c2 * share**2) + d * share
    return Choice(step, code.astype(np.int8), None, explicit / s.recursion.b)


def best_strongly(s: Setting) -> Choice:
    """The root of -P exp(-u) + c1 + 2 c2 g = 0, u = mu g rounds / 2, clipped to [1/(mu R), 1/(6 L)]."""
    given = (*s.orders(s.row), s.q.mu, s.rounds, s.row.optimization * s.start, s.found.low, s.found.high)
    return Choice(*in_pieces(_root, given, (np.float64, np.int8)))


def _root(c1: Array, c2: Array, mu: Array, rounds: Array, start: Array, low: Array, high: Array) -> Sequence[Any]:
    """The step, and the number of the branch that decided.

    Fritsch, Shafer and Crowley's step for w + ln w = z, which is of fourth order, on ln(P / (c1 + slope u)) - u. The
    start lies above the root by ln(2 u) at most, so two steps reach it to 4e-15.
    """
    per_g = mu * rounds / 2  # u = per_g g
    P, slope, lowest, highest = mu * start * per_g, 2 * c2 / per_g, low * per_g, high * per_g
    u = np.log(P / (c1 + slope * lowest))
    for _ in range(QUARTIC if slope.any() else 0):
        u = np.minimum(np.maximum(u, lowest), highest)
        inverse = 1 / (c1 + slope * u)
        short, v = np.minimum(np.log(P * inverse) - u, FARTHEST), slope * inverse
        newton, bend = 1 + v, np.maximum(short * v, -3 / 4)  # below -ln(2u)/u only where the root is below the range
        q, bend = 2 * newton * (newton + 2 / 3 * bend), bend * v
        u = u + short * (q - bend) / (newton * (q - 2 * bend))
    u = np.where((c1 == 0) & (c2 == 0), highest, u)
    above, below = u >= highest, (u <= lowest) | (P == 0)
    return np.where(above, high, np.where(below, low, u / per_g)), np.where(above, CAP, np.where(below, LOW, INTERIOR))


def best_unweighted(s: Setting) -> Choice:
    """The root of 2 c2 g^3 + c1 g^2 = Q, Q = optimization r0 / rounds, clipped to 1/d."""
    given = (*s.orders(s.row), s.row.optimization * s.start, s.rounds, s.found.high)
    return Choice(*in_pieces(_cubic_root, given, (np.float64, np.int8)))


def _cubic_root(c1: Array, c2: Array, start: Array, rounds: Array, high: Array) -> Sequence[Any]:
    """The step, and the number of the branch that decided.

    Newton from the smaller of the two roots that either term alone would have: the left side is convex there and at
    most 2 Q, so the steps fall to the root, and eight of them reach it to the last bit.
    """
    Q = start / rounds
    g = np.minimum(np.sqrt(_ratio(Q, c1)), np.cbrt(_ratio(Q, 2 * c2)))
    for _ in range(NEWTON):
        g = g - (g * g * (c1 + 2 * c2 * g) - Q) / (2 * g * (c1 + 3 * c2 * g))
    g = np.where(Q == 0, 0, np.where((c1 == 0) & (c2 == 0), np.inf, g))
    return np.minimum(g, high), np.where(g >= high, CAP, INTERIOR)


NEWTON, QUARTIC = 8, 2
FARTHEST = 1e3  # no exponent of a double is larger
NONE, LOW, INTERIOR, CAP, LOG, FIRST, SECOND = range(len(BRANCHES))
RULE: dict[tuple[str, bool], Callable[[Setting], Choice]] = {
    ("printed", True): printed_strongly,
    ("mended", True): mended_strongly,
    ("best", True): best_strongly,
    ("printed", False): printed_unweighted,
    ("mended", False): printed_unweighted,  # E14 concerns the strongly convex lemma alone
    ("best", False): best_unweighted,
}


def _ratio(numerator: Array, c: Array) -> Array:
    """numerator / c, infinite where c = 0: an error term that is absent asks nothing of the step."""
    return np.where(c > 0, numerator / c, np.inf)


def _log_or_cap(s: Setting, ratio: Array) -> Choice:
    tau = np.maximum(2, ratio)
    step = np.log(tau) / (s.q.mu / 2 * s.q.R)
    code = np.where(step < s.found.high, LOG, CAP).astype(np.int8)
    return Choice(np.minimum(step, s.found.high), code, tau)


def _finished(s: Setting, rule: str, choice: Choice, constants: str, horizon: str, outside: str) -> StepSize:
    shape = s.q.problem.shape
    step = np.broadcast_to(choice.eta_tilde, shape)
    if outside == "refuse" and np.any(step == 0):
        start = "A" if s.q.case == NC else "D2"
        raise OutOfRange(f"{s.q.asker} has no best step for {start} = 0: the bound falls to 0 with the step")
    usable = np.broadcast_to(s.found.can_be_met, shape) & (step > 0)
    code = np.broadcast_to(choice.code, shape)
    if not usable.all():
        step = np.where(usable, step, np.nan)  # which no condition holds for, so that the bound is blank there
        code = np.where(usable, code, np.int8(NONE))

    def blanked(values: Array | None) -> Values | None:
        return None if values is None else plain(np.where(usable, np.broadcast_to(values, shape), np.nan))

    known: Any = {"found": s.found, "rounds": s.rounds}
    return StepSize(
        rule=rule,
        bound=evaluated(s.algorithm, s.q.case, s.q.problem, step, constants, horizon, outside, **known),
        explicit=blanked(choice.explicit),
        tau=blanked(choice.tau),
        low=plain(np.broadcast_to(s.found.low, shape)),
        high=plain(np.broadcast_to(s.found.high, shape)),
        applicable=truth(usable),
        code=code,
    )
