"""Problems for the tests of the theory, the paper's form of each statement, and `splitrelay theory` as a function."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from splitrelay import theory
from splitrelay.cli.main import app
from splitrelay.errors import SplitrelayError
from splitrelay.theory import Problem
from splitrelay.theory.rates import WITH_SAMPLING

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
    repeatable = settings(max_examples=50)
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


def take_all_clients(name: str, problem: Problem) -> Problem:
    """Leave S out for a statement about all clients, so that one problem serves every algorithm."""
    return problem if name in WITH_SAMPLING else problem.with_all_clients()


def bound(name: Any, case: Any, problem: Problem, *, constants: Any = "proved", **more: Any) -> Any:
    return theory.bound(name, case, take_all_clients(name, problem), constants=constants, **more)


def last_iterate(name: Any, problem: Problem, **more: Any) -> Any:
    return theory.last_iterate(name, take_all_clients(name, problem), **more)


def stepsize(name: Any, case: Any, problem: Problem, *, constants: Any = "proved", **more: Any) -> Any:
    return theory.stepsize(name, case, take_all_clients(name, problem), constants=constants, **more)


def stepsizes(name: Any, case: Any, problem: Problem, *, constants: Any = "proved", **more: Any) -> Any:
    return theory.stepsizes(name, case, take_all_clients(name, problem), constants=constants, **more)


def useful_local_steps(name: Any, case: Any, problem: Problem, *, constants: Any = "proved", **more: Any) -> Any:
    return theory.useful_local_steps(name, case, problem, constants=constants, **more)


def compare(case: Any, problem: Problem, *, constants: Any = "proved", **more: Any) -> Any:
    return theory.compare(case, problem, constants=constants, **more)


def rate(name: str, case: str, problem: Problem, **more: Any) -> Any:
    return theory.rate(name, case, take_all_clients(name, problem), **more)


def table_one(problem: Problem) -> Any:
    return theory.table_one(problem.with_all_clients())


BASE = "L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 D2=1"
GOOD = f"{BASE} R=100 eta_tilde=1/12"
PROBLEM = theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=100, S=2, A=1, B2=0.5)


def run_theory(line: str) -> Result:
    return CliRunner().invoke(app, ["theory", *line.split()])


def get_output(line: str) -> str:
    answer = run_theory(line)
    assert answer.exit_code == 0, answer.exception
    return answer.output


def get_json(line: str) -> Any:
    return json.loads(get_output(f"{line} --format json"))


def get_rows(line: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(get_output(f"{line} --format csv"))))


def get_error(line: str) -> SplitrelayError:
    """Return the error of a command that exits with code 2 and one line of text."""
    error = run_theory(line).exception
    assert isinstance(error, SplitrelayError), error
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return error


def run_process(line: str) -> subprocess.CompletedProcess[str]:
    script = "from splitrelay.cli.main import run; run()"
    return subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=False)
