"""The explorers of bounds and partitions. All numbers come from `splitrelay.theory` and `splitrelay.data`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from splitrelay.data import load
from splitrelay.data.datasets import SETS
from splitrelay.data.partition import Labels
from splitrelay.data.partition_schemes import draw_partition, list_settings
from splitrelay.errors import InputError, OutOfRange, SplitrelayError, UnknownName
from splitrelay.theory import Bound, Problem, bound, stepsize
from splitrelay.web.run_details import describe_partition
from splitrelay.web.run_list import Query
from splitrelay.web.source import PageSource

COMMON = ("L", "sigma2", "zeta2", "M", "S", "K", "R")
NUMBERS = {
    "strongly-convex": (*COMMON, "mu", "D2"),
    "general-convex": (*COMMON, "D2"),
    "non-convex": (*COMMON, "B2", "A"),
}  # the quantities of each case
STEPS = 61  # values of eta in the picture of the terms
ROUNDS = 41  # values of R in the picture of the crossing
MOST_ROUNDS = 10**7
MAX_CLIENTS = 1000  # of a partition that is drawn while a slider moves


def get_bounds(source: PageSource, query: Query) -> dict[str, Any]:
    """Return the bounds of SSL and FedAvg at a step, the best steps, and where the two bounds cross.

    The query has case, the quantities of the problem, and eta. Without eta, each algorithm has its best step.
    """
    case = query.get("case", "strongly-convex")
    if case not in NUMBERS:
        raise UnknownName("case", case, NUMBERS)
    problem = Problem(**{name: read_number(query, name) for name in NUMBERS[case] if query.get(name)})
    eta = read_number(query, "eta") if query.get("eta") else None
    is_partial = problem.S is not None and problem.M is not None and problem.S < problem.M
    if not is_partial:
        problem = problem.with_all_clients()
    names = ("ssl-swor", "fedavg-swor") if is_partial else ("ssl", "fedavg")
    sides = {name.partition("-")[0]: _describe_side(name, case, problem, eta) for name in names}
    crossing = _find_crossing(names, case, problem)
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
    ratio = float(np.asarray(best.eta_tilde / best.eta))
    low, high = float(np.asarray(best.low)) / ratio, float(np.asarray(best.high)) / ratio
    steps = np.geomspace(max(low, min(float(np.asarray(best.eta)) / 10, high / 100)), high, STEPS)
    over = bound(name, case, problem, eta=steps, outside="mask")
    return {
        "best": {"eta": best.eta, "total": best.bound.total, "terms": best.bound.terms},
        "range": {"low": low, "high": high},
        "at": _describe_bound(here),
        "curve": {"eta": steps, "total": over.total, "terms": over.terms},
    }


def _describe_bound(found: Bound) -> dict[str, Any]:
    conditions = [asdict(condition) for condition in found.conditions]
    names = ("eta", "eta_tilde", "total", "terms", "vacuous", "applicable", "measure", "statement", "constants")
    return {**{name: getattr(found, name) for name in names}, "conditions": conditions}


def _find_crossing(names: Sequence[Any], case: Any, problem: Problem) -> dict[str, Any]:
    """Return the best bound of both algorithms over R, and the R at which the smaller one changes."""
    R = float(np.asarray(problem.R)) if problem.R is not None else math.nan
    if math.isnan(R):
        return {"R": [], "totals": {}, "at": []}
    low, high = max(1.0, R / 1000), min(MOST_ROUNDS, 1000 * R)
    rounds = np.unique(np.round(np.geomspace(low, high, ROUNDS)))

    def compute_totals(R: Any) -> list[Any]:
        steps = (stepsize(name, case, problem.with_rounds(R), outside="mask") for name in names)
        return [np.asarray(step.bound.total) for step in steps]

    try:
        totals = compute_totals(rounds)
    except SplitrelayError as error:
        return {"R": [], "totals": {}, "at": [], "error": str(error)}
    sign = np.sign(totals[0] - totals[1])
    at = [
        _bisect(compute_totals, rounds[j], rounds[j + 1])
        for j in range(len(rounds) - 1)
        if np.isfinite(sign[j : j + 2]).all() and sign[j] * sign[j + 1] < 0
    ]
    return {"R": rounds, "totals": dict(zip(("ssl", "fedavg"), totals, strict=True)), "at": at}


def _bisect(compute_totals: Any, low: float, high: float) -> dict[str, Any]:
    """Return the first whole R at which the smaller bound is the other one, and the algorithm that is smaller then."""
    before = float(np.subtract(*compute_totals(low)))
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        if float(np.subtract(*compute_totals(middle))) * before > 0:
            low = middle
        else:
            high = middle
    return {"R": high, "smaller": "fedavg" if before < 0 else "ssl"}


def get_partition(source: PageSource, query: Query) -> dict[str, Any]:
    """Draw a partition and return its counts and measures.

    The query has data, kind, M, C, alpha, form, shards and seed. Keys that the scheme does not have are ignored.
    """
    data, kind = query.get("data", "digits"), query.get("kind", "exdir")
    known: Mapping[str, Any] = {"M": int, "C": int, "alpha": float, "form": str, "shards": int, "seed": int}
    settings: dict[str, Any] = {}
    for name in list_settings(kind):
        if name in known and query.get(name):
            number = query[name] if known[name] is str else read_number(query, name)
            settings[name] = int(number) if known[name] is int and number == int(number) else number
    if settings.get("M", 0) > MAX_CLIENTS:
        hint = "The command splitrelay partition draws larger ones."
        raise OutOfRange(
            "too many clients for the explorer", value=settings["M"], limit=f"M <= {MAX_CLIENTS}", hint=hint
        )
    drawn = describe_partition(draw_partition(kind, load_labels(data), **settings))
    return {**drawn, "data": data, "kind": kind, "settings": settings}


@lru_cache(4)
def load_labels(data: str) -> Labels:
    """Return the labels of a training set that is on this machine. A moved slider must not start a download."""
    if data not in SETS:
        hint = f"Known sets: {', '.join(SETS)}. For your own: splitrelay partition exdir data=PATH"
        raise InputError("the explorer knows only the data sets by name", value=data, hint=hint)
    return load(data, download=False).train.y
