"""`splitrelay quadratics`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import detail, say
from splitrelay.cli.key_values import Key, count, number, parsed, seed, settings_argument
from splitrelay.cli.quadratics_tables import report
from splitrelay.cli.table_output import format_option, ready
from splitrelay.errors import InputError, OutOfRange

if TYPE_CHECKING:
    from splitrelay.objectives.quadratic_groups import Group
    from splitrelay.paper.quadratics import Row, Study

KEYS = (
    Key("K", count, "local steps of a visit (default 10,2)"),
    Key("R", count, "rounds (default 500)", many=False),
    Key("eta", number, "the grid of rates (default the paper's eight)"),
    Key("seed", seed, "one run each (default 1,12,123,1234,12345)"),
    Key("x0", number, "the start (default 10)", many=False),
    Key("sigma2", number, "variance of the gradient noise (default 0)", many=False),
    Key("M", count, "draw random quadratics with M clients instead", many=False),
    Key("d", count, "... in d dimensions", many=False),
)


@click.command(cls=Command, keys=KEYS, example="splitrelay quadratics K=10")
@settings_argument(KEYS)
@click.option("--groups", "path", type=click.Path(path_type=Path), help="Your own quadratics: a TOML or JSON file.")
@click.option("--variant", type=click.Choice(["paper", "authors"]), default="paper", show_default=True,
              help="authors: 0.67 and 0.33, and .001 and 1 in the grid, as in their later code.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/quadratics"), show_default=True,
              help="Where the figures go.")  # fmt: skip
@click.option("--ending", type=click.Choice(["png", "pdf", "svg"]), default="png", show_default=True,
              help="Kind of figures; pdf takes a second longer.")  # fmt: skip
@click.option("--figures/--no-figures", default=True, show_default=True, help="Draw them, or not.")
@format_option
def quadratics(
    settings: Sequence[str], path: Path | None, variant: str, out: Path, ending: str, figures: bool, shape: str
) -> None:
    """The paper's simulations on quadratics.

    SSL and FedAvg on the paper's nine pairs of quadratics, each at the rate of the grid that ends nearest to the
    optimum, beside the exact value of what is simulated. With a file of your own, on any quadratics.
    """
    from splitrelay.paper.quadratics import simulate

    studies = _studies(parsed(settings, KEYS), path, variant)
    if figures and shape == "table":
        ready(out)
    results = []
    for study in studies:
        detail(
            f"K={study.K}: {len(study.groups)} groups, {len(study.etas)} rates, {len(study.seeds)} seeds, R={study.R}"
        )
        results.append(simulate(study))
    report([row for rows in results for row in rows], shape)
    if figures and shape == "table":
        for drawn in _figures(results, out, ending):
            say(f"figure: {drawn}")


def _studies(given: dict[str, list[Any]], path: Path | None, variant: str) -> list[Study]:
    from splitrelay.paper.quadratics import AUTHORS_GRID, PAPER_GRID, PAPER_SEEDS, Study

    sigma2 = given.get("sigma2", [None])[0]
    groups = _groups(given, path, variant, sigma2)
    etas = given.get("eta", list(AUTHORS_GRID if variant == "authors" else PAPER_GRID))
    for eta in etas:
        if eta <= 0:
            raise OutOfRange("a learning rate", limit="eta > 0", value=eta)
    return [
        Study(
            groups, K, given.get("R", [500])[0], etas, given.get("seed", list(PAPER_SEEDS)), given.get("x0", [10.0])[0]
        )
        for K in given.get("K", [10, 2])
    ]


def _groups(given: dict[str, list[Any]], path: Path | None, variant: str, sigma2: float | None) -> Sequence[Group]:
    from splitrelay.objectives.quadratic_groups import (
        authors_groups,
        paper_groups,
        random_groups,
        read_groups,
        with_noise,
    )

    drawn = "M" in given or "d" in given
    if path is not None and (drawn or variant == "authors"):
        raise InputError("--groups brings its own quadratics", hint="Leave out M, d and --variant authors.")
    if path is not None:
        groups = read_groups(path)
    elif drawn:
        groups = random_groups(given.get("M", [2])[0], given.get("d", [1])[0], given.get("seed", [1])[0])
    else:
        groups = authors_groups() if variant == "authors" else paper_groups()
    return groups if sigma2 is None else with_noise(groups, sigma2)


def _figures(results: Sequence[Sequence[Row]], out: Path, ending: str) -> list[Path]:
    """All groups for each K; the three groups of the paper's body for the first K."""
    from splitrelay.paper.quadratics_figure import draw

    paths = [draw(rows, out / f"quadratics-K{rows[0].study.K}.{ending}") for rows in results]
    if len(results[0]) == 9:
        paths.append(draw(results[0][::3], out / f"quadratics-body-K{results[0][0].study.K}.{ending}"))
    return paths
