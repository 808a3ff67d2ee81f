"""Compare two runs bit by bit, and verify a run by running it again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.runs.client_records import load_skips, read_clients
from splitrelay.runs.execute import execute
from splitrelay.runs.machine import describe_environment
from splitrelay.runs.packed_records import has_record, read_record
from splitrelay.runs.records import Run, run_at
from splitrelay.runs.run_directory import (
    RunDirectory,
    format_resume_command,
    get_rows_file,
    make_damage_error,
    remove_measurements,
)
from splitrelay.runs.sources import read_environment

Row = dict[str, Any]
SOURCE = "source "  # before the names of the user's files among the differences of environments
NEAR = 0.02  # largest difference of accuracies of near runs, on machines whose bits may differ


@dataclass(frozen=True)
class Difference:
    """The first row in which two runs differ, and its fields. If round is None, only the models differ."""

    round: int | None
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. Measured times are not compared."""

    specs: dict[str, tuple[Any, Any]]  # keys with different values
    environments: dict[str, tuple[Any, Any]]
    rounds: int  # rows that were compared
    difference: Difference | None
    models: bool | None  # whether the final models are equal; None if a run has no model
    gap: float  # largest difference of test accuracies in one round

    @property
    def equal(self) -> bool:
        """Return whether all rows and the models have the same bits."""
        return self.difference is None and self.models is not False


def compare(one: Run, other: Run) -> Comparison:
    """Compare two runs in the rounds that both have.

    Raises:
        InputError: They have no round in common.
    """
    pairs = list(_pair_rows(one.rows, other.rows))
    if not pairs:
        raise InputError(f"{one.path} and {other.path} have no round in common", hint=_describe_rows(one, other))
    models = _have_same_models(one, other)
    return Comparison(
        _find_differences(one.spec.flatten(), other.spec.flatten()),
        _compare_environments(_read_environment(one.path), _read_environment(other.path)),
        len(pairs),
        _find_first_difference(pairs) or (Difference(None, ("model",)) if models is False else None),
        models,
        max((abs(a["test_accuracy"] - b["test_accuracy"]) for a, b in pairs if _have_accuracy(a, b)), default=0.0),
    )


def verify(
    run: Run, folder: Path, *, start: int = 0, rounds: int | None = None, device: str = "cpu"
) -> Iterator[Row | Comparison]:
    """Run it again in an empty folder: its rows as they come, then the comparison with what is recorded.

    From round `start` if a checkpoint of that round is kept; where `rounds` is given, only up to the last recorded
    round that is not later. A record has a row every `every` rounds, and only a recorded row can be compared.
    Visits that the server of a deployed run skipped are left out again, and so are clients that it began without.
    Clients with other software or another CPU level than their server are among the differences of the environments.
    """
    last = _get_last_round(run)
    spec = run.spec.model_copy(update={"R": last if rounds is None else _find_recorded_round(run, rounds)})
    if start > spec.R:
        raise InputError(f"nothing comes after round {start}", limit=f"--from at most {spec.R}", value=start)
    anew = RunDirectory(folder)
    if start:
        _copy_start(run, anew, start)
    told = read_clients(run.path)
    absent = told.find_absent(spec.partition.M) if told else frozenset()
    for progress in execute(spec, anew, device=device, skips=load_skips(run.path, run.rows), absent=absent):
        yield progress.row
    found = run_at(folder)
    ends = spec.R == run.spec.R and run.finished
    comparison = compare(run, found if ends else Run(found.path, run.spec))
    lost = [row["round"] for row in found.rows if row["round"] not in set(run.column("round"))]
    environments = {**comparison.environments, **(told.unlike() if told else {})}
    yield replace(comparison, difference=_find_earlier(comparison.difference, lost), environments=environments)


def _get_last_round(run: Run) -> int:
    """Return the last round of the record. Raise InputError if it has none or is incomplete."""
    rows, file, directory = run.rows, get_rows_file(run.path), RunDirectory(run.path)
    last: int = rows[-1]["round"] if rows else 0
    if file == directory.published and has_record(directory.digest) and last < run.spec.R:
        raise make_damage_error(run.path, f" ends after line {len(rows)}, round {last} of {run.spec.R}")
    kept = max(directory.checkpoints.list_rounds(), default=0)
    if kept > last and not directory.is_locked():
        raise make_damage_error(
            run.path, f" ends after line {len(rows)}, round {last}, but the run went on to round {kept}"
        )
    if not last:
        hint = f"To continue the run: {format_resume_command(run.path)}"
        raise InputError(f"{file} has no row after round 0, so there is nothing to compare", hint=hint)
    return last


