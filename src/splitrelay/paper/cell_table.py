"""The paper's cells one by one: what it prints, what we saw at its rate, and what tuning made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.paper.cells import CELLS, Cell, Printed
from splitrelay.paper.evidence import DEVICES, TUNED
from splitrelay.paper.studies import PAIR
from splitrelay.reports.head_to_head import rate_said
from splitrelay.reports.labels import algorithm_label
from splitrelay.reports.seed_groups import grouped, seeds_said
from splitrelay.reports.summary import GOAL, GOALS, curve, first_round, papers_cell, summarised
from splitrelay.reports.table_layout import Choice, laid_out
from splitrelay.runs.records import has_runs, runs_under
from splitrelay.runs.rows import LAST
from splitrelay.table import Heading, Table

Found = Mapping[tuple[str, str], Choice]  # by cell and algorithm


def cells_table(folder: Path) -> Table:
    """A row for each cell and algorithm that was run at the paper's rates, or tuned."""
    plain, tuned = (_found(folder / name) for name in (DEVICES, TUNED))
    keys = [(name, algorithm) for name in CELLS for algorithm in PAIR]
    keys = [key for key in keys if key in plain or key in tuned]
    if not keys:
        raise InputError(f"no cell of the paper was run in {folder}", limit=f"folders {DEVICES}, {TUNED}")
    said = ("paper", "at its rate", "tuned", "to 30 %, 75 %", "tuned to 30 %, 75 %", "minutes")
    heads = [Heading("cell"), Heading("algorithm"), *(Heading(name, is_numeric=True) for name in said)]
    rows = [_row(CELLS[name], algorithm, plain, tuned) for name, algorithm in keys]
    notes = seeds_said([choice.best for choice in (*plain.values(), *tuned.values())])
    caption = (
        f"Test accuracy in %, mean ± standard deviation over seeds and the last {LAST} rounds; the first round in "
        "which the mean over seeds is at 30 and at 75 % or above (in brackets what the paper prints of that); minutes "
        "that a run at the paper's rate took on one core, beside other work. `splitrelay reproduce CELL` runs a row "
        "again, `splitrelay reproduce tuned` what is tuned."
    )
    records = [_record(key, plain, tuned) for key in keys]
    return Table(heads, rows, caption=caption, notes=notes, lead=2, name="cell-by-cell", records=records)


def _found(folder: Path) -> dict[tuple[str, str], Choice]:
    runs = runs_under(folder) if has_runs(folder) else []
    if not any(run.rows for run in runs):
        return {}
    choices = [(choice, papers_cell(choice.best.spec)) for choice in laid_out(grouped(runs)[0], "test", LAST)]
    return {(cell.name, choice.column.algorithm): choice for choice, cell in choices if cell is not None}


def _row(cell: Cell, algorithm: str, plain: Found, tuned: Found) -> list[str]:
    key = cell.name, algorithm
    told: Printed = getattr(cell, algorithm)
    ours, best = plain.get(key), tuned.get(key)
    texts = [
        f"{told.accuracy:.2f} ± {told.spread:.2f} ({'-' if told.rounds is None else told.rounds})",
        _accuracy(ours),
        _accuracy(best) + (rate_said(best) if best else ""),
        _rounds(ours),
        _rounds(best),
        "" if ours is None else f"{_minutes(ours):.1f}",
    ]
    return [cell.name, algorithm_label(algorithm), *texts]


def _accuracy(choice: Choice | None) -> str:
    if choice is None:
        return ""
    seen = summarised(choice.best)
    return f"{100 * seen.mean:.2f} ± {100 * seen.spread:.2f}"


def _rounds(choice: Choice | None) -> str:
    return "" if choice is None else ", ".join("-" if found is None else str(found) for found in _goals(choice))


def _goals(choice: Choice) -> list[int | None]:
    seen = curve(choice.best)
    return [first_round(seen, goal) for goal in (*GOALS.values(), GOAL)]


def _minutes(choice: Choice) -> float:
    """The mean over seeds."""
    ends = [float(run.rows[-1]["seconds"]) for run in choice.best.runs]
    return sum(ends) / len(ends) / 60


def _record(key: tuple[str, str], *studies: Found) -> dict[str, object]:
    found: Sequence[Choice | None] = [study.get(key) for study in studies]
    own: dict[str, object] = {"cell": key[0], "algorithm": key[1]}
    for name, choice in zip(("plain", "tuned"), found, strict=True):
        if choice is not None:
            own[f"{name}_percent"], own[f"{name}_eta"] = (
                100 * summarised(choice.best).mean,
                choice.best.spec.optimiser.eta,
            )
            own[f"{name}_rounds"] = _goals(choice)
    return own
