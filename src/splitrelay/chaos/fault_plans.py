"""One plan of faults after another; a plan that fails is a row like every other, and the next one begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitrelay.chaos.fault_kinds import Fault, draw_plan, list_possible_kinds, read_plan
from splitrelay.chaos.fault_rehearsal import FaultRehearsal
from splitrelay.data import load
from splitrelay.deploy.rehearsal import Plan, forget
from splitrelay.errors import WorkError
from splitrelay.runs.build import build_partition

COLUMNS = ("plan", "faults", "sound", "same weights", "skipped", "twice", "seconds", "remark")
Row = dict[str, Any]


def played(plan: Plan, file: Path | None, seed: int, plans: int, say: Callable[[str], None]) -> Iterator[Row]:
    """A row for every plan, also in OUT/plans.jsonl where there are several; sound ones leave only their record."""
    clients = build_partition(plan.spec, load(plan.spec.data.name)).clients
    kinds = list_possible_kinds(plan.spec, len(clients), plan.insecure, plan.direct, plan.fed)
    for number in range(seed, seed + plans):
        drawn = draw_plan(number, plan.spec, clients, kinds, plan.away)
        faults = drawn if file is None else read_plan(file)
        here = plan if plans == 1 else _own(plan, number)
        row = _row(here, number, faults, say)
        if plans > 1:
            _kept(plan.out / "plans.jsonl", row, faults)
            if row["sound"]:
                forget(here.out)
        say(f"plan {number}: {'sound' if row['sound'] else 'NOT SOUND'}, {row['seconds']} s {row['remark']}")
        yield row


def _own(plan: Plan, number: int) -> Plan:
    return replace(plan, out=plan.out / f"plan-{number:04d}", simulated=plan.out / "simulated")


def _row(plan: Plan, number: int, faults: Sequence[Fault], say: Callable[[str], None]) -> Row:
    trouble = FaultRehearsal(plan, say, faults)
    try:
        (verdict,) = trouble.play()
    except WorkError as error:  # it hangs, or somebody fell
        return dict(zip(COLUMNS, (number, len(faults), False, False, 0, 0, plan.patience, str(error)), strict=True))
    found = trouble.findings()
    remark = "; ".join(
        [f"did not happen: {fault}" for fault in found.missed]
        + [f"left no event: {fault}" for fault in found.unrecorded]
        + ["fences fell"] * bool(found.fences_back)
        + ["another record"] * (not verdict.rows)
    )
    twice = found.committed_twice + found.steps_twice
    values = (number, len(faults), found.sound and verdict.same, verdict.weights, verdict.skips, twice)
    return dict(zip(COLUMNS, (*values, round(verdict.seconds, 1), remark), strict=True))


def _kept(file: Path, row: Row, faults: Sequence[Fault]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**row, "kinds": [fault.kind for fault in faults]}) + "\n")
