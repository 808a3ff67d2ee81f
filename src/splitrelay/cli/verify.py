"""`splitrelay verify` and `splitrelay compare`: is it the same, to the bit?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.console import note, say
from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, cell, emit, format_option

if TYPE_CHECKING:
    from splitrelay.experiments.comparing import Comparison, Row
    from splitrelay.experiments.runs import Run

RUN = click.Path(path_type=Path)


@click.command(cls=Command, example="splitrelay verify results/first")
@click.argument("run", type=RUN)
@click.option("--from", "start", type=click.IntRange(min=1), help="Begin at this round, where a checkpoint is kept.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="No further than this round (default: all that are recorded)."
)
@format_option
def verify(run: Path, start: int | None, rounds: int | None, shape: str) -> None:
    """Run a run again, in a temporary folder, and compare it with its record to the bit.

    Exit code 0: the same. 1: not the same. On another kind of machine bits are not promised: accuracies are then held
    to be near or not, and the answer says so.
    """
    from splitrelay.experiments import comparing
    from splitrelay.experiments.runs import run_at

    recorded = run_at(run)
    with TemporaryDirectory() as folder:
        for step in comparing.verify(recorded, Path(folder) / "again", start=start or 0, rounds=rounds):
            if isinstance(step, comparing.Comparison):
                found = step
            else:
                note(f"round {step['round']}: {step['test_accuracy']:.2%}")
    verdict, holds = _verdict(found)
    if holds and not recorded.finished:
        far = f"round {recorded.rows[-1]['round']} of {recorded.spec.R}"
        verdict = f"{verdict.rstrip('.')}, as far as the record goes: {far}."
    emit(Table(("question", "answer"), _answers(found)), {**asdict(found), "verdict": verdict, "holds": holds}, shape)
    if shape == "table":
        say(verdict)
    if not holds:
        sys.exit(1)


@click.command(cls=Command, example="splitrelay compare results/ssl results/fedavg")
@click.argument("one", type=RUN)
@click.argument("other", type=RUN)
@format_option
def compare(one: Path, other: Path, shape: str) -> None:
    """Two runs side by side: which keys differ, which rows, how they ended."""
    from splitrelay.experiments.comparing import compare as compared
    from splitrelay.experiments.runs import run_at

    runs = run_at(one), run_at(other)
    found = compared(*runs)
    ends = [(name, *(_last(run, name) for run in runs)) for name in ("round", "test_accuracy", "test_loss", "bytes_up")]
    keys = [(name, *values) for name, values in {**found.specs, **found.environments}.items()]
    table = Table(("", str(one), str(other)), [*keys, *ends])
    emit(table, {**asdict(found), "equal": found.equal}, shape)
    if shape == "table":
        for question, answer in _answers(found):
            say(f"{question}: {answer}")


def _answers(found: Comparison) -> list[tuple[str, str]]:
    difference = found.difference
    where = "none"
    if difference:
        where = f"round {difference.round}: " if difference.round is not None else ""
        where += ", ".join(difference.fields)
    model = {None: "not compared: both must be finished", True: "the same bits", False: "other bits"}[found.models]
    return [
        ("rows compared", str(found.rounds)),
        ("first difference", where),
        ("final model", model),
        ("largest gap of accuracies", f"{found.gap:.2%}"),
    ]


def _verdict(found: Comparison) -> tuple[str, bool]:
    from splitrelay.experiments.comparing import NEAR, is_same_machine

    if found.equal:
        return "identical to the bit.", True
    if is_same_machine(found):
        return "NOT the same, on the same kind of machine.", False
    what = "; ".join(f"{name}: {a} / {b}" for name, (a, b) in found.environments.items())
    near = found.gap <= NEAR
    return f"{'near' if near else 'NOT near'} (gap {found.gap:.2%}); bits are not promised here: {what}", near


def _last(run: Run, name: str) -> Any:
    rows: list[Row] = run.rows
    return cell(rows[-1].get(name)) if rows else None