def _find_recorded_round(run: Run, rounds: int) -> int:
    """Return the last recorded round that is not after `rounds`. Raise InputError if it is round 0."""
    recorded = [row["round"] for row in run.rows if row["round"] > 0]
    found: int = max((r for r in recorded if r <= rounds), default=0)
    if not found:
        limit = f"--rounds at least {recorded[0]}"
        raise InputError("no row of the record is before this round", value=rounds, limit=limit)
    return found


def _describe_rows(*runs: Run) -> str:
    return " ".join(f"{run.path} has {len(run.rows)} rows (every={run.spec.every})." for run in runs)


def _find_earlier(difference: Difference | None, lost: Sequence[int]) -> Difference | None:
    """Return the first difference, if rows that the record does not have count as differences."""
    if not lost or (difference and difference.round is not None and difference.round < lost[0]):
        return difference
    return Difference(lost[0], ("no row in the record",))


def is_same_machine(comparison: Comparison) -> bool:
    """Return whether equal bits are promised: the same versions on the same processor."""
    unlike = comparison.environments.keys()
    return not unlike & {"torch", "cpu", "engine", "splitrelay"} and not any(" of client " in name for name in unlike)


def _copy_start(run: Run, anew: RunDirectory, start: int) -> None:
    """Copy the rows up to round `start` and its checkpoint to the new run."""
    kept = RunDirectory(run.path).checkpoints
    if start not in kept.list_rounds():
        known = ", ".join(map(str, kept.list_rounds())) or "none"
        raise InputError(f"no checkpoint of round {start} is kept", limit=f"one of: {known}", value=start)
    kept.copy(start, anew.path / "checkpoints")
    for row in run.rows:
        if row["round"] <= start:
            anew.append_row(row)


def _pair_rows(one: Sequence[Row], other: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    rows = {row["round"]: row for row in other}
    return ((row, rows[row["round"]]) for row in one if row["round"] in rows)


def _find_first_difference(pairs: Sequence[tuple[Row, Row]]) -> Difference | None:
    for one, other in pairs:
        unequal = _find_differences(remove_measurements(one), remove_measurements(other))
        fields = tuple(name for name in unequal if _is_scored(one, other) or not name.startswith("test_"))
        if fields:
            return Difference(one["round"], fields)
    return None


def _is_scored(*rows: Row) -> bool:
    """Return whether all rows have scores: a deployed run has none of a round at which its evaluator was away."""
    return not any(math.isnan(row["test_loss"]) for row in rows)


def _have_accuracy(*rows: Row) -> bool:
    """Return whether all rows have an accuracy: they are scored, and their targets are not real numbers."""
    return not any(math.isnan(row["test_accuracy"]) for row in rows)


def _find_differences(one: Row, other: Row) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (one.get(name), other.get(name)) for name in [*one, *other]}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and not _are_nan(a, b)}


def _are_nan(*values: Any) -> bool:
    """Return whether all values are NaN, such as the accuracy where the targets are real numbers."""
    return all(isinstance(value, float) and math.isnan(value) for value in values)


def _have_same_models(one: Run, other: Run) -> bool | None:
    hashes = [model_hash(run.path) for run in (one, other) if run.finished]
    same_end = len(hashes) == 2 and one.rows[-1]["round"] == other.rows[-1]["round"]
    return hashes[0] == hashes[1] if same_end and None not in hashes else None


def model_hash(path: Path) -> str | None:
    """Return the checksum of a run's final model. Published records have it without the weights."""
    model, noted = path / "model.safetensors", path / "model.sha256"
    if model.exists():
        return hashlib.sha256(model.read_bytes()).hexdigest()
    return read_record(noted).decode("ascii").strip() if has_record(noted) else None


def _read_environment(path: Path) -> Row:
    """Return the environment of a run, or that of this machine if the record has none."""
    content = read_environment(path) or describe_environment()
    sources = content.pop("sources", {})
    content.pop("changes", None)
    return {**content, **{f"{SOURCE}{name}": digest for name, digest in sources.items()}}


def _compare_environments(one: Row, other: Row) -> dict[str, tuple[Any, Any]]:
    """Compare two environments. Commits and the user's files are compared only if both records have them."""
    found = _find_differences(one, other)
    have_sources = all(any(name.startswith(SOURCE) for name in each) for each in (one, other))
    have_commits = all("commit" in each for each in (one, other))
    return {
        name: pair
        for name, pair in found.items()
        if (have_commits if name in ("commit", "modified") else have_sources or not name.startswith(SOURCE))
    }


def find_changed_sources(comparison: Comparison) -> list[str]:
    """Return the names of the user's files that differ."""
    return [name.removeprefix(SOURCE) for name in comparison.environments if name.startswith(SOURCE)]
