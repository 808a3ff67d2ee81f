"""`splitrelay table`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.atomic_files import write_text
from splitrelay.cli.click_extensions import Command, kind_argument
from splitrelay.cli.console import FORMATS, format_terminal, note, say
from splitrelay.errors import InputError
from splitrelay.table import Table, get_pieces

if TYPE_CHECKING:
    from splitrelay.runs.records import Run

KINDS = {
    "accuracy": "the paper's accuracy tables: a row for each data set and K",
    "algorithms": "the same, with a row for each algorithm and variant",
    "classes": "accuracy of the worst class, and its variation from round to round",
    "rates": "the best rate of each algorithm, marked if it is on the edge of the grid",
    "runs": "a row for each run",
    "winners": "SSL compared with FedAvg, a row for each setting in which both were run",
}
SHAPES = (*FORMATS, "latex")
ENDINGS = {".tex": "latex", ".md": "markdown", ".csv": "csv", ".json": "json"}
NAMED = 3  # runs that a sentence names
BESIDE = ("accuracy", "algorithms", "rates")


def choice_options(command: Any) -> Any:
    """Add the options of `table` and `figure` that choose rates and judge differences."""
    for option in (
        click.option("--margin", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True,
                     help="For winners: the largest difference in points that is called even."),
        click.option("--last", type=click.IntRange(min=1), default=20, show_default=True,
                     help="Last rounds over which accuracy is averaged, but at most a fifth of a run."),
        click.option("--tuning-seeds", "tuning", default="", metavar="SEED,...",
                     help="Seeds that only choose rates and are not reported (default: seeds that all rates have)."),
        click.option("--tune", default="auto", show_default=True,
                     help="Choose rates by validation or test (as the paper); auto: validation if all runs have it."),
    ):  # fmt: skip
        command = option(command)
    return command


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds in a list with commas.

    Raises:
        InputError: A word is no whole number.
    """
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        raise InputError("seeds are whole numbers with commas between them", value=text) from None


@click.command(cls=Command, example="splitrelay table runs results")
@kind_argument("table", KINDS)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE: .tex, .md, .csv or .json.")
@click.option("--beside", type=click.Choice(["paper"]), help="Also show the values of the paper.")
@choice_options
@click.option("--columns", default="", metavar="NAME,...",
              help="For winners: more columns, train-loss or gradient-norm (mean over the last rounds).")  # fmt: skip
@click.option("--goal", type=click.FloatRange(0, 100, min_open=True),
              help="Show the first round with this percent (default: as the paper, 30 for C=1, else 75).")  # fmt: skip
@click.option("--width", type=click.FloatRange(min=0, min_open=True), metavar="POINTS",
              help="For LaTeX: the largest width of the table (default: the width of the text).")  # fmt: skip
@click.option("--format", "shape", type=click.Choice(SHAPES), default="table", show_default=True,
              help="Format of the output.")  # fmt: skip
def table(kind: str, folders: Sequence[Path], out: Path | None, width: float | None, shape: str, **how: Any) -> None:
    """Turn the runs in some folders into a table.

    accuracy: mean and standard deviation over seeds and the last 20 rounds, and the rounds to reach a goal, as in the
    paper; algorithms: the same with a row for each algorithm; classes: accuracy of the worst class, and its variation
    from round to round; rates: the best rates; runs: a row for each run; winners: SSL compared with FedAvg, seed by
    seed, with intervals that are corrected for the number of rows. The caption reports unfinished runs, fewer seeds
    than the paper's three, and how rates were chosen.
    """
    from splitrelay.reports.seed_groups import write_provenance

    written, made = _get_writer(out, shape, width), _get_builder(kind, how)
    runs = find_runs(folders)
    if kind != "runs":
        check_begun_runs(runs)
    sheet = made(runs)
    if out is None:
        say(written(sheet).rstrip("\n"))
        return
    words = format_options({**how, "width": width})
    command = shlex.join(["splitrelay", "table", kind, *map(str, folders), *words, "--out", str(out)])
    write_text(out, written(sheet))
    note(f"table: {out}")
    note(f"its runs: {write_provenance(out, runs, command, [sheet.caption, *sheet.notes])}")


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """Return all runs in some folders, each once."""
    from splitrelay.runs.records import runs_under

    runs = {run.path.resolve(): run for folder in folders for run in runs_under(folder)}
    return list(runs.values())


