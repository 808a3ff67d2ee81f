"""The calculator as the paper's statements use it: proved constants, and all clients take part in ssl and fedavg."""

from typing import Any

from splitrelay import theory
from splitrelay.theory import Problem
from splitrelay.theory.rates import WITH_SAMPLING


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
