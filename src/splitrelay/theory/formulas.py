"""A bound's terms as they are written, constants and all, so that a reader can check them by hand."""

from __future__ import annotations

from fractions import Fraction

from splitrelay.theory.theorem_constants import NC, SC, Recursion, Statement, error_constants

SAMPLED = {"fedavg-swor": "(M - S)/(S (M - 1))", "fedavg-swr": "1/S"}


def formulas(algorithm: str, case: str, row: Statement, one_more_round: bool) -> dict[str, str]:
    """Each term of the bound in ASCII: a space multiplies, ^ is a power."""
    rounds = "(R + 1)" if one_more_round else "R"
    start = "A" if case == NC else "D2"
    left = f"mu {start} exp(-mu eta_tilde {rounds}/2)" if case == SC else f"{start}/(eta_tilde {rounds})"
    parts = _units(algorithm, "L " if case == NC else "")
    texts = {"optimization": _times(row.optimization, left)}
    return texts | {name: _times(constant, parts[name]) for name, constant in error_constants(row).items()}


def last_iterate_formulas(algorithm: str, row: Recursion) -> dict[str, str]:
    """Each term of the bound on the last iterate: the recursion's constants times 2/mu."""
    parts = _units(algorithm, "")
    texts = {"optimization": "(1 - mu eta_tilde/2)^R D2"}
    return texts | {name: f"{_times(2 * c, parts[name])}/mu" for name, c in error_constants(row).items()}


def _units(algorithm: str, L: str) -> dict[str, str]:
    averaged = "S" if algorithm in SAMPLED else "M"
    drifting = ("/(M K)", "/M") if algorithm == "ssl" else ("/K", "")
    return {
        "noise": f"{L}eta_tilde sigma2/({averaged} K)",
        "sampling": f"eta_tilde {SAMPLED.get(algorithm, '')} zeta2",
        "noise drift": f"{L}L eta_tilde^2 sigma2{drifting[0]}".replace("L L", "L^2"),
        "heterogeneity drift": f"{L}L eta_tilde^2 zeta2{drifting[1]}".replace("L L", "L^2"),
    }


def _times(constant: float, text: str) -> str:
    fraction = Fraction(constant).limit_denominator(1000)  # 4/3 is the only one that is not a double
    return "0" if fraction == 0 else f"{fraction} {text}"
