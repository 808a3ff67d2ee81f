"""`splitrelay grid`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import Table, emit, format_option, note
from splitrelay.cli.key_values import Key, settings_argument, words
from splitrelay.cli.spec_arguments import expand_arguments, list_spec_keys
from splitrelay.cli.sweep import command, places_options, swept
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.sweeps.grid_search import Choice, Search


def _list_grid_keys() -> list[Key]:
    rule = "test: mean test accuracy of the last 20 rounds, as in the paper; or validation (default test)"
    return [Key("tune", words, rule), *list_spec_keys()]


@click.command(cls=Command, keys=_list_grid_keys, example="splitrelay grid data=digits R=2 eta=0.03,0.1,0.3")
@settings_argument(_list_grid_keys, metavar="[SPEC] [KEY=VALUE[,VALUE]...]...")
@click.option("--extend", is_flag=True, help="If the best rate is on the edge of the grid, add rates beyond it.")
@click.option("--fine", is_flag=True, help="Finally, try the rates between the best one and its neighbours.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: results/grid).")
@places_options
@format_option
def grid(settings: Sequence[str], extend: bool, fine: bool, out: Path | None, shape: str, **how: Any) -> None:
    """Find the best learning rate of every setting, by a named rule, with seed 1234 unless another is given.

    eta=a,b,c is the grid (default: the rates of the paper's table). A run that diverges is the worst. All runs are
    saved as in a sweep, and the result is written to grid.json and grid.csv.
    """
    from splitrelay.sweeps.grid_search import build_results, search_rates, write_results

    plan, folder = _plan(settings, out)
    for twin in plan.points().dropped:
        note(f"left out: {twin}")
    flags = ["--extend"] * extend + ["--fine"] * fine
    again = command("grid", settings, folder, *flags, **how)
    choices = search_rates(plan, lambda points: swept(points, folder, again, **how), extend=extend, fine=fine)
    write_results(choices, plan.tune, folder)
    emit(table(choices, plan.tune), build_results(choices, plan.tune), shape)
    note(f"kept: {folder / 'grid.json'}, {folder / 'grid.csv'}")


def _plan(settings: Sequence[str], out: Path | None) -> tuple[Search, Path]:
    from splitrelay.sweeps.grid_search import Search

    rules = [word.partition("=")[2] for word in settings if word.startswith("tune=")]
    if len(rules) > 1:
        raise InputError("tune is given twice", value=" ".join(rules), hint="Give it once.")
    file, values = expand_arguments("grid", [word for word in settings if not word.startswith("tune=")])
    plan = Search(file, values, rules[0] if rules else "test")
    return plan, out or Path("results/grid")


def table(choices: Sequence[Choice], tune: str) -> Table:
    """Return a row for every setting: its best rate, and the score of each rate."""
    from splitrelay.runs.run_directory import LAST

    keys = list(dict.fromkeys(name for choice in choices for name, _ in choice.settings))
    etas = sorted({tried.eta for choice in choices for tried in choice.rates})
    rows = [(*_named(choice, keys), *_best(choice), *_scores(choice, etas)) for choice in choices]
    columns = (*keys, "best eta", "accuracy (%)", *(f"{eta:g}" for eta in etas))
    title = f"Best learning rates by mean {tune} accuracy over the last {LAST} rounds; then every rate of the grid"
    return Table(columns, rows, title, list(_notes(choices)), lead=max(len(keys), 1))


def _named(choice: Choice, keys: Sequence[str]) -> list[str | None]:
    settings = dict(choice.settings)
    return [settings.get(key) for key in keys]


def _best(choice: Choice) -> tuple[str | None, float | None]:
    if choice.best.score is None:
        return None, None
    return f"{choice.best.eta:g}{'' if choice.next_beyond_edge is None else '*'}", round(100 * choice.best.score, 2)


def _scores(choice: Choice, etas: Sequence[float]) -> Iterator[object]:
    found = {tried.eta: tried.score for tried in choice.rates}
    for eta in etas:
        score = found.get(eta)
        yield None if eta not in found else "diverged" if score is None else round(100 * score, 2)


def _notes(choices: Sequence[Choice]) -> Iterator[str]:
    for choice in choices:
        where = " ".join(f"{name}={text}" for name, text in choice.settings)
        if choice.best.score is None:
            yield f"{where}: every rate diverged. Try smaller ones: eta={choice.rates[0].eta / 10:g}".lstrip(": ")
        elif choice.next_beyond_edge is not None:
            what = f"* {where}: the best rate is on the grid's edge".replace("* :", "*")
            yield f"{what}; --extend goes on with {choice.next_beyond_edge:g}."
