"""`splitrelay verify` and `splitrelay compare`: compare runs bit by bit."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, say
from splitrelay.cli.spec_arguments import check_device, device_option
from splitrelay.cli.table import check_begun_runs, choice_options, find_runs, parse_seeds
from splitrelay.table import Table, format_cell

if TYPE_CHECKING:
    from splitrelay.runs.compare import Comparison, Row
    from splitrelay.runs.records import Run

RUN = click.Path(path_type=Path)


@click.command(cls=Command, example="splitrelay verify results/first")
@click.argument("run", type=RUN)
@click.option("--from", "start", type=click.IntRange(min=1), help="Start at this round, which must have a checkpoint.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Stop at the last recorded round up to this one (default: all of the record).",
)
@click.option("--keys", type=RUN, help="For a deployed run: keys of one of its clients, to check the digests of data.")
@device_option
@format_option
def verify(run: Path, start: int | None, rounds: int | None, keys: Path | None, device: str, shape: str) -> None:
    """Run a run again, in a temporary folder, and compare it with its record to the bit.

    Exit code 0: the same. 1: not the same. On another kind of machine bits are not promised: accuracies are then held
    to be near or not, and the answer says so. Of a deployed run the visits that its server skipped are left out again;
    it can be run again only if its clients hold the partition of its spec.
    """
    from splitrelay.runs import compare
    from splitrelay.runs.records import run_at
    from splitrelay.runs.run_directory import has_accuracy

    check_device(device)
    recorded = run_at(run)
    deployed = _check_deployed(recorded, keys)
    with TemporaryDirectory() as folder:
        for step in compare.verify(recorded, Path(folder) / "again", start=start or 0, rounds=rounds, device=device):
            if isinstance(step, compare.Comparison):
                found = step
            else:
                seen = f"{step['test_accuracy']:.2%}" if has_accuracy(step) else f"test loss {step['test_loss']:.4f}"
                note(f"round {step['round']}: {seen}")
    verdict, holds = _find_verdict(found)
    if holds and not recorded.finished:
        far = f"round {recorded.rows[-1]['round']} of {recorded.spec.R}"
        verdict = f"{verdict.rstrip('.')}, as far as the record goes: {far}."
    answers = [*_list_answers(found), *_list_deployed_answers(deployed, found)]
    emit(
        Table(("question", "answer"), answers), {**asdict(found), **deployed, "verdict": verdict, "holds": holds}, shape
    )
    if shape == "table":
        say(verdict)
    if not holds:
        sys.exit(1)


@click.command(cls=Command, example="splitrelay compare results/ssl results/fedavg")
@click.argument("one", type=RUN)
@click.argument("other", type=RUN)
@choice_options
@format_option
def compare(one: Path, other: Path, shape: str, **how: Any) -> None:
    """Compare two runs (keys, rows and final results that differ), or the settings of two folders over paired seeds.

    For folders, the keys that vary within them say which settings belong together. One is ahead only if an interval
    that is corrected for the number of rows excludes zero; both are even only within --margin.
    """
    from splitrelay.runs.compare import compare as compared
    from splitrelay.runs.records import is_run, run_at
    from splitrelay.runs.run_directory import describe_final_rounds

    if not is_run(one) and not is_run(other):
        _compare_folders(one, other, shape, how)
        return
    runs = run_at(one), run_at(other)
    found = compared(*runs)
    ends: list[tuple[Any, ...]] = [("round", *(_format_last(run, "round") for run in runs))]
    if any(run.has_diverged for run in runs):
        ends.append(("ended", *("diverged" if run.has_diverged else None for run in runs)))
    rounds = describe_final_rounds(run.rows[-1]["round"] for run in runs if not run.has_diverged)
    ends += [(f"accuracy, {rounds}", *(run.accuracy for run in runs))]
    ends += [("last evaluation", *(_format_last(run, "test_accuracy") for run in runs))]
    ends += [(name, *(_format_last(run, name) for run in runs)) for name in ("test_loss", "bytes_up")]
    if any("skipped" in row for run in runs for row in run.rows):
        ends.append(("skipped visits", *(sum(row.get("skipped", 0) for row in run.rows) for run in runs)))
    keys = [(name, *values) for name, values in {**found.specs, **found.environments}.items()]
    table = Table(("", str(one), str(other)), [*keys, *ends])
    emit(table, {**asdict(found), "equal": found.equal}, shape)
    if shape == "table":
        for question, answer in _list_answers(found):
            say(f"{question}: {answer}")


def _compare_folders(one: Path, other: Path, shape: str, how: dict[str, Any]) -> None:
    from splitrelay.reports.paired_settings import build_pairs_table, pair_folders

    names = str(one), str(other)
    ours, theirs = (find_runs([folder]) for folder in (one, other))
    check_begun_runs([*ours, *theirs])
    rule: Any = {"rule": how["tune"], "tuning": parse_seeds(how["tuning"])}
    pairs, notes = pair_folders(ours, theirs, names, last=how["last"], **rule)
    table = build_pairs_table(pairs, notes, margin=how["margin"], last=how["last"])
    emit(table, {"caption": table.caption, "notes": list(table.notes), "rows": list(table.records)}, shape)


def _check_deployed(recorded: Run, keys: Path | None) -> dict[str, Any]:
    """Return what is asked of a deployed run alone: its skipped visits, and whether data are the partition's."""
    from splitrelay.runs.client_records import load_skips, read_clients

    clients = read_clients(recorded.path)
    if clients is None:
        skips = load_skips(recorded.path, recorded.rows)
        return {"skipped": len(skips)} if skips else {}
    from splitrelay.deploy.client_records import check_data

    data = check_data(recorded, clients, keys)
    return {"skipped": len(load_skips(recorded.path, recorded.rows)), "data": asdict(data)}


def _list_deployed_answers(deployed: dict[str, Any], found: Comparison) -> list[tuple[str, str]]:
    answers = []
    if "skipped" in deployed:
        answers.append(("skipped visits, left out here too", str(deployed["skipped"])))
    if "data" in deployed:
        same, unknown = deployed["data"]["same"], deployed["data"]["unknown"]
        told = [f"digests of {same} clients are those of the partition"] * bool(same)
        told += [f"digests of {unknown} clients are not checked (give --keys)"] * bool(unknown)
        answers.append(("data of the clients", "; ".join(told) or "no digests are recorded"))
        unlike = [f"{name} {theirs}" for name, (theirs, _) in found.environments.items() if " of client " in name]
        answers.append(("clients unlike their server", "; ".join(unlike) or "none"))
    return answers


def _list_answers(found: Comparison) -> list[tuple[str, str]]:
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


def _find_verdict(found: Comparison) -> tuple[str, bool]:
    from splitrelay.runs.compare import NEAR, find_changed_sources, is_same_machine

    changed = find_changed_sources(found)
    if changed:
        return f"your code or data are not those of the record: {', '.join(changed)}", False
    if found.equal:
        return "identical to the bit.", True
    if is_same_machine(found):
        return "NOT the same, on the same kind of machine.", False
    what = "; ".join(f"{name}: {a} / {b}" for name, (a, b) in found.environments.items())
    near = found.gap <= NEAR
    return f"{'near' if near else 'NOT near'} (gap {found.gap:.2%}); bits are not promised here: {what}", near


def _format_last(run: Run, name: str) -> Any:
    rows: list[Row] = run.rows
    return format_cell(rows[-1].get(name)) if rows else None
