"""TensorBoard: event files in a folder, one folder for each run. The events themselves say which rounds are there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import build_write_error
from splitrelay.errors import InputError
from splitrelay.tracking.base import Point, Source, Tracker, TrackerRun, Written, import_tracker

SPEC_TAG = "spec"


class TensorBoardRun(TrackerRun):
    """The event files of one run."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder, self.spec, self.key = folder, source.run.spec.to_toml(), source.key
        self.has_spec, written = self._read_events()
        super().__init__(written)
        self.writer: Any = None  # opened at the first new value, so that a second call writes no empty file

    def _read_events(self) -> tuple[bool, dict[str, Written]]:
        """Return whether the spec is there, and the last value of each name. A torn last event does not count."""
        if not self.folder.is_dir():
            return False, {}
        accumulator = import_tracker("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
        events = accumulator.EventAccumulator(str(self.folder), size_guidance={accumulator.SCALARS: 0})
        events.Reload()
        tags = events.Tags()
        scalars = {name: max(events.Scalars(name), key=lambda event: event.step) for name in tags["scalars"]}
        written = {name: Written(event.step, event.value) for name, event in scalars.items()}
        specs = events.Tensors(SPEC_TAG) if SPEC_TAG in tags["tensors"] else []
        for spec in specs:
            if self.key.encode() not in spec.tensor_proto.string_val[0]:
                hint = "Use another folder, or delete this one."
                raise InputError(f"{self.folder} has the events of another run", hint=hint)
        return bool(specs), written

    def write(self, points: Sequence[Point]) -> None:
        """Append one event for each round, and flush."""
        events = import_tracker("tensorboard.compat.proto.event_pb2", "tensorboard")
        summaries = import_tracker("tensorboard.compat.proto.summary_pb2", "tensorboard")
        try:
            self.writer = self.writer or self._open_file(points[0].time)
            if not self.has_spec:
                text = _build_text(f"# {self.key}\n{self.spec}")
                self._append(events.Event(wall_time=points[0].time, step=0, summary=text))
                self.has_spec = True
            for point in points:
                values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
                summary = summaries.Summary(value=values)
                self._append(events.Event(wall_time=point.time, step=point.r, summary=summary))
            self.writer.flush()
        except OSError as error:
            raise build_write_error(self.folder, error) from None

    def _open_file(self, now: float) -> Any:
        """Open a new event file whose name comes after those of all others.

        TensorBoard reads files in the order of their names and drops rounds that come after a later one. Its own
        writer names files by the second and the process, which is not enough.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        stamps = [file.name.split(".")[3:5] for file in self.folder.glob("events.out.tfevents.*.*")]
        known = [tuple(map(int, stamp)) for stamp in stamps if len(stamp) == 2 and "".join(stamp).isdecimal()]
        second, number = max([(int(time.time()), 0), *((old, count + 1) for old, count in known)])
        records = import_tracker("tensorboard.summary.writer.record_writer", "tensorboard")
        events = import_tracker("tensorboard.compat.proto.event_pb2", "tensorboard")
        file = (self.folder / f"events.out.tfevents.{second:010d}.{number:06d}.splitrelay").open("xb")
        self.writer = records.RecordWriter(file)
        self._append(events.Event(wall_time=now, file_version="brain.Event:2"))
        return self.writer

    def _append(self, event: Any) -> None:
        self.writer.write(event.SerializeToString())

    def finish(self, state: str, reason: str) -> None:
        """Do nothing: TensorBoard has no state of a run."""

    def close(self) -> None:
        """Flush and close the event file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def _build_text(text: str) -> Any:
    """Return a summary for TensorBoard's text tab. Four spaces make it a block of code."""
    summaries = import_tracker("tensorboard.compat.proto.summary_pb2", "tensorboard")
    tensors = import_tracker("tensorboard.compat.proto.tensor_pb2", "tensorboard")
    types = import_tracker("tensorboard.compat.proto.types_pb2", "tensorboard")
    shown = "\n".join(f"    {line}" for line in text.splitlines())
    metadata = summaries.SummaryMetadata(plugin_data=summaries.SummaryMetadata.PluginData(plugin_name="text"))
    tensor = tensors.TensorProto(dtype=types.DT_STRING, string_val=[shown.encode()])
    return summaries.Summary(value=[summaries.Summary.Value(tag=SPEC_TAG, metadata=metadata, tensor=tensor)])


class TensorBoardTracker(Tracker):
    """A folder for `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        import_tracker("tensorboard.summary.writer.record_writer", "tensorboard")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file", hint="tensorboard:DIR takes a folder.")
        self.folder, self.label = folder, f"tensorboard:{folder}"

    def open_run(self, source: Source) -> TensorBoardRun:
        """Return the run in its folder."""
        return TensorBoardRun(self.folder / source.name, source)
