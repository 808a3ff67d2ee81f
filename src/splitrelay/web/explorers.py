"""The explorers of bounds and partitions. All numbers come from `splitrelay.theory` and `splitrelay.data`."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import numpy as np

from splitrelay.data import load
from splitrelay.data.datasets import SETS
from splitrelay.data.partition import Labels
from splitrelay.data.partition_schemes import draw_partition, list_settings
from splitrelay.errors import OutOfRange, SplitrelayError, UnknownName
from splitrelay.runs.spec import load_spec
from splitrelay.theory import CASES, Problem, bound, find_crossings, stepsize
from splitrelay.theory.theorem_constants import check_choice
from splitrelay.web.run_details import measure_partition
from splitrelay.web.run_list import Query
from splitrelay.web.source import PageSource

SHOWN = ("eta", "eta_tilde", "total", "terms", "vacuous", "applicable", "measure", "statement", "constants")
STEPS = 61  # values of eta in the picture of the terms
ROUNDS = 41  # values of R in the picture of the crossing
MOST_ROUNDS = 10**7
MAX_CLIENTS = 1000  # of a partition that is drawn while a slider moves


def get_bounds(source: PageSource, query: Query) -> dict[str, Any]:
    """Return the bounds of SSL and FedAvg at a step, the best steps, and where the two bounds cross.

    The query has case, the quantities of the problem, and eta. Without eta, each algorithm has its best step.
    """
    case = query.get("case", CASES[0])
    check_choice("case", case, CASES)
    problem = Problem(**{one.name: read_number(query, one.name) for one in fields(Problem) if query.get(one.name)})
    eta = read_number(query, "eta") if query.get("eta") else None
    is_partial = problem.S is not None and problem.M is not None and problem.S < problem.M
    if not is_partial:
        problem = problem.with_all_clients()
    names = ("ssl-swor", "fedavg-swor") if is_partial else ("ssl", "fedavg")
    sides = {name.partition("-")[0]: _describe_side(name, case, problem, eta) for name in names}
    crossing = _describe_rounds(names, case, problem)
    return {"case": case, "algorithms": names, "sides": sides, "crossing": crossing}


def read_number(query: Query, name: str) -> float:
    """Return a number of the query."""
    try:
        return float(query[name])
    except ValueError:
        raise OutOfRange(f"{name} must be a number", value=query[name]) from None


def _describe_side(name: Any, case: Any, problem: Problem, eta: float | None) -> dict[str, Any]:
    """Return one algorithm: the best step, the range of steps, the bound at eta, and the terms over all steps."""
    try:
        best = stepsize(name, case, problem)
    except SplitrelayError as error:
        return {"error": str(error)}
    here = best.bound if eta is None else bound(name, case, problem, eta=eta, outside="mask")
    low, high = best.low / best.bound.step_ratio, best.high / best.bound.step_ratio
    steps = np.geomspace(np.maximum(low, np.minimum(best.eta / 10, high / 100)), high, STEPS)
    over = bound(name, case, problem, eta=steps, outside="mask")
    return {
        "best": {"eta": best.eta, "total": best.bound.total, "terms": best.bound.terms},
        "range": {"low": low, "high": high},
        "at": {**{name: getattr(here, name) for name in SHOWN}, "conditions": list(map(asdict, here.conditions))},
        "curve": {"eta": steps, "total": over.total, "terms": over.terms},
    }


def _describe_rounds(names: Any, case: Any, problem: Problem) -> dict[str, Any]:
    """Return the best bound of both algorithms over R, and the R from which on the other one is smaller."""
    R = 1.0 if problem.R is None else float(np.asarray(problem.R))
    rounds = np.unique(np.round(np.geomspace(max(1.0, R / 1000), min(MOST_ROUNDS, 1000 * R), ROUNDS)))
    try:
        totals, crossings = find_crossings(names, case, problem, rounds)
    except SplitrelayError as error:
        return {"R": [], "totals": {}, "at": [], "error": str(error)}
    at = [{"R": one.R, "smaller": one.smaller.partition("-")[0]} for one in crossings]
    return {"R": rounds, "totals": dict(zip(("ssl", "fedavg"), totals, strict=True)), "at": at}


def get_partition(source: PageSource, query: Query) -> dict[str, Any]:
    """Draw a partition and return its counts and measures.

    The query has data, kind, M, C, alpha, form, shards and seed. Keys that the scheme does not have are ignored.
    """
    data, kind = query.get("data", "digits"), query.get("kind", "exdir")
    given = {name: query[name] for name in list_settings(kind) if query.get(name)}
    words = [f"{'partition.seed' if name == 'seed' else name}={text}" for name, text in given.items()]
    part = load_spec(None, [f"partition={kind}", *words]).partition
    settings = {name: getattr(part, name) for name in given}
    if settings.get("M", 0) > MAX_CLIENTS:
        hint = "Use splitrelay partition."
        raise OutOfRange("too many clients", value=settings["M"], limit=f"M <= {MAX_CLIENTS}", hint=hint)
    return measure_partition(draw_partition(kind, load_labels(data), **settings))


@lru_cache(4)
def load_labels(data: str) -> Labels:
    """Return the labels of a training set that is on this machine. A moved slider must not start a download."""
    if data not in SETS:
        raise UnknownName("data set", data, SETS)
    return load(data, download=False).train.y
