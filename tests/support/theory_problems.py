"""Problems of every size, for which the strongly convex theorems apply."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from splitrelay.theory import Problem

ALL_CASES = ("strongly-convex", "general-convex", "non-convex")
STATEMENTS = [
    *(
        (algorithm, case, constants)
        for algorithm in ("ssl", "fedavg")
        for case in ALL_CASES
        for constants in ("proved", "tight")
    ),
    *(
        (algorithm, "strongly-convex", constants)
        for algorithm in ("fedavg-swor", "fedavg-swr")
        for constants in ("printed", "proved")
    ),
]


def for_all(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same fifty examples every time."""
    repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=50)
    return lambda test: repeatable(given(*strategies)(test))


def sizes(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn, **fixed: float) -> Problem:
    mu, kappa = draw(sizes(1e-3, 1e2)), draw(sizes(1, 50))
    M = int(fixed.get("M", draw(st.integers(1, 200))))
    quantities = {
        "mu": mu,
        "L": mu * kappa,
        "sigma2": draw(st.just(0.0) | sizes(1e-4, 1e3)),
        "zeta2": draw(st.just(0.0) | sizes(1e-4, 1e4)),
        "B2": draw(st.just(0.0) | sizes(1e-3, 20)),
        "M": M,
        "S": draw(st.integers(1, M)),
        "K": draw(st.integers(1, 100)),
        "R": draw(st.integers(int(6 * kappa) + 1, 10**6)),
        "D2": draw(sizes(1e-3, 1e3)),
        "A": draw(sizes(1e-3, 1e3)),
    }
    return Problem(**(quantities | fixed))
