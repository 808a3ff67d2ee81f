"""Tabulate the paper's cells: its values, our values at its rates, and our tuned values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.paper.cells import CELLS, Cell, Printed
from splitrelay.paper.evidence import DEVICES, TUNED
from splitrelay.paper.studies import PAIR
from splitrelay.reports.head_to_head import describe_rate
from splitrelay.reports.labels import get_algorithm_label
from splitrelay.reports.seed_groups import describe_seeds, group_runs
from splitrelay.reports.summary import GOAL, GOALS, build_curve, find_first_round, find_paper_cell, summarise_group
from splitrelay.reports.table_layout import Choice, choose_runs
from splitrelay.runs.records import has_runs, runs_under
from splitrelay.runs.run_directory import LAST
from splitrelay.table import Heading, Table

Found = Mapping[tuple[str, str], Choice]  # by cell and algorithm


def build_cells_table(folder: Path) -> Table:
    """Build one row per cell and algorithm that was run at the paper's rates or tuned."""
    plain, tuned = (_find_choices(folder / name) for name in (DEVICES, TUNED))
    keys = [(name, algorithm) for name in CELLS for algorithm in PAIR]
    keys = [key for key in keys if key in plain or key in tuned]
    if not keys:
        raise InputError(f"no cell of the paper was run in {folder}", limit=f"folders {DEVICES}, {TUNED}")
    columns = ("paper", "at its rate", "tuned", "to 30 %, 75 %", "tuned to 30 %, 75 %", "minutes")
    heads = [Heading("cell"), Heading("algorithm"), *(Heading(name, is_numeric=True) for name in columns)]
    rows = [_build_row(CELLS[name], algorithm, plain, tuned) for name, algorithm in keys]
    notes = describe_seeds([choice.best for choice in (*plain.values(), *tuned.values())])
    caption = (
        f"Test accuracy in %, mean ± standard deviation over seeds and the last {LAST} rounds; the first round in "
        "which the mean over seeds is at least 30 % and at least 75 % (the paper's value in brackets); minutes of a "
        "run at the paper's rate on one core, next to other work. `splitrelay reproduce CELL` repeats a row, "
        "`splitrelay reproduce tuned` the tuned values."
    )
    records = [_build_record(key, plain, tuned) for key in keys]
    return Table(heads, rows, caption=caption, notes=notes, lead=2, name="cell-by-cell", records=records)


def _find_choices(folder: Path) -> dict[tuple[str, str], Choice]:
    runs = runs_under(folder) if has_runs(folder) else []
    if not any(run.rows for run in runs):
        return {}
    choices = [(choice, find_paper_cell(choice.best.spec)) for choice in choose_runs(group_runs(runs)[0], "test", LAST)]
    return {(cell.name, choice.column.algorithm): choice for choice, cell in choices if cell is not None}


def _build_row(cell: Cell, algorithm: str, plain: Found, tuned: Found) -> list[str]:
    key = cell.name, algorithm
    printed: Printed = getattr(cell, algorithm)
    ours, best = plain.get(key), tuned.get(key)
    texts = [
        f"{printed.accuracy:.2f} ± {printed.spread:.2f} ({'-' if printed.rounds is None else printed.rounds})",
        _format_accuracy(ours),
        _format_accuracy(best) + (describe_rate(best.best) if best else ""),
        _format_rounds(ours),
        _format_rounds(best),
        "" if ours is None else f"{_compute_minutes(ours):.1f}",
    ]
    return [cell.name, get_algorithm_label(algorithm), *texts]


def _format_accuracy(choice: Choice | None) -> str:
    if choice is None:
        return ""
    seen = summarise_group(choice.best)
    return f"{100 * seen.mean:.2f} ± {100 * seen.spread:.2f}"


def _format_rounds(choice: Choice | None) -> str:
    return (
        "" if choice is None else ", ".join("-" if found is None else str(found) for found in _find_goal_rounds(choice))
    )


def _find_goal_rounds(choice: Choice) -> list[int | None]:
    seen = build_curve(choice.best)
    return [find_first_round(seen, goal) for goal in (*GOALS.values(), GOAL)]


def _compute_minutes(choice: Choice) -> float:
    """Return the mean duration over seeds."""
    ends = [float(run.rows[-1]["seconds"]) for run in choice.best.runs]
    return sum(ends) / len(ends) / 60


def _build_record(key: tuple[str, str], *studies: Found) -> dict[str, object]:
    found: Sequence[Choice | None] = [study.get(key) for study in studies]
    own: dict[str, object] = {"cell": key[0], "algorithm": key[1]}
    for name, choice in zip(("plain", "tuned"), found, strict=True):
        if choice is not None:
            own[f"{name}_percent"], own[f"{name}_eta"] = (
                100 * summarise_group(choice.best).mean,
                choice.best.spec.optimiser.eta,
            )
            own[f"{name}_rounds"] = _find_goal_rounds(choice)
    return own