def check_begun_runs(runs: Sequence[Run]) -> None:
    """Print the runs without a finished round.

    Raises:
        InputError: No run has a finished round.
    """
    bare = [str(run.path) for run in runs if not run.rows or not run.rows[-1]["round"]]
    if len(bare) == len(runs):
        raise InputError("none of these runs has a round yet", hint="splitrelay show prints their progress.")
    if bare:
        others = f" and {len(bare) - NAMED} more" if len(bare) > NAMED else ""
        note(f"runs without a finished round are left out: {', '.join(bare[:NAMED])}{others}")


def _get_builder(kind: str, how: dict[str, Any]) -> Callable[[Sequence[Run]], Table]:
    from splitrelay.reports import (
        build_accuracy_table,
        build_classes_table,
        build_rates_table,
        build_runs_table,
        build_winners_table,
    )

    if how["beside"] and kind not in BESIDE:
        raise InputError(f"the paper has no table of {kind}", hint=f"--beside paper goes with {', '.join(BESIDE)}.")
    if how["columns"] and kind != "winners":
        raise InputError(f"the table of {kind} has no optional columns", hint="--columns goes with winners.")
    last, paper = how["last"], how["beside"] == "paper"
    choice: Any = {"rule": how["tune"], "last": last, "tuning": parse_seeds(how["tuning"])}
    goal = None if how["goal"] is None else how["goal"] / 100
    if kind == "runs":
        return lambda runs: build_runs_table(runs, last=last)
    if kind == "rates":
        return lambda runs: build_rates_table(runs, **choice, beside=paper)
    if kind == "classes":
        return lambda runs: build_classes_table(runs, **choice)
    if kind == "winners":
        columns = [word for word in how["columns"].split(",") if word]
        return lambda runs: build_winners_table(runs, **choice, margin=how["margin"], columns=columns)
    by_algorithm = kind == "algorithms"
    return lambda runs: build_accuracy_table(runs, **choice, goal=goal, beside=paper, by_algorithm=by_algorithm)


def _get_writer(out: Path | None, shape: str, width: float | None) -> Callable[[Table], str]:
    """Return how the table is written. Raises InputError before the work if options contradict each other."""
    from splitrelay.reports.latex import format_latex

    writers: dict[str, Callable[[Table], str]] = {
        "table": _format_text,
        "latex": partial(format_latex, width=width),
        "markdown": Table.to_markdown,
        "csv": Table.to_csv,
        "json": Table.to_json,
    }
    if out is not None and out.suffix not in ENDINGS:
        raise InputError(f"a table's name must end in {', '.join(ENDINGS)}", value=out.name)
    asked = shape if out is None else ENDINGS[out.suffix]
    if shape not in ("table", asked):
        raise InputError(f"--format {shape} and --out {out}", hint="The ending of the file decides the format.")
    if width is not None and asked != "latex":
        raise InputError("--width is for LaTeX only", hint="It goes with --format latex or --out FILE.tex.")
    return writers[asked]


def _format_text(table: Table) -> str:
    """Return the table for the terminal, with a note on what the stars mean."""
    bold = any(piece.bold for row in table.rows for value in row for piece in get_pieces(value))
    return format_terminal(replace(table, notes=["Between stars: the better value."] * bold + [*table.notes]))


DEFAULTS = {"tune": "auto", "tuning": "", "last": 20, "margin": 0.5}
FLAGS = {"tuning": "--tuning-seeds"}


def format_options(how: dict[str, Any]) -> list[str]:
    """Return the options that differ from the defaults, as command-line words."""
    given = [(name, value) for name, value in how.items() if value != DEFAULTS.get(name) and value not in (None, "")]
    return [
        word
        for name, value in given
        for word in (FLAGS.get(name, f"--{name}"), f"{value:g}" if isinstance(value, float) else str(value))
    ]
