"""`splitrelay grid`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, say
from splitrelay.cli.key_values import Key, settings_argument, words
from splitrelay.cli.spec_arguments import expand_arguments, list_spec_keys
from splitrelay.cli.sweep import command, places_options, run_and_show
from splitrelay.cli.table import parse_seeds
from splitrelay.errors import InputError, WorkError
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.sweeps.grid_search import Choice, Search
    from splitrelay.sweeps.sweep import SweepStatus


def _list_grid_keys() -> list[Key]:
    rule = "validation, or test as in the paper (default: validation if the runs have it, else test)"
    return [Key("tune", words, rule), *list_spec_keys()]


@click.command(cls=Command, keys=_list_grid_keys, example="splitrelay grid data=digits R=2 eta=0.03,0.1,0.3")
@settings_argument(_list_grid_keys, metavar="[SPEC] [KEY=VALUE[,VALUE]...]...")
@click.option("--extend", is_flag=True, help="If the best rate is on the edge of the grid, add rates beyond it.")
@click.option("--fine", is_flag=True, help="Finally, try the rates between the best one and its neighbours.")
@click.option("--report", "report", default="", metavar="SEED,...",
              help="Then run the chosen rates with these seeds and compare the settings over them.")  # fmt: skip
@click.option("--margin", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True,
              help="With --report: the largest difference in points that is called even.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: results/grid).")
@places_options
@format_option
def grid(
    settings: Sequence[str],
    extend: bool,
    fine: bool,
    report: str,
    margin: float,
    out: Path | None,
    shape: str,
    **how: Any,
) -> None:
    """Find the best learning rate of every setting, by the mean over tuning seeds (seed=1,2,3; default 1234).

    eta=a,b,c is the grid (default: the rates of the paper's table). Of the rates within one standard error of the best,
    one with clipping is chosen, then the smallest. A rate with a diverged seed is the worst. --report runs the chosen
    rates with other seeds and compares the settings. All runs are saved as in a sweep, and the result is written to
    grid.json and grid.csv.
    """
    from splitrelay.sweeps.grid_search import build_results, choose_settings, search_rates, write_results

    plan, folder = _build_search(settings), out or Path("results/grid")
    seeds = parse_seeds(report)
    plan.list_report_points({}, seeds)  # report wrong seeds before the work
    for twin in plan.points().dropped:
        note(f"left out: {twin}")
    flags = ["--extend"] * extend + ["--fine"] * fine + ["--report", report] * bool(report)
    again = command("grid", settings, folder, *flags, **how)
    choices = search_rates(plan, lambda points: run_and_show(points, folder, again, **how), extend=extend, fine=fine)
    write_results(choices, plan.tune, folder)
    results = build_results(choices, plan.tune)
    sheet = build_table(choices, plan.tune)
    if not seeds:
        emit(sheet, results, shape)
    else:
        board = run_and_show(plan.list_report_points(choose_settings(choices), seeds), folder / "report", again, **how)
        if board.count("failed"):
            raise WorkError(f"{board.count('failed')} reported runs failed", hint="The same command tries them again.")
        compared = _compare(board, margin)
        if shape == "table":
            emit(sheet, None, shape)
            say("")
        emit(compared, {**results, "report": list(compared.records)}, shape)
    note(f"kept: {folder / 'grid.json'}, {folder / 'grid.csv'}")


def _build_search(settings: Sequence[str]) -> Search:
    from splitrelay.sweeps.grid_search import Search

    rules = [word.partition("=")[2] for word in settings if word.startswith("tune=")]
    if len(rules) > 1:
        raise InputError("tune is given twice", value=" ".join(rules), hint="Give it once.")
    file, values = expand_arguments("grid", [word for word in settings if not word.startswith("tune=")])
    plan = Search(file, values, rules[0] if rules else "test")
    if not rules and all(point.spec.data.validation for point in plan.points().points):
        plan = Search(file, values, "validation")
    return plan


def _compare(board: SweepStatus, margin: float) -> Table:
    """Compare settings that differ in one key: the algorithm, or else the first key that varies."""
    from splitrelay.reports.paired_settings import build_pairs_table, pair_settings
    from splitrelay.runs.records import run_at

    runs = [(entry.settings, run_at(board.folder / entry.name)) for entry in board.entries.values()]
    return build_pairs_table(pair_settings(runs), margin=margin)


def build_table(choices: Sequence[Choice], tune: str) -> Table:
    """Return a row for every setting: its best rate, and the mean score of each rate."""
    from splitrelay.runs.run_directory import describe_final_rounds, name_final_accuracy

    keys = list(dict.fromkeys(name for choice in choices for name, _ in choice.settings))
    etas = sorted({tried.eta for choice in choices for tried in choice.rates})
    rows = []
    for choice in choices:
        settings, scores = dict(choice.settings), {tried.eta: tried.score for tried in choice.rates}
        cells = [_format_score(scores[eta]) if eta in scores else None for eta in etas]
        rows.append((*(settings.get(key) for key in keys), *_format_best(choice), *cells))
    ends = [tried.end for choice in choices for tried in choice.rates]
    columns = (*keys, "best eta", name_final_accuracy(ends), "standard error", *(f"{eta:g}" for eta in etas))
    title = f"Best learning rates by mean {tune} accuracy over the {describe_final_rounds(ends)}; then every rate"
    return Table(columns, rows, title, list(_list_notes(choices, tune)), lead=max(len(keys), 1))


def _format_score(score: float | None) -> object:
    return "diverged" if score is None else round(100 * score, 2)


def _format_best(choice: Choice) -> tuple[object, object, object]:
    """Return the best rate with a star if it is on the edge of the grid, its score and the standard error."""
    if choice.best.score is None:
        return None, None, None
    error = choice.best.candidate.standard_error if len(choice.best.scores) > 1 else None
    shown = f"{choice.best.eta:g}{'' if choice.next_beyond_edge is None else '*'}"
    return shown, _format_score(choice.best.score), None if error is None else round(100 * error, 2)


def _list_notes(choices: Sequence[Choice], tune: str) -> Iterator[str]:
    from splitrelay.sweeps.grid_search import choose_settings

    chosen = choose_settings(choices)
    if len(chosen) < len(choices):
        for settings, tried in chosen.items():
            yield f"chosen: {' '.join(f'{name}={text}' for name, text in settings)} eta={tried.eta:g}"
    if tune == "test":
        yield "Rates were chosen on the test set. Add validation=0.1 to choose them on other samples."
    if max(len(tried.runs) for choice in choices for tried in choice.rates) == 1:
        yield "One tuning seed has no standard error, so that the highest value was chosen."
    for choice in choices:
        where = " ".join(f"{name}={text}" for name, text in choice.settings)
        if choice.best.score is None:
            yield f"{where}: every rate diverged. Try smaller ones: eta={choice.rates[0].eta / 10:g}".lstrip(": ")
        elif choice.next_beyond_edge is not None:
            what = f"* {where}: the best rate is on the grid's edge".replace("* :", "*")
            yield f"{what}; --extend goes on with {choice.next_beyond_edge:g}."
