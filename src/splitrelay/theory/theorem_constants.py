"""The statements of the paper: constants, step limits, units and formulas. This is the only place that defines them.

A bound has these terms, each with a constant of the statement:

    optimization         mu D^2 exp(-mu eta_tilde R / 2)  |  D^2 / (eta_tilde R)  |  A / (eta_tilde R)
    noise                eta_tilde   sigma^2 / (M K)      (partial participation: / (S K))
    sampling             eta_tilde   v zeta^2             (partial participation only)
    noise drift          eta_tilde^2 L sigma^2 / (M K)    (FedAvg: / K)
    heterogeneity drift  eta_tilde^2 L zeta^2 / M         (FedAvg: / 1)

The three forms of the first term belong to the strongly convex, general convex and non-convex case. In the non-convex
case all other terms have one more factor L.

To add a choice of constants, add its name to `results.CONSTANTS` and one row per algorithm and case to STATEMENTS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from splitrelay.errors import InputError, UnknownName
from splitrelay.theory.problem import Quantities
from splitrelay.theory.results import ALGORITHMS, CASES, CONSTANTS, Array
from splitrelay.theory.sharp_bounds import compute_sampling_factors

SC, GC, NC = CASES
POWER = {"noise": 1, "sampling": 1, "noise drift": 2, "heterogeneity drift": 2}  # of eta_tilde
MEASURE = {SC: "E F(xbar) - F*", GC: "E F(xbar) - F*", NC: "min_r E||grad F(x^r)||^2"}
SAMPLING_FACTOR = {"ssl-swor": "(M - S)/(S (M - 1))", "fedavg-swor": "(M - S)/(S (M - 1))", "fedavg-swr": "1/S"}
SAMPLING_RATIO = {"ssl-swor": "(M - S)/(M (S - 1))", "fedavg-swor": "(M - S)/(M (S - 1))", "fedavg-swr": "1/(S - 1)"}


@dataclass(frozen=True)
class StepLimit:
    """The largest eta_tilde of a statement: its formula, its value, and the quantities that determine it."""

    formula: str
    compute: Callable[[Quantities], Array]
    names: tuple[str, ...] = ("L",)


CONVEX_LIMIT = StepLimit("1/(6 L)", lambda q: 1 / (6 * q.L))
NONCONVEX_LIMIT = StepLimit("1/(6 L (B2 + 1))", lambda q: 1 / (6 * q.L * (q.B2 + 1)), ("L", "B2"))
WIDE_LIMIT = StepLimit("1/(6 L sqrt(1 + B2))", lambda q: 1 / (6 * q.L * np.sqrt(1 + q.B2)), ("L", "B2"))
WIDE_SSL_LIMIT = StepLimit(
    "1/(6 L sqrt(1 + B2/M))", lambda q: 1 / (6 * q.L * np.sqrt(1 + q.B2 / q.M)), ("L", "B2", "M")
)


@dataclass(frozen=True)
class Recursion:
    """The simplified recursion of a round: r_{t+1} <= (1 - a g) r_t - b g s_t + c1 g^2 + c2 g^3, with g = eta_tilde.

    c1 and c2 are these constants times the units of the terms of a bound. A theorem's constants are c / b.
    """

    b: float
    noise: float
    noise_drift: float
    heterogeneity_drift: float
    sampling: float | None = None
    has_sampling_ratio: bool = False  # the sampling term has v/(1 - v) instead of v, which needs S >= 2


#                      b,     c1: noise, c2: noise drift, heterogeneity drift
CONVEX_SSL = Recursion(1 / 2, 3, 45 / 8, 15 / 4)
CONVEX_TIGHT = Recursion(3 / 4, 3, 45 / 8, 15 / 4)  # also of FedAvg
CONVEX_PARTIAL = Recursion(4 / 9, 4, 6, 4, 4)
PARTIAL_RATIO = Recursion(3 / 4, 3, 45 / 8, 15 / 4, 3, has_sampling_ratio=True)
SSL_PARTIAL_RATIO = Recursion(3 / 4, 3, 45 / 8, 16 / 3, 3, has_sampling_ratio=True)
CONVEX_MINIBATCH = Recursion(3 / 4, 3, 0, 0)
NONCONVEX = Recursion(1 / 3, 1, 9 / 8, 3 / 4)
NONCONVEX_MINIBATCH = Recursion(1 / 3, 1, 0, 0)


@dataclass(frozen=True)
class Statement:
    """One bound: the constants of its terms, the recursion behind it, and its largest step."""

    location: str
    optimization: float
    noise: float
    noise_drift: float
    heterogeneity_drift: float
    recursion: Recursion
    step_limit: StepLimit = CONVEX_LIMIT
    sampling: float | None = None
    one_more_round: bool = False  # the formula contains R + 1 instead of R
    needs_two_clients: bool = False
    is_sharp: bool = False  # `sharp_bounds` has the formula; the constants above are upper limits of its constants


#             location, constants of: optimization, noise, noise drift, heterogeneity drift
SSL = {
    SC: Statement("Theorem 1, strongly convex", 3, 6, 45 / 4, 15 / 2, CONVEX_SSL),
    GC: Statement("Theorem 1, general convex", 2, 6, 45 / 4, 15 / 2, CONVEX_SSL),
    NC: Statement("Theorem 1, non-convex", 3, 3, 27 / 8, 9 / 4, NONCONVEX, NONCONVEX_LIMIT),
}
SSL_TIGHT = {  # the drift has 3 instead of 9/2, so b = 3/4: the constants of Theorem 2
    SC: Statement("Theorem 1 tightened, strongly convex", 2, 4, 15 / 2, 5, CONVEX_TIGHT),
    GC: Statement("Theorem 1 tightened, general convex", 4 / 3, 4, 15 / 2, 5, CONVEX_TIGHT),
    NC: Statement("Theorem 1 with the wider range, non-convex", 3, 3, 27 / 8, 9 / 4, NONCONVEX, WIDE_SSL_LIMIT),
}
FEDAVG = {
    SC: Statement("Theorem 2, strongly convex", 2, 4, 15 / 2, 5, CONVEX_TIGHT),
    GC: Statement("Theorem 2, general convex", 4 / 3, 4, 15 / 2, 5, CONVEX_TIGHT),
    NC: Statement("Theorem 2, non-convex", 3, 3, 27 / 8, 9 / 4, NONCONVEX, NONCONVEX_LIMIT),
}
FEDAVG_TIGHT = {
    **FEDAVG,
    NC: Statement("Theorem 2, non-convex", 3, 3, 27 / 8, 9 / 4, NONCONVEX, WIDE_LIMIT),
}
PARTIAL_PRINTED = {
    SC: Statement(
        "corollary on partial participation, as printed",
        *(27 / 8, 4, 6, 4),
        CONVEX_PARTIAL,
        sampling=4,
        one_more_round=True,
    )
}
PARTIAL = {
    SC: Statement(
        "corollary on partial participation, mended (E6)",
        *(27 / 8, 9, 27 / 2, 9),
        CONVEX_PARTIAL,
        sampling=9,
        one_more_round=True,
    )
}
PARTIAL_TIGHT = {  # derived here: it meets Theorem 2 at S = M
    SC: Statement(
        "partial participation that meets Theorem 2", 2, 4, 15 / 2, 5, PARTIAL_RATIO, sampling=4, needs_two_clients=True
    )
}
MINIBATCH = {  # derived here from the proof of Theorem 2: one step per round has no drift
    SC: Statement("Theorem 2 without drift, strongly convex", 2, 4, 0, 0, CONVEX_MINIBATCH),
    GC: Statement("Theorem 2 without drift, general convex", 4 / 3, 4, 0, 0, CONVEX_MINIBATCH),
    NC: Statement("Theorem 2 without drift, non-convex", 3, 3, 0, 0, NONCONVEX_MINIBATCH),
}


def build_sharp_rows(name: str, recursion: Recursion) -> Mapping[str, Statement]:
    """Build the sharp statements of an algorithm, which have both convex cases."""

    def build_row(case: str, optimization: float) -> Statement:
        return Statement(
            f"{name}, {case}",
            optimization,
            recursion.noise / recursion.b,
            recursion.noise_drift / recursion.b,
            recursion.heterogeneity_drift / recursion.b,
            recursion,
            sampling=None if recursion.sampling is None else recursion.sampling / recursion.b,
            one_more_round=True,
            is_sharp=True,
        )

    return {SC: build_row("strongly convex", 2), GC: build_row("general convex", 4 / 3)}


SAMPLED = {
    "sharp": build_sharp_rows("Theorem 2 with sampled clients", PARTIAL_RATIO),
    "printed": PARTIAL_PRINTED,
    "proved": PARTIAL,
    "tight": PARTIAL_TIGHT,
}

STATEMENTS: Mapping[str, Mapping[str, Mapping[str, Statement]]] = {  # by algorithm, constants and case
    "ssl": {
        "sharp": build_sharp_rows("Theorem 1", CONVEX_TIGHT),
        "printed": SSL,
        "proved": SSL,
        "tight": SSL_TIGHT,
    },
    "ssl-swor": {"sharp": build_sharp_rows("Theorem 1 with sampled clients", SSL_PARTIAL_RATIO)},
    "fedavg": {
        "sharp": build_sharp_rows("Theorem 2", CONVEX_TIGHT),
        "printed": FEDAVG,
        "proved": FEDAVG,
        "tight": FEDAVG_TIGHT,
    },
    "fedavg-swor": SAMPLED,
    "fedavg-swr": SAMPLED,
    "minibatch-sgd": {
        "sharp": build_sharp_rows("Theorem 2 without drift", CONVEX_MINIBATCH),
        "printed": MINIBATCH,
        "proved": MINIBATCH,
        "tight": MINIBATCH,
    },
}


def get_statement(algorithm: str, case: str, constants: str) -> Statement:
    """Return the statement of an algorithm, a case and a choice of constants.

    Raises:
        InputError: there is no such statement.
    """
    check_choice("constants", constants, CONSTANTS)
    rows = STATEMENTS[algorithm].get(constants, {})
    if case not in rows:
        statements = [(other, known) for other, found in STATEMENTS[algorithm].items() for known in found]
        near = [pair for pair in statements if case in pair or constants in pair] or statements
        hint = f"{algorithm} has: {', '.join(f'constants={other} {known}' for other, known in near)}."
        raise InputError(f"there is no bound for {algorithm} {case} with constants={constants}", hint=hint)
    return rows[case]


def resolve_constants(constants: str | None, case: str) -> str:
    """Return the given choice, or the default: "sharp" in the convex cases, where it is proved, else "proved"."""
    return constants if constants is not None else "proved" if case == NC else "sharp"


def get_error_constants(row: Statement | Recursion) -> dict[str, float]:
    """Return the constants of all terms except the first, by name and in the paper's order."""
    values = (row.noise, row.sampling, row.noise_drift, row.heterogeneity_drift)
    return {name: value for name, value in zip(POWER, values, strict=True) if value is not None}


