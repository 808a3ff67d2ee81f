"""A sweep ends with the bits of its runs made one by one, whatever is killed or stopped on the way."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.console import FINISHING
from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.sweeps.points import Point, check_points, expand_points
from splitrelay.sweeps.process_backend import ProcessBackend
from splitrelay.sweeps.sweep import SweepStatus, load_status, run_sweep
from tests.support.error_fields import expect_error

ENDLESS = 100_000  # rounds
LONG = 60  # rounds in which there is time to kill somebody
PATIENCE = 300_000  # milliseconds for a process to end


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    generator = rng(4, Purpose.INSTANCES)
    np.savez(path, x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def values(own: Path, R: int, **more: list[str]) -> dict[str, list[str]]:
    return {"data": [str(own)], "model": ["mlp"], "M": ["5"], "K": ["2"], "C": ["1"], "R": [str(R)], **more}


def points(own: Path, R: int, **more: list[str]) -> list[Point]:
    return expand_points(None, values(own, R, **more)).points


def swept(found: list[Point], folder: Path) -> SweepStatus:
    *_, (board, _) = run_sweep(found, folder, ProcessBackend(1))
    return board


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in RunDirectory(path).read_rows()]


def assert_as_by_hand(found: list[Point], folder: Path, by_hand: Path) -> None:
    for point in found:
        list(execute(point.spec, RunDirectory(by_hand / point.name)))
        one, other = folder / point.name, by_hand / point.name
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        assert rows(one) == rows(other)


def offspring(pid: int) -> list[int]:
    """The worker processes of a sweep."""
    found = []
    for status_file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status_file.read_text().rpartition(")")[2].split()[1])
            command = (status_file.parent / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if parent == pid and b"splitrelay.sweeps.process_backend" in command:
            found.append(int(status_file.parent.name))
    return found


def test_a_sweep_is_its_runs_and_one_that_fails_stops_no_other(own: Path, tmp_path: Path) -> None:
    found = points(own, 3, algorithm=["ssl", "scaffold"], eta=["0.1", "1e25"])
    board = swept(found, tmp_path / "sweep")
    assert [entry.state for entry in board.entries.values()] == ["done", "diverged", "done", "diverged"]
    assert "Lower eta" in list(board.entries.values())[1].why
    assert_as_by_hand([found[0], found[2]], tmp_path / "sweep", tmp_path / "hand")
    assert load_status(tmp_path / "sweep") == board
    # What is finished is not run again, also under another readable name.
    before = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("ssl-eta0.1*/*") if path.name[0] != "."
    }
    again = list(run_sweep(points(own, 3, eta=["0.1"]), tmp_path / "sweep", ProcessBackend(2)))
    assert [news for _, news in again] == [None]
    assert {path: path.stat().st_mtime_ns for path in before} == before != {}


def test_a_killed_process_takes_only_its_own_point_with_it(own: Path, tmp_path: Path) -> None:
    found = points(own, LONG, seed=["1", "2"])
    kills = 0
    for _, news in run_sweep(found, tmp_path / "sweep", ProcessBackend(1)):
        if news and news.round == 3 and not kills:
            kills += 1
            os.kill(offspring(os.getpid())[0], signal.SIGKILL)
    entries = list(load_status(tmp_path / "sweep").entries.values())
    assert [entry.state for entry in entries] == ["failed", "done"]
    assert "killed by SIGKILL" in entries[0].why
    assert swept(found, tmp_path / "sweep").count("done") == 2
    assert_as_by_hand(found[:1], tmp_path / "sweep", tmp_path / "hand")


def test_a_stop_waits_for_the_visit_and_can_be_taken_up(own: Path, tmp_path: Path) -> None:
    found, stop = points(own, LONG, seed=["1", "2"]), Event()
    with pytest.raises(KeyboardInterrupt):
        for _, news in run_sweep(found, tmp_path / "sweep", ProcessBackend(1), stop=stop):
            if news and news.round == 3:
                stop.set()
    assert [entry.state for entry in load_status(tmp_path / "sweep").entries.values()] == ["stopped", "waiting"]
    assert 3 <= len(rows(tmp_path / "sweep" / found[0].name)) < LONG
    assert offspring(os.getpid()) == []
    assert swept(found, tmp_path / "sweep").count("done") == 2
    assert_as_by_hand(found[:1], tmp_path / "sweep", tmp_path / "hand")


def test_a_stop_does_not_wait_for_a_point_that_is_still_starting(own: Path, tmp_path: Path) -> None:
    found, stop = points(own, 2, seed=["1", "2"]), Event()
    with pytest.raises(KeyboardInterrupt):
        for _, news in run_sweep(found, tmp_path / "sweep", ProcessBackend(1), stop=stop):
            if news:  # it was told to begin, and has yet to read torch
                stop.set()
    assert [entry.state for entry in load_status(tmp_path / "sweep").entries.values()] == ["stopped", "waiting"]
    assert list((tmp_path / "sweep").rglob("rounds.jsonl")) == [] == offspring(os.getpid())


def start_sweep(own: Path, folder: Path) -> subprocess.Popen[str]:
    """The command itself, at work on the first of two points."""
    words = [f"{name}={','.join(texts)}" for name, texts in values(own, ENDLESS, seed=["1", "2"]).items()]
    command = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "sweep", *words, "--jobs", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(folder)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    assert "running" in process.stderr.readline()
    return process


def test_no_process_outlives_a_sweep_that_is_killed(own: Path, tmp_path: Path) -> None:
    process = start_sweep(own, tmp_path / "sweep")
    workers = [os.pidfd_open(pid) for pid in offspring(process.pid)]
    assert len(workers) == 1
    process.kill()
    process.communicate()
    for worker in workers:
        watch = select.poll()
        watch.register(worker, select.POLLIN)
        assert watch.poll(PATIENCE), "a worker lives on"
        os.close(worker)
    assert [entry.state for entry in load_status(tmp_path / "sweep").entries.values()] == ["stopped", "waiting"]


def test_ctrl_c_tells_how_to_go_on(own: Path, tmp_path: Path) -> None:
    process = start_sweep(own, tmp_path / "sweep")
    seen = CliRunner().invoke(app, ["sweep", "--status", str(tmp_path / "sweep"), "--format", "json"])
    assert [point["state"] for point in json.loads(seen.stdout)["points"]] == ["running", "waiting"]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"splitrelay sweep data={own}" in said and "0/2  stopped" in said and FINISHING in said


def test_ctrl_c_twice_stops_at_once_and_can_be_taken_up(own: Path, tmp_path: Path) -> None:
    process = start_sweep(own, tmp_path / "sweep")
    first, _ = check_points(points(own, LONG, seed=["1", "2"])).points
    while len(rows(tmp_path / "sweep" / first.name)) < 3:
        assert process.poll() is None and not Event().wait(0.05)
    workers = [os.pidfd_open(pid) for pid in offspring(process.pid)]
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # both at once; SIGTERM is a Ctrl-C
        process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130 and "0/2  stopped" not in said
    assert f"splitrelay sweep data={own}" in said and "Traceback" not in said
    for worker in workers:
        watch = select.poll()
        watch.register(worker, select.POLLIN)
        assert watch.poll(PATIENCE), "a worker lives on"
        os.close(worker)
    assert [entry.state for entry in load_status(tmp_path / "sweep").entries.values()] == ["stopped", "waiting"]
    endless = check_points(points(own, ENDLESS, seed=["1", "2"])).points
    kept, stop = len(rows(tmp_path / "sweep" / first.name)), Event()
    with pytest.raises(KeyboardInterrupt):
        for _, news in run_sweep(endless, tmp_path / "sweep", ProcessBackend(1), stop=stop):
            if news and news.round and news.round > max(kept, LONG):
                stop.set()
    list(execute(first.spec, RunDirectory(tmp_path / "hand")))
    assert rows(tmp_path / "sweep" / first.name)[: first.spec.R + 1] == rows(tmp_path / "hand")


def test_two_sweeps_do_not_share_a_folder(own: Path, tmp_path: Path) -> None:
    found = points(own, 1, eta=["0.1"])
    with (
        RunDirectory(tmp_path / "sweep").locked(),
        expect_error(InputError, what=str(tmp_path / "sweep"), hint="--out"),
    ):
        next(run_sweep(found, tmp_path / "sweep", ProcessBackend(1)))
