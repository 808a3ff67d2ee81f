"""`splitrelay convex`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command, figure_options
from splitrelay.cli.console import emit, format_option, note, prepare_folder, say
from splitrelay.cli.key_values import Key, count, number, parse_settings, seed, settings_argument
from splitrelay.cli.partition.commands import word
from splitrelay.errors import InputError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.paper.convex_records import Cell, Record, Side, Study


def batch(name: str, text: str) -> int | None:
    """A number of samples, or `full`."""
    return None if text == "full" else count(name, text)


KEYS = (
    Key("data", word, "a data set's name, or a path to your own (default digits)", many=False),
    Key("C", count, "classes per client, one column each (default 1,2,5,10)"),
    Key("alpha", number, "concentration of ExDir(C, alpha) (default 10)", many=False),
    Key("M", count, "clients (default 10)", many=False),
    Key("K", count, "local steps of a visit (default 5)", many=False),
    Key("R", count, "rounds (default 500)", many=False),
    Key("mu", number, "the l2 term, and so the strong convexity (default 0.01)", many=False),
    Key("batch", batch, "samples per step, drawn with replacement, or full (default 20)", many=False),
    Key("eta", number, "the grid of rates (default .01 .02 .05 ... 5)"),
    Key("seed", seed, "one run each; the first also draws the partition (default 1234)"),
    Key("points", count, "rounds at which the gap is measured (default 40)", many=False),
)
LISTS = {"C": "Cs", "eta": "etas", "seed": "seeds"}


@click.command(cls=Command, keys=KEYS, example="splitrelay convex data=digits C=1,10 R=20")
@settings_argument(KEYS)
@click.option("--from", "source", type=click.Path(path_type=Path), metavar="RECORD",
              help="Make tables and figure from an existing record, without running.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/convex"), show_default=True,
              help="Folder for the record and the figure.")  # fmt: skip
@figure_options
@format_option
def convex(settings: Sequence[str], source: Path | None, out: Path, ending: str, figures: bool, shape: str) -> None:
    """Compare runs on a convex problem with the theorems' bounds.

    The problem is softmax regression with an l2 term; ExDir(C, alpha) divides the data. SSL, FedAvg, minibatch SGD and
    SCAFFOLD run at their best rate of the grid and at the step that their theorem chooses. The tables and the figure
    show F(x) - F* by round, all constants of the theorems as measured on the data, and the bound where it applies.
    """
    from splitrelay.paper.convex_records import write_record

    given = parse_settings(settings, KEYS)
    if source is not None and given:
        hint = "Leave one of them out."
        raise InputError("--from cannot be combined with settings", value=" ".join(settings), hint=hint)
    get_record = _prepare_study(given) if source is None else _load_record(source)
    writes_files = shape == "table"
    if writes_files:
        prepare_folder(out)
    record = get_record()
    # Two tables as text, only the second one as CSV, or the record as JSON.
    if shape != "csv":
        emit(_build_constants_table(record), record.model_dump(), shape)
    if shape in ("table", "markdown"):
        say("")
    if shape != "json":
        emit(_build_results_table(record), None, shape)
    if writes_files:
        name = f"convex-{Path(record.study.data).stem}" if source is None else source.stem
        if source is None:
            say(f"record: {write_record(record, out / f'{name}.json')}")
        if figures:
            from splitrelay.paper.convex_figure import draw

            say(f"figure: {draw(record, out / f'{name}.{ending}')}")


def _prepare_study(given: dict[str, list[Any]]) -> Callable[[], Record]:
    """Check the settings and load the data before any folder is made. Return a function that runs the study."""
    from splitrelay.cli.data import ProgressBars
    from splitrelay.data import load
    from splitrelay.paper.convex import run_cells
    from splitrelay.paper.convex_records import Record, check_study

    study = check_study(**{LISTS.get(key, key): tuple(v) if key in LISTS else v[0] for key, v in given.items()})
    with ProgressBars(study.data) as bars:
        data = load(study.data, watch=bars.show)
    cells = run_cells(study, data)
    return lambda: Record(study=study, rounds=study.rounds, cells=list(_report_progress(study, cells)))


def _load_record(source: Path) -> Callable[[], Record]:
    """Read a record before any folder is made. Return a function that returns it."""
    from splitrelay.paper.convex_records import read_record

    record = read_record(source)
    return lambda: record


def _report_progress(study: Study, cells: Iterator[Cell]) -> Iterator[Cell]:
    """Print a line for each finished C, with the estimated time left."""
    total, spent = len(study.Cs), 0.0
    note(f"{total} partitions, four algorithms, {len(study.etas) + 1} rates, {len(study.seeds)} seeds, R={study.R}")
    for done, cell in enumerate(cells, start=1):
        spent += cell.seconds
        left = f", about {spent / done * (total - done):.0f} s left" if done < total else ""
        note(f"C={cell.C}: {cell.seconds:.0f} s ({done}/{total}{left})")
        yield cell


def _build_constants_table(record: Record) -> Table:
    columns = ("C", "L", "kappa", "6 kappa", "zeta_*^2", "sigma_*^2", "sigma^2 seen", "sigma^2 at most",
               "D^2", "F(x0)-F*", "F*", "||grad F(x*)||", "accuracy", "1/(mu R)", "1/(6 L)")  # fmt: skip
    rows = []
    for cell in record.cells:
        c = cell.constants
        noise = (c.sigma2_star, c.sigma2_seen, c.sigma2_everywhere)
        ends = (1 / (c.mu * record.study.R), 1 / (6 * c.L))
        rows.append((cell.C, c.L, c.kappa, c.rounds_needed, c.zeta2_star, *noise, c.D2, c.A, c.F_star,
                     c.gradient_norm, c.accuracy, *ends))  # fmt: skip
    title = f"The constants, measured (mu = {record.study.mu:g}; R = {record.study.R})"
    return Table(columns, rows, title, _describe_applicability(record))


def _describe_applicability(record: Record) -> list[str]:
    R = record.study.R
    short = [str(cell.C) for cell in record.cells if cell.constants.rounds_needed > R]
    notes = [
        "L is a bound, and sigma^2 seen is the largest over clients and measured iterates. The rest is exact at x*."
    ]
    if short:
        notes.append(f"R = {R} < 6 kappa for C = {', '.join(short)}: no theorem applies; the step is 1/(6 L).")
    else:
        notes.append(f"R = {R} >= 6 kappa for every C: the strongly convex theorems apply.")
    return notes


def _build_results_table(record: Record) -> Table:
    columns = ("C", "algorithm", "tuned η", "η̃ 6L", "F(x)-F*", "to 1 %",
               "theory η", "F(x)-F*", "F(x̄)-F*", "proved", "tight", "bound/gap")  # fmt: skip
    rows = [_build_row(record.rounds, cell, side) for cell in record.cells for side in cell.sides]
    notes = [
        "η̃ 6L: above 1 the rate is outside every theorem. to 1 %: measured rounds until F(x)-F* is 1 % of F(x0)-F*."
    ]
    notes.append("SCAFFOLD has no theorem in the paper. It uses FedAvg's step and has no bound.")
    if any(side.tuned.on_edge for cell in record.cells for side in cell.sides):
        notes.append("* the best rate is on the edge of the grid; a better one may be outside.")
    title = f"After {record.study.R} rounds, mean over seeds {', '.join(map(str, record.study.seeds))}"
    return Table(columns, rows, title, notes, lead=2)


def _build_row(rounds: Sequence[int], cell: Cell, side: Side) -> tuple[object, ...]:
    from splitrelay.paper.convex_records import find_first_within, last

    tuned, theory = side.tuned, side.theory
    beyond = tuned.eta * side.per_eta * 6 * cell.constants.L
    gap, proved = last(theory.gap_bar), theory.proved[-1]
    ratio = None if proved is None else proved / gap
    reached = find_first_within(rounds, tuned.gap, cell.constants.A / 100)
    marked = f"{tuned.eta:g}{'*' if tuned.on_edge else ''}"
    best = (marked, round(beyond, 2), last(tuned.gap), reached)
    return (cell.C, side.algorithm, *best, theory.eta, last(theory.gap), gap, proved, theory.tight[-1], ratio)
