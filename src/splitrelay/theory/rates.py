"""Orders of convergence: unit constants, tuned steps."""

from __future__ import annotations

from splitrelay.theory.problem import Problem
from splitrelay.theory.results import Constants, Rate

RATES = (
    "ssl",
    "fedavg",
    "fedavg-swor",
    "fedavg-swr",
    "ssl-equal-compute",
    "table-sgd",
    "table-karimireddy",
    "table-koloskova",
    "table-fedavg",
    "table-ssl",
    "reshuffling",
    "reshuffling-quoted",
    "lower-bound-quoted",
)


def rate(name: str, case: str, problem: Problem, *, constants: Constants = "proved") -> Rate:
    """An order by its name (one of RATES); only ssl and fedavg have one beyond the strongly convex case."""
    raise NotImplementedError


def table_one(problem: Problem) -> dict[str, Rate]:
    """The five rows of Table 1."""
    raise NotImplementedError
