"""`splitrelay figure`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command, kind_argument
from splitrelay.cli.console import note, say
from splitrelay.cli.table import check_begun_runs, choice_options, find_runs, format_options, parse_seeds
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.reports.line_plots import Drawing

KINDS = {
    "curves": "accuracy by round, mean and standard deviation over seeds",
    "bytes": "accuracy by the megabytes between clients and server",
    "clipping": "accuracy with and without clipping",
    "memory": "accuracy on a client's classes by its position in the round",
    "rates": "accuracy by learning rate, the best marked",
    "winners": "SSL minus FedAvg by C, alpha, K and S",
}
CURVED = ("curves", "bytes", "clipping")  # that may be smoothed


@click.command(cls=Command, example="splitrelay figure curves results --out curves.png")
@kind_argument("figure", KINDS)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", required=True,
              help="The file: .pdf, .png or .svg. FILE.json lists the runs and the command.")  # fmt: skip
@choice_options
@click.option("--smooth", type=click.IntRange(min=1), default=1, show_default=True,
              help="Draw the mean of this many evaluations; the axis states it.")  # fmt: skip
@click.option("--all-rates", is_flag=True, help="Draw a line for each rate, not only for the best.")
def figure(kind: str, folders: Sequence[Path], out: Path, **how: Any) -> None:
    """Turn the runs in some folders into a figure.

    curves: accuracy by round, mean and standard deviation over seeds, one panel per partition; bytes: the same by the
    bytes sent; clipping: with and without clipping; memory: accuracy on the classes of a client by its position in the
    round; rates: accuracy by eta, the best marked; winners: SSL minus FedAvg by each factor that was varied alone.
    Notes below the panels report fewer seeds and unfinished runs.
    """
    from splitrelay.reports.seed_groups import write_provenance
    from splitrelay.reports.style import ENDINGS, save_figure

    if out.suffix not in ENDINGS:
        raise InputError(f"a figure's name must end in {', '.join(ENDINGS)}", value=out.name)
    draw = _get_draw_function(kind, how)
    runs = find_runs(folders)
    check_begun_runs(runs)
    drawing = draw(runs)
    command = shlex.join(["splitrelay", "figure", kind, *map(str, folders), *_format_options(how), "--out", str(out)])
    save_figure(drawing.figure, out)
    write_provenance(out, runs, command, drawing.said)
    for sentence in drawing.said:
        note(sentence)
    say(f"figure: {out}")


def _get_draw_function(kind: str, how: dict[str, Any]) -> Callable[..., Drawing]:
    from functools import partial

    from splitrelay.reports import curves, learning_rate_figure, winners_figure

    if kind not in CURVED and how["smooth"] > 1:
        raise InputError(f"{kind} has no curves to smooth", value=f"--smooth {how['smooth']}")
    if kind not in ("curves", "bytes") and how["all_rates"]:
        raise InputError(f"{kind} always draws all rates", value="--all-rates")
    rule = {"rule": how["tune"], "last": how["last"], "tuning": parse_seeds(how["tuning"])}
    lines = {**rule, "smooth": how["smooth"]}
    return {
        "curves": partial(curves.draw_curves, **lines, every_rate=how["all_rates"]),
        "bytes": partial(curves.draw_curves, **lines, every_rate=how["all_rates"], by_bytes=True),
        "clipping": partial(learning_rate_figure.draw_clipping, **lines),
        "memory": partial(curves.draw_memory, **rule),
        "rates": partial(learning_rate_figure.draw_rates, **rule),
        "winners": partial(winners_figure.draw_winners, **rule, margin=how["margin"]),
    }[kind]


def _format_options(how: dict[str, Any]) -> list[str]:
    valued = {name: value for name, value in how.items() if name != "all_rates" and (name, value) != ("smooth", 1)}
    return format_options(valued) + ["--all-rates"] * how["all_rates"]
