"""Rows at experiment trackers, read back with the trackers' own readers."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.records import Run, run_at
from splitrelay.tracking import base
from splitrelay.tracking.base import list_values
from splitrelay.tracking.session import Tracking, make_tracker
from tests.support.deployment import LocalDeployment, small_spec
from tests.support.error_fields import expect_error
from tests.support.run_directories import row, write_run

Scalars = dict[str, list[tuple[int, float]]]


def track(path: Path, *words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["track", str(path), *words, "--format", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def read_scalars(folder: Path) -> Scalars:
    from tensorboard.backend.event_processing import event_accumulator  # noqa: PLC0415 - it takes seconds

    events = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected_scalars(run: Run) -> Scalars:
    found: Scalars = {}
    for each in run.rows:
        for name, value in list_values(each).items():
            found.setdefault(name, []).append((each["round"], pytest.approx(value, rel=1e-6)))
    return found


def append_rows(path: Path, *rows: dict[str, Any]) -> None:
    with (path / "rounds.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def test_lists_become_names_and_missing_values_are_left_out() -> None:
    values = list_values(
        {"round": 3, "a": 1, "b": None, "c": float("nan"), "d": [0.5, None, 2], "e": "text", "f": True}
    )
    assert values == {"a": 1.0, "d/0": 0.5, "d/2": 2.0}


def test_tensorboard_has_the_rows_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "sweep" / "a", [0.1, 0.5, 0.75])
    write_run(tmp_path / "runs" / "b", [0.1, 0.2])
    logs = tmp_path / "logs"
    first = track(tmp_path / "runs", "--to", f"tensorboard:{logs}")
    assert [(each["name"], each["new"]) for each in first] == [("b", 2), ("sweep/a", 3)]
    assert read_scalars(logs / "sweep" / "a") == expected_scalars(run)
    files = sorted(logs.rglob("events*"))
    assert [each["new"] for each in track(tmp_path / "runs", "--to", f"tensorboard:{logs}")] == [0, 0]
    assert sorted(logs.rglob("events*")) == files  # not even an empty file


def test_rows_that_come_later_are_added(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, [0.1, 0.5], "R=4")
    with Tracking(path, [make_tracker(f"tensorboard:{tmp_path / 'logs'}")]) as tracking:
        assert [each.new for each in tracking.update()] == [2]
        append_rows(path, row(2, 0.6))
        with (path / "rounds.jsonl").open("a") as file:
            file.write('{"round": 3, "test_')  # a row that is being written
        assert [(each.new, each.state) for each in tracking.update()] == [(1, "stopped")]
        assert not tracking.is_over(tracking.update())
    assert read_scalars(tmp_path / "logs" / "run") == expected_scalars(run_at(path))
    assert track(path, "--to", f"tensorboard:{tmp_path / 'logs'}")[0]["new"] == 0


def test_a_torn_event_and_a_missing_value_are_written_again(tmp_path: Path) -> None:
    path, logs = tmp_path / "run", tmp_path / "logs"
    run = write_run(path, [0.1, 0.5, 0.6])
    track(path, "--to", f"tensorboard:{logs}")
    (file,) = logs.rglob("events*")
    file.write_bytes(file.read_bytes()[:-5])  # killed while it wrote the last round
    assert track(path, "--to", f"tensorboard:{logs}")[0]["new"] == 1
    assert read_scalars(logs / "run") == expected_scalars(run)


def test_another_run_at_the_same_place_is_refused(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_run(tmp_path / "one" / "run", [0.1, 0.5])
    write_run(tmp_path / "two" / "run", [0.1, 0.6])  # the same spec with another result
    write_run(tmp_path / "three" / "run", [0.1, 0.2], "eta=0.01")
    track(tmp_path / "one", "--to", f"tensorboard:{logs}")
    with expect_error(InputError, what="test_accuracy", value=0.5, hint=True):
        track(tmp_path / "two", "--to", f"tensorboard:{logs}")
    with expect_error(InputError, what=str(logs / "run"), hint=True):
        track(tmp_path / "three", "--to", f"tensorboard:{logs}")


def test_the_rows_of_a_deployed_run(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=5"), tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    path = stage.serving.directory.path
    (found,) = track(path, "--to", f"tensorboard:{tmp_path / 'logs'}")
    assert (found["new"], found["state"]) == (3, "finished")
    scalars = read_scalars(tmp_path / "logs" / path.name)
    assert scalars == expected_scalars(run_at(path)) and "bytes_up" in scalars


def test_mlflow_has_the_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    path, uri = tmp_path / "runs" / "a", (tmp_path / "mlruns").as_uri()
    write_run(path, [0.1, 0.5], "R=2", "eta=0.25")
    assert track(tmp_path / "runs", "--to", f"mlflow:{uri}")[0]["new"] == 2
    append_rows(path, row(2, 0.75))
    (path / "diverged.txt").write_text("the loss became nan\n")
    assert [track(tmp_path / "runs", "--to", f"mlflow:{uri}")[0]["new"] for _ in range(2)] == [1, 0]

    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - it takes seconds

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("splitrelay")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("a", "FAILED")
    assert found.data.params["optimiser.eta"] == "0.25"
    assert found.data.tags["splitrelay.diverged"] == "the loss became nan"
    names = expected_scalars(run_at(path))
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in names}
    assert {name: [(m.step, m.value) for m in history] for name, history in histories.items()} == names


def test_an_error_of_mlflow_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    write_run(tmp_path / "run", [0.1, 0.2])
    with expect_error(InputError, hint="MLFLOW_ALLOW_FILE_STORE=true") as caught:
        track(tmp_path / "run", "--to", f"mlflow:{tmp_path / 'mlruns'}")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError) as masked:
        track(tmp_path / "run", "--to", "mlflow:foo://user:secret@host")
    assert "secret" not in str(masked.value)


def test_wandb_offline_has_the_rows_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, [0.1, 0.5], "R=4")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    script = "from splitrelay.cli.main import run; run()"
    command = [sys.executable, "-c", script, "track", str(path), "--to", "wandb:demo", "--format", "json"]

    def call() -> int:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        new: int = json.loads(done.stdout)[0]["new"]
        return new

    assert call() == 2
    append_rows(path, row(2, 0.6))
    assert call() == 1
    history = read_history(tmp_path / "wandb")
    assert [each["_step"] for each in history] == [0, 1, 2]
    for each, expected in zip(history, run_at(path).rows, strict=True):
        values = list_values(expected)
        assert {name: each[name] for name in values} == pytest.approx(values)


def test_ctrl_c_ends_following_and_the_next_call_continues(tmp_path: Path) -> None:
    path, place = tmp_path / "run", f"tensorboard:{tmp_path / 'logs'}"
    write_run(path, [0.1, 0.5], "R=9")
    script = "from splitrelay.cli.main import run; run()"
    command = [sys.executable, "-c", script, "track", str(path), "--to", place, "--follow", "--interval", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "round 1 of 9" in process.stderr.readline()  # the rows so far are written
        append_rows(path, row(2, 0.6))
        assert "round 2 of 9" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    append_rows(path, row(3, 0.7))
    assert track(path, "--to", place)[0]["new"] == 1
    assert read_scalars(tmp_path / "logs" / "run") == expected_scalars(run_at(path))


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, [0.1, 0.5], "R=1")
    (path / "diverged.txt").write_text("the loss became nan\n")
    (found,) = track(path, "--to", f"tensorboard:{tmp_path / 'logs'}", "--follow")
    assert (found["new"], found["state"]) == (2, "diverged")


@pytest.mark.parametrize(
    ("place", "kind", "fields"),
    [
        ("tensorbord:logs", UnknownName, {"name": "tensorbord"}),
        ("tensorboard", InputError, {"limit": "tensorboard:DIR"}),
        ("mlflow:", InputError, {"limit": "mlflow:URI"}),
        (",", InputError, {"hint": True}),
    ],
)
def test_a_wrong_tracker_is_refused(tmp_path: Path, place: str, kind: Any, fields: dict[str, Any]) -> None:
    write_run(tmp_path / "run", [0.1, 0.2])
    with expect_error(kind, **fields):
        track(tmp_path / "run", "--to", place)


def test_a_missing_folder_or_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with expect_error(InputError, what=str(tmp_path / "none"), hint=True):
        track(tmp_path / "none", "--to", f"tensorboard:{tmp_path / 'logs'}")
    (tmp_path / "empty").mkdir()
    with expect_error(InputError, what=str(tmp_path / "empty"), hint="--follow"):
        track(tmp_path / "empty", "--to", f"tensorboard:{tmp_path / 'logs'}")
    (tmp_path / "file").write_text("")
    with expect_error(InputError, what=str(tmp_path / "file"), hint=True):
        track(tmp_path / "empty", "--to", f"tensorboard:{tmp_path / 'file'}")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with expect_error(InputError, what="wandb", hint="splitrelay[track]"):
        base.import_tracker("wandb", "wandb")


# Read the file of an offline W&B run: a LevelDB log whose records are W&B's own protobuf messages.
BLOCK, FILE_HEADER, HEADER = 32768, 7, struct.Struct("<IHB")  # checksum, length, type
FULL, FIRST, LAST = 1, 2, 4


def iterate_records(file: Path) -> Iterator[Any]:
    """Yield all messages of a file run-*.wandb."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 - it takes seconds

    content, at, parts = file.read_bytes(), FILE_HEADER, b""
    assert content[:4] == b":W&B"
    while at + HEADER.size <= len(content):
        if BLOCK - at % BLOCK < HEADER.size:  # the end of a block is filled with zeros
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(content, at)
        piece = content[at + HEADER.size : at + HEADER.size + length]
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record
        at += HEADER.size + length


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return what was logged in all offline runs below a folder, in order."""
    rows = []
    for file in sorted(folder.rglob("run-*.wandb")):
        for record in iterate_records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows
