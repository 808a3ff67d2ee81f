"""The theory against exact expectations: random noisy quadratics, all orders or samples of clients, and the noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from splitrelay.errors import OutOfRange
from splitrelay.objectives.quadratic import Array
from splitrelay.paper.theory_check.exact_runs import Evidence
from splitrelay.paper.theory_check.random_problems import draw
from splitrelay.paper.theory_check.round_lemmas import E7, constructed, saddle_rounds, single_rounds
from splitrelay.paper.theory_check.theorems import theorems

ROUNDING = 1e-9  # a ratio this little below 1 is rounding


@dataclass(frozen=True)
class Row:
    """How often a statement was checked, how often it failed, and how far its bound was from the truth."""

    statement: str
    checks: int
    violations: int
    smallest: float
    median: float

    @property
    def known_false(self) -> bool:
        """Whether this is the display that is false as printed, shown failing."""
        return self.statement.startswith(E7)

    @property
    def as_expected(self) -> bool:
        """A true statement never fails; the false one does."""
        return (self.violations > 0) == self.known_false


def check(instances: int = 200, seed: int = 0) -> Iterator[Evidence]:
    """The evidence of one instance after the other, bound / actual by statement; `table` sums it up."""
    if instances < 1:
        raise OutOfRange("the number of instances", value=instances, limit="instances >= 1")
    for number in range(instances):
        instance = draw(seed, number)
        found = [theorems(instance), single_rounds(instance), saddle_rounds(instance)]
        yield _together([*found, constructed()] if number == 0 else found)


def table(evidence: Iterable[Evidence]) -> tuple[Row, ...]:
    """One row per statement, in the order in which the statements first came up."""
    return tuple(_row(statement, ratios) for statement, ratios in _together(evidence).items())


def _together(evidence: Iterable[Evidence]) -> dict[str, Array]:
    ratios: dict[str, list[Array]] = {}
    for one in evidence:
        for statement, found in one.items():
            ratios.setdefault(statement, []).append(np.ravel(found))
    return {statement: np.concatenate(found) for statement, found in ratios.items()}


def _row(statement: str, ratios: Array) -> Row:
    violations = int((~(ratios >= 1 - ROUNDING)).sum())  # NaN is one
    return Row(statement, ratios.size, violations, float(ratios.min()), float(np.median(ratios)))
