"""Run several fault plans one after the other. A plan that fails becomes a row like every other plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitrelay.chaos.fault_injection import FaultRehearsal
from splitrelay.chaos.fault_kinds import Fault, draw_plan, list_possible_kinds, read_plan
from splitrelay.deploy.rehearsal import RehearsalOptions, Report, remove_keys_and_data
from splitrelay.errors import WorkError
from splitrelay.runs.build import build_order, build_partition, load_data

COLUMNS = ("plan", "faults", "sound", "same weights", "skipped", "twice", "seconds", "remark")
Row = dict[str, Any]


def run_plans(options: RehearsalOptions, file: Path | None, seed: int, plans: int, report: Report) -> Iterator[Row]:
    """Run fault plans and yield one row for each.

    With several plans, each has its own folder OUT/plan-NNNN, and OUT/plans.jsonl contains the rows. The keys, data and
    logs of sound plans are removed.

    Args:
        options: What is rehearsed.
        file: A plan to read; None draws the plans at random.
        seed: The seed of the first plan; the following plans use the following seeds.
        plans: The number of plans.
        report: Called with messages about the progress.
    """
    partition = build_partition(options.spec, load_data(options.spec.data))
    clients, order = partition.clients, build_order(options.spec, partition)
    kinds = list_possible_kinds(options.spec, len(clients), options.insecure, options.direct, options.fed)
    for number in range(seed, seed + plans):
        faults = (
            draw_plan(number, options.spec, clients, kinds, options.away, order) if file is None else read_plan(file)
        )
        if plans == 1:
            row = run_plan(options, number, faults, report)
        else:
            out = options.out / f"plan-{number:04d}"
            row = run_plan(replace(options, out=out, simulated=options.out / "simulated"), number, faults, report)
            with (options.out / "plans.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({**row, "kinds": [fault.kind for fault in faults]}) + "\n")
            if row["sound"]:
                remove_keys_and_data(out)
        report(f"plan {number}: {'sound' if row['sound'] else 'NOT SOUND'}, {row['seconds']} s {row['remark']}")
        yield row


def run_plan(options: RehearsalOptions, number: int, faults: Sequence[Fault], report: Report) -> Row:
    """Run one fault plan; return its row, also if the rehearsal fails."""
    rehearsal = FaultRehearsal(options, report, faults)
    try:
        verdict = rehearsal.run()
    except WorkError as error:  # it takes too long, or a program failed
        return dict(zip(COLUMNS, (number, len(faults), False, False, 0, 0, options.timeout, str(error)), strict=True))
    findings = rehearsal.compute_findings()
    remarks = [f"did not happen: {fault}" for fault in findings.missing]
    remarks += [f"left no event: {fault}" for fault in findings.unrecorded]
    remarks += ["fences did not increase"] * bool(findings.fence_errors)
    remarks += ["rows differ"] * (not verdict.rows)
    twice = findings.double_commits + findings.wrong_steps
    values = (number, len(faults), findings.is_sound and verdict.is_same, verdict.weights, verdict.skips, twice)
    return dict(zip(COLUMNS, (*values, round(verdict.seconds, 1), "; ".join(remarks)), strict=True))
