"""`splitrelay reproduce`: repeat the paper's studies; estimate their cost, and show the paper's values and ours."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.atomic_files import write_text
from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, note, prepare_folder, say
from splitrelay.cli.spec_arguments import CPU, check_device, device_option, split_arguments
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.paper.plan import Unit
    from splitrelay.sweeps.points import Point
    from splitrelay.sweeps.sweep import SweepStatus

OUT = Path("results/paper")
SEEDS = 3  # of the paper


@click.command(cls=Command, example="splitrelay reproduce quadratics --out results/paper")
@click.argument("names", nargs=-1, metavar="LIST... [KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for runs, tables and figures (default: results/paper; with --from, results/ and the name of "
                   "that folder). Finished runs in it are not repeated.")  # fmt: skip
@click.option("--budget", help="Run the most informative cells that fit this time: 2h, 30m.")
@click.option(
    "--seeds",
    type=click.IntRange(1, SEEDS),
    default=SEEDS,
    show_default=True,
    help="Number of the paper's seeds to run.",
)
@click.option("--from", "source", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Make all tables and figures from the records in this folder, without running.")  # fmt: skip
@click.option("--page", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="With --from: update the tables in this Markdown page.")  # fmt: skip
@click.option("--plan", is_flag=True, help="Only print the estimated cost.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at once (default: one for each core).")
@device_option
def reproduce(
    names: Sequence[str],
    out: Path | None,
    source: Path | None,
    page: Path | None,
    plan: bool,
    device: str,
    **how: Any,
) -> None:
    """See the paper's results again, beside its own numbers.

    LIST: quadratics, partitions, cross-device, cross-silo, rates, clipping, or a single cell such as
    cross-device-mnist-c1-k10 (splitrelay presets shows them); and studies of our own, in which every setting is tuned
    on one grid before it runs with all seeds: tuned (the paper's cells), silos, family, cnncifar, landscape; cuts
    (LeNet-5 at every layer), reasons (FedAvg where it is not the paper's, one thing changed at a time) and vgg11 (as
    many rounds as are affordable without a GPU).

    First comes what it will cost on this machine, measured by a short probe; whatever is in --out already is not run
    again, and Ctrl-C loses nothing. Words such as R=50 or protocol=authors go on top of the settings. With --from
    nothing is run, and no run is written to; splitrelay sweep --status tells from a second terminal how far it is.
    """
    check_device(device)
    if source is not None:
        if names or plan:
            raise InputError("--from shows all that the records make", hint="Leave out LIST and --plan.")
        _redraw(source, out or OUT.parent / source.resolve().name, page)
        return
    out = out or OUT
    if page is not None:
        raise InputError("--page goes with --from", hint="splitrelay reproduce --from evidence --page FILE")
    if all("=" in name for name in names):
        raise InputError(
            "there is nothing to reproduce", hint="For example: splitrelay reproduce quadratics partitions"
        )
    taken = _choose_units(names, out, **how)
    if plan:
        return
    prepare_folder(out)
    for name, study in (("quadratics", _run_quadratics), ("partitions", _run_partitions)):
        if name in names:
            study(out)
    if taken:
        _run_units(taken, out, how["jobs"], device, _build_command(names, out, device, **how))
        _print_results(out, out)


def _build_command(
    names: Sequence[str], out: Path, device: str, budget: str | None, seeds: int, jobs: int | None
) -> str:
    """Return the command that continues the study."""
    given = ["--seeds", str(seeds)] * (seeds != SEEDS) + ["--jobs", str(jobs)] * (jobs is not None)
    given += ["--budget", str(budget)] * (budget is not None) + ["--device", device] * (device != CPU)
    return shlex.join(["splitrelay", "reproduce", *names, *given, "--out", str(out)])


def _redraw(source: Path, out: Path, page: Path | None) -> None:
    """Make the tables and figures of records. Refuse a folder with other runs."""
    from splitrelay.paper.evidence import VIEWS
    from splitrelay.runs.records import has_runs

    if not source.is_dir():
        raise InputError(f"there is no folder {source}", hint="The records of this project are in evidence.")
    folders = dict.fromkeys(folder for view in VIEWS for folder in view.folders)
    own = next((out / folder for folder in folders if has_runs(out / folder)), None)
    if own is not None and out.resolve() != source.resolve():
        hint = f"Choose another --out, or take --from {out}."
        raise InputError(f"{own} holds runs, whose tables in {out} those of {source} would replace", hint=hint)
    prepare_folder(out)
    _print_results(source, out)
    if page is not None:
        from splitrelay.paper.evidence import fill_page

        fill_page(page, out)
        note(f"up to date: {page}")


def _choose_units(names: Sequence[str], out: Path, budget: str | None, seeds: int, jobs: int | None) -> list[Unit]:
    from splitrelay.paper.budget import parse_duration
    from splitrelay.paper.plan import find_units
    from splitrelay.runs.spec import SEEDS as PAPER_SEEDS

    limit = None if budget is None else parse_duration(budget)
    words = [name for name in names if "=" in name]
    split_arguments("reproduce", words)  # each key once
    found = find_units([name for name in names if "=" not in name], PAPER_SEEDS[:seeds], words)
    return _print_plan(found, out, limit, jobs) if found else []


def _run_quadratics(out: Path) -> None:
    from splitrelay.cli.quadratics import quadratics

    say("The quadratic study; in the paper FedAvg is ahead in groups 1 to 3, SSL in 4 to 9.")
    _invoke(quadratics, "--out", str(out))


def _run_partitions(out: Path) -> None:
    from splitrelay.cli.partition.commands import panels

    say("The paper's twelve partitions of MNIST over 10 clients.")
    _invoke(panels, "--figure", str(out / "partitions.pdf"))


def _print_plan(found: Sequence[Unit], out: Path, budget: float | None, jobs: int | None) -> list[Unit]:
    """Print what each unit costs, and return those that the budget allows. Finished runs cost nothing."""
    from splitrelay.cli.sweep import format_duration
    from splitrelay.paper.budget import choose_within, compute_costs
    from splitrelay.sweeps.process_backend import list_cores

    note("measuring the pace of this machine ...")
    at_once = jobs or len(list_cores())
    prices = compute_costs(found, out)
    costs = [price.left / at_once for price in prices]
    taken = choose_within(found, costs, budget)
    rows = [
        (unit.name, price.runs, price.done, format_duration(cost), "yes" if unit in taken else "no")
        for unit, price, cost in zip(found, prices, costs, strict=True)
    ]
    total = sum(cost for unit, cost in zip(found, costs, strict=True) if unit in taken)
    notes = [f"to be run now: {format_duration(total)} on {at_once} cores (an estimate, from a probe of a few seconds)"]
    emit(Table(("what", "runs", "done", "time left", "taken"), rows, notes=notes), None, "table")
    return taken


def _run_units(taken: Sequence[Unit], out: Path, jobs: int | None, device: str, again: str) -> None:
    from splitrelay.cli.run import HERE
    from splitrelay.cli.sweep import run_and_show
    from splitrelay.paper.studies import run_batch

    def run(points: Sequence[Point], folder: Path) -> SweepStatus:
        return run_and_show(points, folder, again, on=HERE, jobs=jobs, device=device, checkpoint=10)

    plain = [unit for unit in taken if unit.tuning is None]
    for kind in dict.fromkeys(unit.kind for unit in plain):
        run([point for unit in plain if unit.kind == kind for point in unit.points], out / kind)
    for unit in taken:
        if unit.tuning is not None:
            note(f"{unit.name}: every rate with one seed, then the best with {len(unit.seeds)}")
            run_batch(unit.tuning, out / unit.kind, run, unit.seeds)


def _print_results(source: Path, out: Path) -> None:
    """Make every table and figure from the records in a folder, and check the paper's claims."""
    from splitrelay.cli.convex import convex
    from splitrelay.cli.figure import figure
    from splitrelay.cli.table import table
    from splitrelay.paper.evidence import VIEWS

    commands = {"table": table, "figure": figure}
    found = [(view, words) for view in VIEWS if (words := view.words(source, out)) is not None]
    convex_records = sorted((source / "convex").glob("convex-*.json"))
    if not found and not convex_records:
        limit = f"one of the folders {', '.join(dict.fromkeys(f for view in VIEWS for f in view.folders))}"
        raise InputError(f"no records in {source}", limit=limit)
    for view, words in found:
        say("")
        try:
            if view.command == "table":
                _invoke(table, *words[: words.index("--out")])
            _invoke(commands[view.command], *words)
        except InputError as error:  # for example, a comparison that has only one value yet
            note(f"{view.name} is left out: {error}")
    _print_tables(source, out)
    for record in convex_records:  # they have a format of their own
        say("")
        _invoke(convex, "--from", str(record), "--out", str(out))


def _print_tables(source: Path, out: Path) -> None:
    """Print the tables that use several folders (claims, cells), and the estimate for a GPU."""
    from splitrelay.paper.algorithm_family import build_algorithms_table, build_choices_table
    from splitrelay.paper.budget import build_accelerators_table
    from splitrelay.paper.cell_table import build_cells_table
    from splitrelay.paper.claims import build_claims_table
    from splitrelay.paper.summary_table import build_summary_table

    sheets: dict[str, Callable[[], Table]] = {
        "glance.md": partial(build_summary_table, source),
        "claims.md": partial(build_claims_table, source),
        "cell-by-cell.md": partial(build_cells_table, source),
        "family-algorithms.md": partial(build_algorithms_table, source),
        "family-choices.md": partial(build_choices_table, source),
        "accelerators.md": build_accelerators_table,
    }
    for name, made in sheets.items():
        try:
            sheet = made()
        except InputError as error:
            note(f"{name} is left out: {error}")
            continue
        say(f"\n{sheet.to_markdown()}")
        write_text(out / name, sheet.to_markdown())
        note(f"table: {out / name}")


def _invoke(command: click.Command, *words: str) -> None:
    """Run another command with these words."""
    with command.make_context(str(command.name), list(words)) as context:
        command.invoke(context)
