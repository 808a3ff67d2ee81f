"""Copy the rows of all runs in a folder to some trackers, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.records import Run, check_folder, has_runs, is_run, run_at, runs_under
from splitrelay.tracking.base import ENDED, Source, Tracker, TrackerRun
from splitrelay.tracking.mlflow_tracker import MlflowTracker
from splitrelay.tracking.tensorboard_tracker import TensorBoardTracker
from splitrelay.tracking.wandb_tracker import PROJECT, WandbTracker

MAKERS: dict[str, tuple[str, Callable[[str], Tracker]]] = {  # how it is written, and how it is made
    "tensorboard": ("tensorboard:DIR", lambda place: TensorBoardTracker(Path(place).expanduser())),
    "mlflow": ("mlflow:URI", MlflowTracker),
    "wandb": ("wandb or wandb:PROJECT", lambda place: WandbTracker(place or PROJECT)),
}


def make_tracker(text: str) -> Tracker:
    """Return the tracker that a text names: tensorboard:DIR, mlflow:URI, wandb or wandb:PROJECT.

    Raises:
        InputError: There is no such tracker, its place or its package is missing, or it cannot be reached.
    """
    kind, _, place = text.partition(":")
    if kind not in MAKERS:
        raise UnknownName("tracker", kind, MAKERS, f"Known: {', '.join(form for form, _ in MAKERS.values())}.")
    form, make = MAKERS[kind]
    if not place and kind != "wandb":
        raise InputError(f"{kind} needs a place", value=text, limit=form)
    return make(place)


@dataclass(frozen=True)
class Copied:
    """What one update did for a run at a tracker."""

    name: str
    tracker: str
    new: int  # rounds that were written
    round: int  # the last round of the run
    R: int
    state: str


class Tracking:
    """The runs at or below a path, and the trackers to which their rows go. A context manager that closes them.

    Example:

        with Tracking(Path("results"), [make_tracker("tensorboard:logs")]) as tracking:
            tracking.update()
    """

    def __init__(self, path: Path, trackers: Sequence[Tracker]) -> None:
        check_folder(path)
        self.path, self.trackers = path, trackers
        self.open = dict[tuple[str, str], TrackerRun]()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self.open.values():
            run.close()
        self.open = {}

    def update(self) -> list[Copied]:
        """Write all rows that the trackers do not have yet. There may be no runs yet."""
        found = []
        for source in self._list_sources():
            for tracker in self.trackers:
                run = self.open.get((source.name, tracker.label)) or tracker.open_run(source)
                self.open[source.name, tracker.label] = run
                state = source.state  # before the rows are read: of a run that ends now the last rows are not missed
                new = run.update(source)
                if state in ENDED:
                    run.finish(state, source.run.reason)
                rows = source.run.rows
                found.append(
                    Copied(source.name, tracker.label, new, rows[-1]["round"] if rows else 0, source.run.spec.R, state)
                )
        return found

    def is_over(self, copied: Sequence[Copied]) -> bool:
        """Return whether nothing more can come: one run is tracked, and it has ended. A folder may get new runs."""
        return is_run(self.path) and bool(copied) and all(each.state in ENDED for each in copied)

    def _list_sources(self) -> list[Source]:
        if is_run(self.path):
            return [Source(self.path.absolute().name, run_at(self.path))]
        runs: list[Run] = runs_under(self.path) if has_runs(self.path) else []
        return [Source(run.path.relative_to(self.path).as_posix(), run) for run in runs]