def compute_units(algorithm: str, q: Quantities, recursion: Recursion) -> dict[str, Array]:
    """Compute the factors of the error terms without their constants and without the powers of eta_tilde."""
    is_partial = algorithm in SAMPLING_FACTOR
    averaged = q.S if is_partial else q.M
    drift_divisor = averaged if algorithm in ("ssl", "ssl-swor") else 1.0
    factor: Array | float = q.L if q.case == NC else 1.0
    units = {"noise": factor * q.sigma2 / (averaged * q.K)}
    if is_partial:
        v, ratio = compute_sampling_factors(algorithm, q.M, q.S)
        with_ratio = np.where(np.isfinite(ratio), ratio, v)  # S = 1: the conditions exclude it, or `sharp` replaces it
        units["sampling"] = (with_ratio if recursion.has_sampling_ratio else v) * q.heterogeneity
    units["noise drift"] = factor * q.L * q.sigma2 / (drift_divisor * q.K)
    units["heterogeneity drift"] = factor * q.L * q.heterogeneity / drift_divisor
    return units


def compute_step_ratio(algorithm: str, q: Quantities) -> Array:
    """Compute eta_tilde / eta: M K (or S K) for SSL, K for FedAvg, 1 for minibatch SGD (one step per round)."""
    if algorithm == "minibatch-sgd":
        return np.ones(())
    if algorithm == "ssl-swor":
        return q.S * q.K
    return q.M * q.K if algorithm == "ssl" else q.K


