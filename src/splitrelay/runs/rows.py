"""Rows of a run: one JSON object for every evaluated round, read from the files of a run directory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from splitrelay.runs.run_directory import RunDirectory, make_damage_error

if TYPE_CHECKING:
    from splitrelay.runs.trainer import EvaluationRow

Row = dict[str, Any]
LAST = 20  # rounds at the end of a run over which accuracies are averaged
REQUIRED = ("round", "test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds")
MEASURED = ("seconds", "socket_", "memory_")  # parts of the names of fields that differ between two equal runs
SKIP_FIELDS = ("skipped", "skipped_visits")  # written by servers only: a simulation has no such fields


def build_row(evaluation: EvaluationRow, seconds_before: float = 0.0) -> Row:
    """Return a row of rounds.jsonl. Only `seconds` depends on time, machine or interruptions.

    Args:
        evaluation: The results after a round.
        seconds_before: The time that earlier processes needed up to the checkpoint from which this one continued.
    """
    validation, score = evaluation.validation, evaluation.score
    return {
        "round": evaluation.r,
        "test_accuracy": score.accuracy,
        "test_loss": score.loss,
        "test_per_class": [None if math.isnan(share) else share for share in score.per_class],
        **({"validation_accuracy": validation.accuracy, "validation_loss": validation.loss} if validation else {}),
        "train_loss": None if evaluation.r == 0 else evaluation.train_loss,
        "bytes_up": evaluation.up,
        "bytes_down": evaluation.down,
        "seconds": seconds_before + evaluation.seconds,
    }


def load_rows(path: Path) -> list[Row]:
    """Return all rows of the run in a directory, or an empty list before its first row.

    An incomplete last line does not count.

    Raises:
        InputError: A line is not a valid row. The error names the file and the line.
    """
    rows = RunDirectory(path).read_rows()
    for number, row in enumerate(rows, start=1):
        problem = _find_problem(row, rows[number - 2] if number > 1 else None)
        if problem:
            raise make_damage_error(path, f", line {number}: {problem}")
    return rows


def _find_problem(row: Any, before: Row | None) -> str:
    """Return why `row` is not a valid row after the row `before`, or an empty string."""
    if not isinstance(row, dict):
        return "this is not a row of a run"
    missing = [name for name in REQUIRED if name not in row]
    if missing:
        return f"the field {missing[0]} is missing"
    if not isinstance(row["round"], int):
        return f"its round is not a whole number but {row['round']!r}"
    if before is not None and row["round"] <= before["round"]:
        return f"round {row['round']} comes after round {before['round']}"
    return ""


def remove_measurements(row: Row) -> Row:
    """Return the fields of a row that are equal in every repetition: no times, no socket bytes, no memory sizes."""
    kept = {name: value for name, value in row.items() if name not in SKIP_FIELDS}
    return {name: value for name, value in kept.items() if not any(part in name for part in MEASURED)}


def compute_final_accuracy(rows: Sequence[Row], column: str = "test_accuracy") -> float | None:
    """Return the mean accuracy over the last `LAST` rounds, or None if no row has the column."""
    values = [row[column] for row in rows if row["round"] > max(0, rows[-1]["round"] - LAST) and column in row]
    return fmean(values) if values else None
