"""The visits of a run, from its records: which were skipped or retried, and what each client has spent.

The records may come from somebody else. Reading them runs no code that a spec names, and downloads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np

from splitrelay.data import load
from splitrelay.data.datasets import SETS
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import load_partition
from splitrelay.deploy.client_usage import read_usage
from splitrelay.deploy.events import get_visit, list_valid_events, read_events
from splitrelay.deploy.visit_cost import VisitCost, compute_costs
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.participation import Order
from splitrelay.runs.build import build_order, build_partition, load_data
from splitrelay.runs.client_records import read_clients
from splitrelay.runs.records import Run
from splitrelay.runs.spec import Spec
from splitrelay.user_functions import is_user_function

Visit = tuple[int, int, int]  # round, client, occurrence


def build_timeline(run: Run, order: Order, first: int, end: int) -> list[dict[str, Any]]:
    """Return the visits of the rounds from `first` up to `end` in their order, and which were skipped or retried."""
    skipped, retried = find_skipped(run), find_retried(run)
    rounds = []
    for r in range(first, end):
        seen, visits = Counter[int](), []
        for m in map(int, order(r)):
            visit = (r, m, seen[m])
            seen[m] += 1
            state = "skipped" if visit in skipped else "retried" if visit in retried else "made"
            visits.append({"client": m, "state": state, "why": skipped.get(visit) or retried.get(visit, "")})
        rounds.append({"round": r, "visits": visits})
    return rounds


def list_notes(run: Run) -> dict[str, Any]:
    """Return the visits that were skipped or retried, with the reasons, and how many of each there are."""
    found = {"skipped": find_skipped(run), "retried": find_retried(run)}
    notes = [
        {"round": r, "client": m, "state": state, "why": why}
        for state, visits in found.items()
        for (r, m, _), why in sorted(visits.items())
    ]
    return {"notes": notes, **{state: len(visits) for state, visits in found.items()}}


def find_skipped(run: Run) -> dict[Visit, str]:
    """Return why visits were skipped."""
    found = (visit for row in run.rows for visit in row.get("skipped_visits", ()))
    return {(r, m, i): str(why) for r, m, i, why in found}


def find_retried(run: Run) -> dict[Visit, str]:
    """Return the visits that were leased more than once; only a server has such records."""
    events = list_valid_events(read_events(run.path / "relay" / "events.jsonl"))
    leases = Counter(get_visit(event) for event in events if event.get("event") == "leased")
    return {visit: f"leased {count} times" for visit, count in leases.items() if count > 1}


def find_sizes(run: Run) -> list[int]:
    """Return the samples of each client: from the saved partition, from the clients' reports, or from the data."""
    file, known = run.path / "partition.npz", read_clients(run.path)
    if file.exists():
        return [int(size) for size in load_partition(file).sizes]
    if known is not None:
        samples = {one.client: one.samples for one in known.clients}
        return [samples.get(m, 0) for m in range(run.spec.partition.M)]
    return list(_draw_sizes(run.spec.model_copy(update={"R": 1, "every": 1})))


@lru_cache(256)
def _draw_sizes(spec: Spec) -> tuple[int, ...]:
    check_spec(spec)
    return tuple(build_partition(spec, load_data(spec.data)).sizes.tolist())


def get_order(run: Run) -> Order:
    """Return the order of the clients in each round.

    Raises:
        InputError: The spec names a function as the order.
    """
    check_names(run.spec, ("order",))
    return build_order(run.spec, Partition(tuple(np.arange(size) for size in find_sizes(run))))


def check_spec(spec: Spec) -> None:
    """Check that a spec can be built without running code that it names, and without a download.

    Raises:
        InputError: The spec names a function, or a data set that is not on this machine.
    """
    check_names(spec, tuple(spec.flatten()))
    if spec.data.name in SETS:
        load(spec.data.name, download=False)


def check_names(spec: Spec, keys: Collection[str]) -> None:
    """Raise InputError if one of these keys of a spec names a function."""
    named = [f"{key}={value}" for key, value in spec.flatten().items() if key in keys and is_user_function(str(value))]
    if named:
        hint = "splitrelay cost computes the cost of a spec that you trust."
        raise InputError("code that a spec names is not run here", value=", ".join(named), hint=hint)


@lru_cache(256)
def compute_visit_cost(spec: Spec) -> VisitCost:
    """Return the mean cost of a visit."""
    check_spec(spec)
    return next(row for row in compute_costs(spec) if row.chosen)


def compute_round_flops(run: Run) -> float:
    """Return the floating-point operations of all clients in one round."""
    cost = compute_visit_cost(run.spec)
    return cost.flops * cost.visits * len(get_order(run)(0))


def describe_clients(run: Run, order: Order) -> tuple[list[dict[str, Any]], str]:
    """Return samples, visits and bytes of each client, and how they are known.

    In a deployed run the bytes were measured. Otherwise they are the visits times the mean cost of a visit.
    """
    usage = {m: one.total for m, one in read_usage(run.path / "relay" / "paid.json").items()}
    cost, note = None, "Measured by the server."
    if not usage:
        note = "Visits times the mean cost of a visit, as splitrelay cost computes it."
        try:
            cost = compute_visit_cost(run.spec)
        except SplitrelayError as error:
            note = f"Bytes and FLOPs are not known: {error}"
    done = run.rows[-1]["round"] if run.rows else 0
    visits = Counter(int(m) for r in range(done) for m in order(r))
    skipped = Counter(m for _, m, _ in find_skipped(run))
    known = read_clients(run.path)
    about = {one.client: one for one in known.clients} if known else {}
    rows = []
    for m, size in enumerate(find_sizes(run)):
        made, bill = visits[m] - skipped[m], usage.get(m)
        row: dict[str, Any] = {"client": m, "samples": size, "visits": made, "skipped": skipped[m]}
        if cost is not None:
            row |= {"up": made * cost.up, "down": made * cost.down, "flops": made * cost.flops}
        if bill is not None:
            row |= {"up": bill.socket_bytes_up, "down": bill.socket_bytes_down}
            row |= {"computing": bill.computing_seconds, "waiting": bill.waiting_seconds}
        if m in about:
            row |= {"software": ", ".join(about[m].software), "last_arrival": about[m].last_arrival}
        rows.append(row)
    return rows, note