def format_bound(algorithm: str, case: str, row: Statement, one_more_round: bool) -> dict[str, str]:
    """Return the formula of each term in ASCII: a space means multiplication, ^ a power."""
    if row.is_sharp:
        return _format_sharp(algorithm, case)
    rounds = "(R + 1)" if one_more_round else "R"
    start = "A" if case == NC else "D2"
    first = f"mu {start} exp(-mu eta_tilde {rounds}/2)" if case == SC else f"{start}/(eta_tilde {rounds})"
    units = _format_units(algorithm, "L " if case == NC else "", row.recursion)
    formulas = {"optimization": _format_product(row.optimization, first)}
    return formulas | {name: _format_product(c, units[name]) for name, c in get_error_constants(row).items()}


def format_last_iterate(algorithm: str, row: Recursion) -> dict[str, str]:
    """Return the formula of each term of the bound on the last iterate: the recursion's constants times 2/mu."""
    units = _format_units(algorithm, "", row)
    formulas = {"optimization": "(1 - mu eta_tilde/2)^R D2"}
    return formulas | {
        name: f"{_format_product(2 * c, units[name])}/mu" for name, c in get_error_constants(row).items()
    }


def _format_sharp(algorithm: str, case: str) -> dict[str, str]:
    """Return the formulas of a sharp bound. docs/theory.md defines b, n, k1, T, q, w and s = L eta_tilde."""
    first = "(mu/2) D2/((1 - mu eta_tilde/2)^-(R+1) - 1)" if case == SC else "D2/(eta_tilde (R + 1))"
    averaged, q = ("S", "q") if algorithm in SAMPLING_FACTOR else ("M", "3")
    drift = f"L eta_tilde^2 (2 + {q} s)/(1 - 4 k1/n^2 s^2)"
    formulas = {"optimization": f"{first}/b", "noise": f"{q} eta_tilde sigma2/({averaged} K)/b"}
    if algorithm in SAMPLING_FACTOR:
        formulas["sampling"] = f"{q} eta_tilde w zeta2/b"
    formulas["noise drift"] = f"4 k1/n^3 {drift} sigma2/b"
    return formulas | {"heterogeneity drift": f"4 T/n^3 {drift} zeta2/b"}


