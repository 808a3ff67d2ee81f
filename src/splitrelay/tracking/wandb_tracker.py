"""Weights & Biases: a run for each run, online or offline as its own settings say (WANDB_MODE, `wandb login`).

An offline run cannot be asked for its rounds, so the last round is kept in a file beside the offline runs. It is saved
after the rows. If the process is killed in between, the same rows are sent again with the same steps, which W&B drops.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.structured_text import parse_json
from splitrelay.tracking.base import Point, Source, Tracker, TrackerRun, Written, import_tracker, translate_errors

PROJECT = "splitrelay"
POSITIONS = "splitrelay-track.json"
HINT = "Log in with wandb login, or set WANDB_MODE=offline and send the runs later with wandb sync."


class WandbRun(TrackerRun):
    """One run. A second call continues it under the same id."""

    def __init__(self, tracker: WandbTracker, source: Source) -> None:
        self.tracker, self.source = tracker, source
        self.run: Any = None
        self.id, self.exit_code = f"{tracker.project}/{source.key}", 0
        super().__init__(tracker.read_position(self.id))

    def write(self, points: Sequence[Point]) -> None:
        """Log one dictionary for each round, with the round as the step."""
        with self.tracker.translate():
            self.run = self.run or self._start()
            for point in points:
                self.run.log(point.values, step=point.r)
                self.written.update({name: Written(point.r, value) for name, value in point.values.items()})

    def _start(self) -> Any:
        wandb, source = self.tracker.wandb, self.source
        entity, _, project = self.tracker.project.rpartition("/")
        settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        return wandb.init(
            entity=entity or None,
            project=project,
            id=source.key,
            name=source.name,
            resume="allow",
            config=source.run.spec.flatten(),
            dir=str(self.tracker.folder.parent),
            settings=settings,
        )

    def finish(self, state: str, reason: str) -> None:
        """Remember that the run failed, for the exit code at the end."""
        self.exit_code = int(state == "diverged")
        if self.run is not None and reason:
            self.run.summary["diverged"] = reason

    def close(self) -> None:
        """Wait until all rows are stored or sent, then save the position."""
        if self.run is not None:
            with self.tracker.translate():
                self.run.finish(exit_code=self.exit_code)
            self.run = None
            self.tracker.save_position(self.id, self.written)


class WandbTracker(Tracker):
    """A project of Weights & Biases.

    Args:
        project: PROJECT or ENTITY/PROJECT.
    """

    def __init__(self, project: str = PROJECT) -> None:
        self.wandb = import_tracker("wandb", "wandb")
        self.project, self.label = project, f"wandb:{project}"
        self.folder = Path(os.environ.get("WANDB_DIR", ".")) / "wandb"

    def translate(self) -> Any:
        """Turn errors of wandb into one line."""
        return translate_errors(self.label, self.wandb.Error, OSError, hint=HINT)

    def open_run(self, source: Source) -> WandbRun:
        """Return the run. It is started with the first new row, so that a second call leaves no empty run."""
        return WandbRun(self, source)

    def read_position(self, name: str) -> dict[str, Written]:
        """Return the last value of each name that was logged."""
        return {key: Written(int(r), float(value)) for key, (r, value) in self._read().get(name, {}).items()}

    def save_position(self, name: str, written: dict[str, Written]) -> None:
        """Save the last values that were logged."""
        content = {**self._read(), name: {key: (last.r, last.value) for key, last in written.items()}}
        write_text(self.folder / POSITIONS, json.dumps(content, indent=1) + "\n")

    def _read(self) -> dict[str, Any]:
        file = self.folder / POSITIONS
        if not file.exists():
            return {}
        try:
            return dict(parse_json(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            hint = "It says which rows were sent. Remove it, and all rows are sent again."
            raise InputError(f"{file} is damaged", hint=hint) from None
