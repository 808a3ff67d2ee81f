"""Run all checks: compare the theory with exact expectations over the orders or samples of clients and the noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.objectives.quadratic import Array
from splitrelay.paper.theory_check.exact_runs import Ratios
from splitrelay.paper.theory_check.random_problems import draw_instance
from splitrelay.paper.theory_check.round_lemmas import (
    E7,
    check_convex_rounds,
    check_counterexample,
    check_nonconvex_rounds,
)
from splitrelay.paper.theory_check.smooth_problems import check_hard_instance, check_nonquadratic
from splitrelay.paper.theory_check.theorems import check_theorems

ROUNDING = 1e-9  # a ratio this close below 1 is a rounding error


@dataclass(frozen=True)
class Row:
    """The number of checks and violations of a statement, and its smallest and median ratio bound / actual."""

    statement: str
    checks: int
    violations: int
    smallest: float
    median: float

    @property
    def is_known_false(self) -> bool:
        """Whether this is the printed formula that is known to be false (E7)."""
        return self.statement.startswith(E7)

    @property
    def is_as_expected(self) -> bool:
        """Whether a true statement never failed, or the false one did."""
        return (self.violations > 0) == self.is_known_false


def run_checks(instances: int = 200, seed: int = 0) -> Iterator[Ratios]:
    """Yield bound / actual by statement for one instance after the other. `summarize` collects them."""
    if instances < 1:
        raise OutOfRange("the number of instances", value=instances, limit="instances >= 1")
    for number in range(instances):
        instance = draw_instance(seed, number)
        parts = [check_theorems(instance), check_convex_rounds(instance), check_nonconvex_rounds(instance)]
        parts.append(check_nonquadratic(seed, number))
        if number == 0:
            parts += [check_hard_instance(), check_counterexample()]
        yield _concatenate(parts)


def summarize(parts: Iterable[Ratios]) -> tuple[Row, ...]:
    """Return one row per statement, in the order in which the statements first appear."""
    return tuple(_build_row(statement, ratios) for statement, ratios in _concatenate(parts).items())


def _concatenate(parts: Iterable[Ratios]) -> dict[str, Array]:
    ratios: dict[str, list[Array]] = {}
    for part in parts:
        for statement, values in part.items():
            ratios.setdefault(statement, []).append(np.ravel(values))
    return {statement: np.concatenate(values) for statement, values in ratios.items()}


def _build_row(statement: str, ratios: Array) -> Row:
    violations = int((~(ratios >= 1 - ROUNDING)).sum())  # NaN counts as a violation
    return Row(statement, ratios.size, violations, float(ratios.min()), float(np.median(ratios)))