def _format_units(algorithm: str, L: str, recursion: Recursion) -> dict[str, str]:
    averaged = "S" if algorithm in SAMPLING_FACTOR else "M"
    drift_divisors = (f"/({averaged} K)", f"/{averaged}") if algorithm.startswith("ssl") else ("/K", "")
    factors = SAMPLING_RATIO if recursion.has_sampling_ratio else SAMPLING_FACTOR
    return {
        "noise": f"{L}eta_tilde sigma2/({averaged} K)",
        "sampling": f"eta_tilde {factors.get(algorithm, '')} zeta2",
        "noise drift": f"{L}L eta_tilde^2 sigma2{drift_divisors[0]}".replace("L L", "L^2"),
        "heterogeneity drift": f"{L}L eta_tilde^2 zeta2{drift_divisors[1]}".replace("L L", "L^2"),
    }


def _format_product(constant: float, text: str) -> str:
    fraction = Fraction(constant).limit_denominator(1000)  # 4/3 is the only constant that is not an exact double
    return "0" if fraction == 0 else f"{fraction} {text}"


def check_algorithm(algorithm: str, case: str) -> None:
    """Raise UnknownName if the algorithm or the case does not exist."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    check_choice("case", case, CASES)


def check_choice(kind: str, name: str, known: tuple[str, ...]) -> None:
    """Raise UnknownName, which suggests the nearest known name, if the name is not known."""
    if name not in known:
        raise UnknownName(kind, name, known)
