"""A run that does not go on where it stopped: set back to a checkpoint, or begun again. Nothing is deleted.

What no longer counts goes to OUT/set-aside/NNNN-back-to-R or NNNN-from-scratch. Journaled visits go first: if the
server is killed in between, no visit of the history that is given up can be found again. Fences only grow, as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from splitrelay.deploy.journal import Journal
from splitrelay.errors import InputError
from splitrelay.runs.run_directory import RunDirectory


def go_back(directory: RunDirectory, journal: Journal, r: int) -> None:
    """Set the run back to the checkpoint of round r: later rows, checkpoints and visits are set aside."""
    whole = directory.checkpoints.list_complete_rounds()
    if r not in whole:
        limit = f"one of {', '.join(map(str, whole))}" if whole else None
        hint = "serve --keep-checkpoints keeps more of them." if whole else "Begin again with --from-scratch."
        raise InputError("there is no whole checkpoint to go back to", value=r, limit=limit, hint=hint)
    rows = directory.read_intact_rows()
    later = [*journal.files_from(r), *directory.checkpoints.list_files_after(r), *_results(directory)]
    folder = directory.set_aside(f"back-to-{r}", later, copies=[directory.rounds])
    directory.write_rows([row for row in rows if row["round"] <= r])
    dropped = sum(row["round"] > r for row in rows)
    journal.note("back-to", round=r, rows=dropped, set_aside="" if folder is None else folder.name)


def start_again(directory: RunDirectory, journal: Journal) -> None:
    """Begin the run again at round 0, with the same clients; all that it had is set aside."""
    files = [
        *journal.files_from(0),
        *directory.checkpoints.list_files_after(-1),
        directory.rounds,
        *_results(directory),
    ]
    folder = directory.set_aside("from-scratch", files)
    journal.note("from-scratch", round=0, set_aside="" if folder is None else folder.name)


def _results(directory: RunDirectory) -> Iterator[Path]:
    """The files that a run ends with."""
    yield from (directory.model, directory.digest, directory.diverged)
    yield from (directory.path / name for name in ("rounds.csv", "report.html"))
