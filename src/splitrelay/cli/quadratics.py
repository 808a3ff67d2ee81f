"""`splitrelay quadratics`: the simulations, and the tables that it prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command, figure_options
from splitrelay.cli.console import detail, emit, format_option, prepare_folder, say
from splitrelay.cli.key_values import Key, count, number, parse_settings, seed, settings_argument
from splitrelay.errors import InputError, OutOfRange
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.objectives.quadratic_groups import Group
    from splitrelay.paper.quadratics import Curves, Exact, Row, Study

NEAR = 1e-9  # a smaller distance to x* is printed as ~0: some order ends there


def print_tables(rows: Sequence[Row], shape: str) -> None:
    """Print three tables, or everything as JSON, or the whole grid as CSV."""
    from splitrelay.paper.quadratics import exact

    if shape == "csv":
        emit(build_grid_table(rows), None, shape)
        return
    laws = [exact(row) for row in rows]
    if shape == "json":
        emit(Table((), ()), {"groups": [build_payload(row, law) for row, law in zip(rows, laws, strict=True)]}, shape)
        return
    for table in (build_group_table(rows), build_best_table(rows, laws), build_law_table(rows, laws)):
        emit(table, None, shape)
        say("")


def build_payload(row: Row, law: Exact) -> dict[str, Any]:
    """Return all results of one group at one K, for JSON."""
    problem = row.group.problem
    return {
        "group": int(row.group.name) if row.group.name.isdigit() else row.group.name,
        "K": row.study.K,
        "fedavg": _build_side(row.fedavg),
        "ssl": _build_side(row.ssl),
        "winner": row.winner,
        "delta": problem.delta,
        "zeta_star": math.sqrt(problem.zeta2_star),
        "c_H": problem.c_H,
        "eta_tilde_star": problem.eta_tilde_star(row.study.K),
        "exact": asdict(law),
    }


def _build_side(curves: Curves) -> dict[str, Any]:
    return {
        "eta": curves.eta,
        "error": curves.error,
        "tied": curves.tied,
        "on_edge": curves.on_edge,
        "errors": dict(zip([f"{eta:g}" for eta in curves.etas], curves.final.tolist(), strict=True)),
    }


def build_group_table(rows: Sequence[Row]) -> Table:
    """Build the table of the constants of each group. eta_tilde* depends on K."""
    Ks = sorted({row.study.K for row in rows}, reverse=True)
    cells = []
    for row in (row for row in rows if row.study.K == rows[0].study.K):
        problem = row.group.problem
        c_H = float(math.sqrt(float(problem.c_H @ problem.c_H)))
        constants = (problem.L, problem.mu_mean, problem.delta, math.sqrt(problem.zeta2_star), c_H)
        cells.append((row.group.name, *constants, *(problem.eta_tilde_star(K) for K in Ks)))
    columns = ("group", "L", "mean mu", "delta", "zeta_*", "|c_H|", *(f"η̃* K={K}" for K in Ks))
    return Table(columns, cells, "The groups")


def build_best_table(rows: Sequence[Row], laws: Sequence[Exact]) -> Table:
    """Build the table of each algorithm at its best rate: the simulated mean over seeds beside the exact value."""
    cells = []
    for row, law in zip(rows, laws, strict=True):
        fedavg = (_mark_edge(row.fedavg), row.fedavg.error, law.fedavg_rms)
        exact = law.ssl_rms if law.ssl_mean_absolute is None else law.ssl_mean_absolute
        ssl = (_mark_edge(row.ssl), row.ssl.error, exact)
        cells.append((row.group.name, row.study.K, *fedavg, *ssl, row.winner))
    columns = ("group", "K", "FedAvg η", "error", "exact", "SSL η", "error", "exact", "winner")
    notes = _build_notes(rows)
    if any(law.ssl_mean_absolute is None and law.ssl_rms is not None for law in laws):
        notes.append("exact: the RMS error, since noise or d > 1 leave no simpler law.")
    return Table(columns, cells, "Best rate of the grid, mean final |x - x*| over seeds", notes)


def _mark_edge(curves: Curves) -> str:
    return f"{curves.eta:g}{'=' if curves.tied else ''}{'*' if curves.on_edge else ''}"


def _build_notes(rows: Sequence[Row]) -> list[str]:
    both = [curves for row in rows for curves in (row.fedavg, row.ssl)]
    remarks = []
    if any(curves.on_edge for curves in both):
        remarks.append("* the best rate is on the grid's edge: the grid decides, not the optimum.")
    if any(curves.tied for curves in both):
        remarks.append("= several rates end at the very same error; the smallest of them is shown.")
    return remarks


def build_law_table(rows: Sequence[Row], laws: Sequence[Exact]) -> Table:
    """Build the table of FedAvg's fixed point and of SSL's distribution over all orders, at the same rates."""
    cells = []
    for row, law in zip(rows, laws, strict=True):
        smallest = "~0" if law.ssl_smallest is not None and law.ssl_smallest < NEAR else law.ssl_smallest
        ssl = (law.ssl_mean, law.ssl_rms, law.ssl_mean_absolute, smallest, law.ssl_largest)
        cells.append((row.group.name, row.study.K, law.fedavg_fixed_point, *ssl))
    columns = ("group", "K", "FedAvg limit", "SSL mean", "RMS", "E|x-x*|", "min", "max")
    return Table(columns, cells, "Exact: FedAvg's fixed point, SSL's last error over all orders")


def build_grid_table(rows: Sequence[Row]) -> Table:
    """Build the table of all rates: mean, smallest and largest final error over the seeds."""
    cells = []
    for row in rows:
        for name, curves in (("fedavg", row.fedavg), ("ssl", row.ssl)):
            last = curves.errors[:, :, -1]
            for j, eta in enumerate(curves.etas):
                ends = (float(curves.final[j]), float(last[:, j].min()), float(last[:, j].max()))
                cells.append((row.group.name, row.study.K, name, eta, *ends, j == curves.best))
    return Table(("group", "K", "algorithm", "eta", "mean", "min", "max", "best"), cells)


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
@figure_options
@format_option
def quadratics(
    settings: Sequence[str], path: Path | None, variant: str, out: Path, ending: str, figures: bool, shape: str
) -> None:
    """The paper's simulations on quadratics.

    SSL and FedAvg on the paper's nine pairs of quadratics, each at the rate of the grid that ends nearest to the
    optimum, beside the exact value of what is simulated. With a file of your own, on any quadratics.
    """
    from splitrelay.paper.quadratics import simulate

    studies = _build_studies(parse_settings(settings, KEYS), path, variant)
    if figures and shape == "table":
        prepare_folder(out)
    results = []
    for study in studies:
        detail(
            f"K={study.K}: {len(study.groups)} groups, {len(study.etas)} rates, {len(study.seeds)} seeds, R={study.R}"
        )
        results.append(simulate(study))
    print_tables([row for rows in results for row in rows], shape)
    if figures and shape == "table":
        for drawn in _draw_figures(results, out, ending):
            say(f"figure: {drawn}")


def _build_studies(given: dict[str, list[Any]], path: Path | None, variant: str) -> list[Study]:
    from splitrelay.paper.quadratics import AUTHORS_GRID, PAPER_GRID, PAPER_SEEDS, Study

    sigma2 = given.get("sigma2", [None])[0]
    groups = _load_groups(given, path, variant, sigma2)
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


def _load_groups(given: dict[str, list[Any]], path: Path | None, variant: str, sigma2: float | None) -> Sequence[Group]:
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


def _draw_figures(results: Sequence[Sequence[Row]], out: Path, ending: str) -> list[Path]:
    """Draw all groups for each K, and the three groups of the paper's main text for the first K."""
    from splitrelay.paper.quadratics_figure import draw

    paths = [draw(rows, out / f"quadratics-K{rows[0].study.K}.{ending}") for rows in results]
    if len(results[0]) == 9:
        paths.append(draw(results[0][::3], out / f"quadratics-body-K{results[0][0].study.K}.{ending}"))
    return paths
