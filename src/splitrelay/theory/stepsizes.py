"""Step sizes: the rule in the paper, the corrected rule (E14), and the exact minimizer of the bound.

Every bound but the sharp ones has the form  optimization(g) + c1 g + c2 g^2  with g = eta_tilde, and is convex in g. A
rule is a function of a RuleInput that returns a Choice; RULE_FUNCTIONS lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.theory.bounds import evaluate_bound, get_displayed_rounds
from splitrelay.theory.problem import Problem, Quantities
from splitrelay.theory.results import (
    BRANCHES,
    RULES,
    Algorithm,
    Array,
    Case,
    Codes,
    Constants,
    Horizon,
    Outside,
    Rule,
    StepSize,
    Values,
    map_chunks,
    unwrap_truth,
    unwrap_values,
)
from splitrelay.theory.sharp_bounds import minimize_sharp_bound
from splitrelay.theory.theorem_constants import (
    NC,
    POWER,
    SC,
    Recursion,
    Statement,
    check_algorithm,
    check_choice,
    compute_units,
    get_error_constants,
    get_statement,
    resolve_constants,
)
from splitrelay.theory.validity import StepRange, check_clients, check_rounds, compute_step_range

NEWTON_STEPS, QUARTIC_STEPS = 8, 2
MAX_EXPONENT = 1e3  # no exponent of a double is larger
NONE, LOW, INTERIOR, CAP, LOG, FIRST, SECOND = range(len(BRANCHES))


@dataclass(frozen=True)
class Choice:
    """The result of a rule. `tau` and `explicit` (the bound that the lemma states) are None if it has none."""

    eta_tilde: Array
    branch_codes: Codes  # indices into BRANCHES
    tau: Array | None = None
    explicit: Array | None = None


@dataclass(frozen=True)
class RuleInput:
    """Everything that a rule may use."""

    algorithm: str
    q: Quantities
    steps: StepRange
    row: Statement
    rounds: Array  # as in the formula of the bound

    def compute_orders(self, row: Statement | Recursion) -> tuple[Array, Array]:
        """Compute c1 and c2: the sums of the error terms of first and second order in eta_tilde."""
        recursion = row.recursion if isinstance(row, Statement) else row
        units, c = compute_units(self.algorithm, self.q, recursion), {1: np.zeros(()), 2: np.zeros(())}
        for name, constant in get_error_constants(row).items():
            c[POWER[name]] = c[POWER[name]] + constant * units[name]
        return c[1], c[2]

    @property
    def r0(self) -> Array:
        """r0 of the tuning lemmas: D^2, or A in the non-convex case."""
        return self.q.A if self.q.case == NC else self.q.D2


def stepsize(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    rule: Rule = "best",
    constants: Constants | None = None,
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> StepSize:
    """Choose the step by one rule and compute the bound at this step.

    Args:
        rule: "printed" is the paper's rule. "mended" is the same rule with both error terms (E14, strongly convex).
            "best" minimizes the bound itself over its range of steps.

    The other arguments are those of `bound`.

    >>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=1000, D2=1)
    >>> round(stepsize("ssl", "strongly-convex", problem, constants="proved").eta_tilde, 6)
    0.016803
    """
    check_algorithm(algorithm, case)
    return choose_step(algorithm, case, problem, rule, resolve_constants(constants, case), horizon, outside)


def stepsizes(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    constants: Constants | None = None,
    horizon: Horizon = "R",
    outside: Outside = "refuse",
) -> dict[str, StepSize]:
    """Choose the step by all three rules. The arguments are those of `stepsize`."""
    check_algorithm(algorithm, case)
    name = resolve_constants(constants, case)
    return {rule: choose_step(algorithm, case, problem, rule, name, horizon, outside) for rule in RULES}


def choose_step(
    algorithm: str, case: str, problem: Problem, rule: str, constants: str, horizon: str, outside: str
) -> StepSize:
    """Choose the step for any row of STATEMENTS, including minibatch SGD."""
    check_choice("rule", rule, RULES)
    row, steps = get_statement(algorithm, case, constants), compute_step_range(algorithm, case, problem, constants)
    if outside == "refuse":
        check_clients(steps)
        check_rounds(steps)
    s = RuleInput(algorithm, steps.q, steps, row, get_displayed_rounds(row, steps.q, horizon))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rule_function = minimize_sharp if rule == "best" and row.is_sharp else RULE_FUNCTIONS[rule, case == SC]
        choice = rule_function(s)
        if row.is_sharp:  # the lemma's explicit bound belongs to the other statements
            choice = replace(choice, explicit=None)
    return _build_stepsize(s, rule, choice, constants, horizon, outside)


def apply_printed_rule(s: RuleInput) -> Choice:
    """Choose g = min{ ln(max{2, a^2 r0 T / c}) / (a T), 1/d } with c = c1. The rule ignores c2 (E14)."""
    c1, _ = s.compute_orders(s.row.recursion)
    a, T = s.q.mu / 2, s.q.R
    return _apply_log_rule(s, _divide(a**2 * s.r0 * T, c1))


def apply_mended_rule(s: RuleInput) -> Choice:
    """Choose g = min{ ln(tau) / (a T), 1/d } with tau = max{2, min(a^2 r0 T / c1, a^3 r0 T^2 / c2)} (E14)."""
    c1, c2 = s.compute_orders(s.row.recursion)
    a, T = s.q.mu / 2, s.q.R
    choice = _apply_log_rule(s, np.minimum(_divide(a**2 * s.r0 * T, c1), _divide(a**3 * s.r0 * T**2, c2)))
    assert choice.tau is not None  # _apply_log_rule sets it
    log_tau = np.log(choice.tau)
    # Psi_T <= 3 a r0 exp(-a T / d) + (3 + ln tau) c1 / (a T) + (3 + ln^2 tau) c2 / (a T)^2
    start = 3 * a * s.r0 * np.exp(-a * T * s.steps.high)
    first = np.where(c1 > 0, (3 + log_tau) * c1 / (a * T), 0)
    second = np.where(c2 > 0, (3 + log_tau**2) * c2 / (a * T) ** 2, 0)
    return Choice(choice.eta_tilde, choice.branch_codes, choice.tau, (start + first + second) / s.row.recursion.b)


def apply_unweighted_rule(s: RuleInput) -> Choice:
    """Choose g = min{ (r0 / (c1 (T+1)))^(1/2), (r0 / (c2 (T+1)))^(1/3), 1/d } (general convex and non-convex)."""
    c1, c2 = s.compute_orders(s.row.recursion)
    share, d = s.r0 / (s.q.R + 1), 1 / s.steps.high
    first, second = np.sqrt(_divide(share, c1)), np.cbrt(_divide(share, c2))
    step = np.minimum(np.minimum(first, second), s.steps.high)
    codes = np.where(s.steps.high <= np.minimum(first, second), CAP, np.where(first <= second, FIRST, SECOND))
    explicit = 2 * np.sqrt(c1 * share) + 2 * np.cbrt(c2 * share**2) + d * share
    return Choice(step, codes.astype(np.int8), None, explicit / s.row.recursion.b)


def minimize_strongly_convex(s: RuleInput) -> Choice:
    """Solve -P exp(-u) + c1 + 2 c2 g = 0 with u = mu g rounds / 2, and clip g to [1/(mu R), 1/(6 L)]."""
    inputs = (*s.compute_orders(s.row), s.q.mu, s.rounds, s.row.optimization * s.r0, s.steps.low, s.steps.high)
    return Choice(*map_chunks(_solve_exponential, inputs, (np.float64, np.int8)))


def _solve_exponential(
    c1: Array, c2: Array, mu: Array, rounds: Array, start: Array, low: Array, high: Array
) -> Sequence[Any]:
    """Return the steps and the branch codes.

    The iteration is the fourth-order method of Fritsch, Shafer and Crowley for w + ln w = z, applied to
    ln(P / (c1 + slope u)) - u. The initial value exceeds the root by at most ln(2 u), so two iterations reach a
    precision of 4e-15.
    """
    per_g = mu * rounds / 2  # u = per_g g
    P, slope, lowest, highest = mu * start * per_g, 2 * c2 / per_g, low * per_g, high * per_g
    u = np.log(P / (c1 + slope * lowest))
    for _ in range(QUARTIC_STEPS if slope.any() else 0):
        u = np.minimum(np.maximum(u, lowest), highest)
        inverse = 1 / (c1 + slope * u)
        short, v = np.minimum(np.log(P * inverse) - u, MAX_EXPONENT), slope * inverse
        newton, bend = 1 + v, np.maximum(short * v, -3 / 4)  # it is below -ln(2u)/u only if the root is below the range
        q, bend = 2 * newton * (newton + 2 / 3 * bend), bend * v
        u = u + short * (q - bend) / (newton * (q - 2 * bend))
    u = np.where((c1 == 0) & (c2 == 0), highest, u)
    above, below = u >= highest, (u <= lowest) | (P == 0)
    return np.where(above, high, np.where(below, low, u / per_g)), np.where(above, CAP, np.where(below, LOW, INTERIOR))


def minimize_sharp(s: RuleInput) -> Choice:
    """Minimize the sharp bound over (0, 1/(6 L)]. It has one minimum; see `sharp_bounds`."""
    step, is_capped = minimize_sharp_bound(s.algorithm, s.q, s.rounds, s.steps.high)
    return Choice(step, np.where(is_capped, CAP, INTERIOR).astype(np.int8))


def minimize_unweighted(s: RuleInput) -> Choice:
    """Solve 2 c2 g^3 + c1 g^2 = Q with Q = optimization r0 / rounds, and clip g to 1/d."""
    inputs = (*s.compute_orders(s.row), s.row.optimization * s.r0, s.rounds, s.steps.high)
    return Choice(*map_chunks(_solve_cubic, inputs, (np.float64, np.int8)))


def _solve_cubic(c1: Array, c2: Array, start: Array, rounds: Array, high: Array) -> Sequence[Any]:
    """Return the steps and the branch codes.

    Newton's method starts at the smaller one of the two roots that the equation has with one term only. The left side
    is convex there and at most 2 Q, so the iterates decrease to the root. Eight iterations reach the last bit.
    """
    Q = start / rounds
    g = np.minimum(np.sqrt(_divide(Q, c1)), np.cbrt(_divide(Q, 2 * c2)))
    for _ in range(NEWTON_STEPS):
        g = g - (g * g * (c1 + 2 * c2 * g) - Q) / (2 * g * (c1 + 3 * c2 * g))
    g = np.where(Q == 0, 0, np.where((c1 == 0) & (c2 == 0), np.inf, g))
    return np.minimum(g, high), np.where(g >= high, CAP, INTERIOR)


RULE_FUNCTIONS: dict[tuple[str, bool], Callable[[RuleInput], Choice]] = {
    ("printed", True): apply_printed_rule,
    ("mended", True): apply_mended_rule,
    ("best", True): minimize_strongly_convex,
    ("printed", False): apply_unweighted_rule,
    ("mended", False): apply_unweighted_rule,  # E14 concerns only the strongly convex lemma
    ("best", False): minimize_unweighted,
}


def _divide(numerator: Array, c: Array) -> Array:
    """Return numerator / c, and infinity where c = 0, because an absent error term does not limit the step."""
    return np.where(c > 0, numerator / c, np.inf)


def _apply_log_rule(s: RuleInput, ratio: Array) -> Choice:
    """Choose g = min{ ln(tau) / (a T), 1/d } with tau = max{2, ratio}."""
    tau = np.maximum(2, ratio)
    step = np.log(tau) / (s.q.mu / 2 * s.q.R)
    codes = np.where(step < s.steps.high, LOG, CAP).astype(np.int8)
    return Choice(np.minimum(step, s.steps.high), codes, tau)


def _build_stepsize(s: RuleInput, rule: str, choice: Choice, constants: str, horizon: str, outside: str) -> StepSize:
    """Evaluate the bound at the chosen step. Set values to NaN where no step is allowed."""
    shape = s.q.problem.shape
    step = np.broadcast_to(choice.eta_tilde, shape)
    if outside == "refuse" and np.any(step == 0):
        start = "A" if s.q.case == NC else "D2"
        raise OutOfRange(f"{s.q.subject} has no best step for {start} = 0: the bound falls to 0 with the step")
    usable = np.broadcast_to(s.steps.is_nonempty, shape) & (step > 0)
    codes = np.broadcast_to(choice.branch_codes, shape)
    if not usable.all():
        step = np.where(usable, step, np.nan)  # NaN fails every condition, so the bound is NaN there, too
        codes = np.where(usable, codes, np.int8(NONE))

    def mask(values: Array | None) -> Values | None:
        return None if values is None else unwrap_values(np.where(usable, np.broadcast_to(values, shape), np.nan))

    known: Any = {"steps": s.steps, "rounds": s.rounds}
    return StepSize(
        rule=rule,
        bound=evaluate_bound(s.algorithm, s.q.case, s.q.problem, step, constants, horizon, outside, **known),
        explicit=mask(choice.explicit),
        tau=mask(choice.tau),
        low=unwrap_values(np.broadcast_to(s.steps.low, shape)),
        high=unwrap_values(np.broadcast_to(s.steps.high, shape)),
        applicable=unwrap_truth(usable),
        branch_codes=codes,
    )
