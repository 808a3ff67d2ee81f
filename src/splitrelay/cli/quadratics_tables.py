"""What `splitrelay quadratics` prints: the groups, the best rates beside exact values, the laws behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from splitrelay.cli.console import say
from splitrelay.cli.table_output import Table, emit

if TYPE_CHECKING:
    from splitrelay.paper.quadratics import Curves, Row
    from splitrelay.paper.quadratics_exact import Exact

NEAR = 1e-9  # nearer to x* than this is printed as ~0: some order ends there


def report(rows: Sequence[Row], shape: str) -> None:
    """Three tables to read, or everything as JSON, or the whole grid as CSV."""
    from splitrelay.paper.quadratics_exact import exact

    if shape == "csv":
        emit(grid_table(rows), None, shape)
        return
    laws = [exact(row) for row in rows]
    if shape == "json":
        emit(Table((), ()), {"groups": [payload(row, law) for row, law in zip(rows, laws, strict=True)]}, shape)
        return
    for table in (group_table(rows), best_table(rows, laws), law_table(rows, laws)):
        emit(table, None, shape)
        say("")


def payload(row: Row, law: Exact) -> dict[str, Any]:
    """All that is known of one group at one K."""
    problem = row.group.problem
    return {
        "group": _name(row.group.name),
        "K": row.study.K,
        "fedavg": _side(row.fedavg),
        "ssl": _side(row.ssl),
        "winner": row.winner,
        "delta": problem.delta,
        "zeta_star": math.sqrt(problem.zeta2_star),
        "c_H": problem.c_H,
        "eta_tilde_star": problem.eta_tilde_star(row.study.K),
        "exact": asdict(law),
    }


def _name(name: str) -> int | str:
    return int(name) if name.isdigit() else name


def _side(curves: Curves) -> dict[str, Any]:
    return {
        "eta": curves.eta,
        "error": curves.error,
        "tied": curves.tied,
        "on_edge": curves.on_edge,
        "errors": dict(zip([f"{eta:g}" for eta in curves.etas], curves.final.tolist(), strict=True)),
    }


def group_table(rows: Sequence[Row]) -> Table:
    """The constants of each group; eta_tilde* depends on K."""
    Ks = sorted({row.study.K for row in rows}, reverse=True)
    cells = []
    for row in (row for row in rows if row.study.K == rows[0].study.K):
        problem = row.group.problem
        c_H = float(math.sqrt(float(problem.c_H @ problem.c_H)))
        constants = (problem.L, problem.mu_mean, problem.delta, math.sqrt(problem.zeta2_star), c_H)
        cells.append((row.group.name, *constants, *(problem.eta_tilde_star(K) for K in Ks)))
    columns = ("group", "L", "mean mu", "delta", "zeta_*", "|c_H|", *(f"η̃* K={K}" for K in Ks))
    return Table(columns, cells, "The groups")


def best_table(rows: Sequence[Row], laws: Sequence[Exact]) -> Table:
    """Each algorithm at its best rate: simulated mean over seeds beside the exact value."""
    cells = []
    for row, law in zip(rows, laws, strict=True):
        fedavg = (_marked(row.fedavg), row.fedavg.error, law.fedavg_rms)
        ssl = (_marked(row.ssl), row.ssl.error, _first(law.ssl_mean_absolute, law.ssl_rms))
        cells.append((row.group.name, row.study.K, *fedavg, *ssl, row.winner))
    columns = ("group", "K", "FedAvg η", "error", "exact", "SSL η", "error", "exact", "winner")
    notes = [*_remarks(rows), *(["exact: the RMS error, since noise or d > 1 leave no simpler law."] * _only_rms(laws))]
    return Table(columns, cells, "Best rate of the grid, mean final |x - x*| over seeds", notes)


def _first(value: float | None, other: float | None) -> float | None:
    return other if value is None else value


def _only_rms(laws: Sequence[Exact]) -> bool:
    return any(law.ssl_mean_absolute is None and law.ssl_rms is not None for law in laws)


def _marked(curves: Curves) -> str:
    return f"{curves.eta:g}{'=' if curves.tied else ''}{'*' if curves.on_edge else ''}"


def _remarks(rows: Sequence[Row]) -> list[str]:
    both = [curves for row in rows for curves in (row.fedavg, row.ssl)]
    remarks = []
    if any(curves.on_edge for curves in both):
        remarks.append("* the best rate is on the grid's edge: the grid decides, not the optimum.")
    if any(curves.tied for curves in both):
        remarks.append("= several rates end at the very same error; the smallest of them is shown.")
    return remarks


def law_table(rows: Sequence[Row], laws: Sequence[Exact]) -> Table:
    """FedAvg's fixed point, and SSL's law over all orders, at the same rates."""
    cells = []
    for row, law in zip(rows, laws, strict=True):
        ssl = (law.ssl_mean, law.ssl_rms, law.ssl_mean_absolute, _near(law.ssl_smallest), law.ssl_largest)
        cells.append((row.group.name, row.study.K, law.fedavg_fixed_point, *ssl))
    columns = ("group", "K", "FedAvg limit", "SSL mean", "RMS", "E|x-x*|", "min", "max")
    return Table(columns, cells, "Exact: FedAvg's fixed point, SSL's last error over all orders")


def _near(smallest: float | None) -> float | str | None:
    return "~0" if smallest is not None and smallest < NEAR else smallest


def grid_table(rows: Sequence[Row]) -> Table:
    """Every rate of the grid: mean, smallest and largest final error over the seeds."""
    cells = []
    for row in rows:
        for name, curves in (("fedavg", row.fedavg), ("ssl", row.ssl)):
            last = curves.errors[:, :, -1]
            for j, eta in enumerate(curves.etas):
                ends = (float(curves.final[j]), float(last[:, j].min()), float(last[:, j].max()))
                cells.append((row.group.name, row.study.K, name, eta, *ends, j == curves.best))
    return Table(("group", "K", "algorithm", "eta", "mean", "min", "max", "best"), cells)
