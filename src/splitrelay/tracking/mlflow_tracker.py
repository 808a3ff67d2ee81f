"""MLflow: a run for each run, in one experiment. Tags identify a run, and its metrics say which rounds are there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from splitrelay.tracking.base import (
    ENDED,
    Point,
    Source,
    Tracker,
    TrackerRun,
    Written,
    import_tracker,
    mask_password,
    translate_errors,
)

EXPERIMENT = "splitrelay"
KEY_TAG = "splitrelay.key"
METRICS, PARAMS = 1000, 100  # most of one request
LONGEST = 6000  # characters of a parameter
RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}  # the default waits minutes
STATUS = {"finished": "FINISHED", "diverged": "FAILED", "running": "RUNNING"}
HINT = (
    "Give the address of a server, mlflow:http://HOST:5000. A folder needs MLFLOW_ALLOW_FILE_STORE=true, "
    "and sqlite:///FILE needs the package mlflow."
)


class MlflowRun(TrackerRun):
    """One run of an MLflow server or folder."""

    def __init__(self, client: Any, run_id: str, label: str) -> None:
        self.client, self.run_id, self.label = client, run_id, label
        self.entities = import_tracker("mlflow.entities", "mlflow")
        with self._translate():
            found = client.get_run(run_id)
            histories = {name: client.get_metric_history(run_id, name) for name in found.data.metrics}
        self.status = found.info.status
        last = {name: max(history, key=lambda metric: metric.step) for name, history in histories.items() if history}
        super().__init__({name: Written(metric.step, metric.value) for name, metric in last.items()})

    def write(self, points: Sequence[Point]) -> None:
        """Log all values, in batches of at most METRICS."""
        metrics = (
            self.entities.Metric(name, value, int(1000 * point.time), point.r)
            for point in points
            for name, value in point.values.items()
        )
        with self._translate():
            if self.status != "RUNNING":
                self._set_status("running")
            while batch := list(islice(metrics, METRICS)):
                self.client.log_batch(self.run_id, metrics=batch)

    def finish(self, state: str, reason: str) -> None:
        """Set the status, once."""
        if self.status != STATUS[state]:
            with self._translate():
                if reason:
                    self.client.set_tag(self.run_id, "splitrelay.diverged", reason[:LONGEST])
                self._set_status(state)

    def _set_status(self, state: str) -> None:
        self.status = STATUS[state]
        if state in ENDED:
            self.client.set_terminated(self.run_id, self.status)
        else:
            self.client.update_run(self.run_id, self.status)

    def close(self) -> None:
        """Do nothing: every request is complete."""

    def _translate(self) -> AbstractContextManager[None]:
        return _translate(self.label)


def _translate(label: str, is_start: bool = False) -> AbstractContextManager[None]:
    exceptions = import_tracker("mlflow.exceptions", "mlflow")
    return translate_errors(label, exceptions.MlflowException, OSError, hint=HINT, is_start=is_start)


class MlflowTracker(Tracker):
    """An MLflow server, or a local store."""

    def __init__(self, uri: str) -> None:
        for name, value in RETRIES.items():
            os.environ.setdefault(name, value)
        self.label = f"mlflow:{mask_password(uri)}"
        tracking = import_tracker("mlflow.tracking", "mlflow")
        with _translate(self.label, is_start=True):
            self.client = tracking.MlflowClient(tracking_uri=uri)
            found = self.client.get_experiment_by_name(EXPERIMENT)
            self.experiment = self.client.create_experiment(EXPERIMENT) if found is None else found.experiment_id

    def open_run(self, source: Source) -> MlflowRun:
        """Find the run by its key, or create it with the spec as its parameters."""
        with _translate(self.label):
            found = self.client.search_runs([self.experiment], f"tags.`{KEY_TAG}` = '{source.key}'")
            run_id = found[0].info.run_id if found else self._create_run(source)
        return MlflowRun(self.client, run_id, self.label)

    def _create_run(self, source: Source) -> str:
        spec = source.run.spec
        tags = {KEY_TAG: source.key, "splitrelay.hash": spec.hash}
        run_id: str = self.client.create_run(self.experiment, run_name=source.name, tags=tags).info.run_id
        for batch in _split(list(spec.flatten().items()), PARAMS):
            params = [(name, str(value)[:LONGEST]) for name, value in batch]
            entities = import_tracker("mlflow.entities", "mlflow")
            self.client.log_batch(run_id, params=[entities.Param(name, text) for name, text in params])
        return run_id


def _split(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
