"""The visits of a run: who trained when, which visits were skipped or retried, and what each client has spent.

This module needs torch, because the order of the clients and the cost of a visit are made from the whole spec.
"""

from __future__ import annotations

from collections import Counter
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
from splitrelay.web.run_list import Query
from splitrelay.web.source import PageSource

WINDOW = 60  # rounds in the timeline
Key = tuple[int, int, int]  # round, client, occurrence


def get_visits(source: PageSource, query: Query) -> dict[str, Any]:
    """Return the timeline of a run, from round `first` on, and the cost of each client."""
    run = source.read().get_run(query.get("id", ""))
    done = run.rows[-1]["round"] if run.rows else 0
    asked = query.get("first", "")
    first = min(int(asked) if asked.isdigit() else max(done - WINDOW, 0), max(done - 1, 0))
    order, skipped, retried = get_order(run), find_skipped(run), find_retried(run)
    rounds = []
    for r in range(first, min(first + WINDOW, done)):
        seen, visits = Counter[int](), []
        for m in map(int, order(r)):
            key = (r, m, seen[m])
            seen[m] += 1
            state = "skipped" if key in skipped else "retried" if key in retried else "made"
            visits.append({"client": m, "state": state, "why": skipped.get(key) or retried.get(key, "")})
        rounds.append({"round": r, "visits": visits})
    notes = [{"round": r, "client": m, "state": "skipped", "why": why} for (r, m, _), why in sorted(skipped.items())]
    notes += [{"round": r, "client": m, "state": "retried", "why": why} for (r, m, _), why in sorted(retried.items())]
    totals = {"skipped": len(skipped), "retried": len(retried), "total": done}
    clients, known = describe_clients(run, order)
    about = {"first": first, "window": WINDOW, "rounds": rounds, "notes": notes, **totals}
    return {**about, "clients": clients, "clients_note": known}


def find_skipped(run: Run) -> dict[Key, str]:
    """Return why visits were skipped."""
    found = (visit for row in run.rows for visit in row.get("skipped_visits", ()))
    return {(r, m, i): str(why) for r, m, i, why in found}


def find_retried(run: Run) -> dict[Key, str]:
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
    """Return the order of the clients in each round."""
    return build_order(run.spec, Partition(tuple(np.arange(size) for size in find_sizes(run))))


def check_spec(spec: Spec) -> None:
    """Check that a spec can be built without running code that it names, and without a download.

    The folder may be from somebody else, and a page must only read it.

    Raises:
        InputError: The spec names a function, or a data set that is not on this machine.
    """
    named = [key for key, value in spec.flatten().items() if is_user_function(str(value))]
    if named:
        hint = "splitrelay cost computes it."
        raise InputError("the page does not run code that a spec names", value=", ".join(named), hint=hint)
    if spec.data.name in SETS:
        load(spec.data.name, download=False)


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
