"""Sweeps: what is stored per point, what is printed, which points one of several hosts runs, and addresses of Ray."""

import json
import math
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli import sweep as boards
from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.sweeps.jobs import Job, JobStatus, Shard, run_job
from splitrelay.sweeps.points import Point, expand_points
from splitrelay.sweeps.ray_backend import check_address, make_connection_error
from splitrelay.sweeps.sweep import PointStatus, SweepStatus, find_failures, load_status, run_sweep
from tests.support.error_fields import expect_error


class Here:
    """A choose_folder where points are run: this process, one after another."""

    def __init__(self) -> None:
        self.began: list[str] = []

    def run(self, jobs: Sequence[Job], stop: Event, /) -> Generator[JobStatus | None, None, None]:
        for job in jobs:
            self.began.append(job.name)
            yield JobStatus(job.name, "running")
            told: list[JobStatus] = []
            last = run_job(job, stop, told.append)
            yield from told
            yield last


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, x=rng(4, Purpose.INSTANCES).integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def points(own: Path, *etas: str) -> list[Point]:
    words = {"data": [str(own)], "model": ["mlp"], "M": ["3"], "K": ["1"], "C": ["1"], "R": ["2"], "eta": list(etas)}
    return expand_points(None, words).points


def swept(found: list[Point], folder: Path, **how: object) -> tuple[SweepStatus, list[str]]:
    here = Here()
    *_, (board, _) = run_sweep(found, folder, here, **how)  # type: ignore[arg-type]
    return board, here.began


def test_a_run_that_diverged_is_a_result_and_not_run_again(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "1e25")
    first, _ = swept(found, tmp_path)
    again, began = swept(found, tmp_path)
    assert began == []
    assert [(entry.state, entry.why) for entry in again.entries.values()] == [
        (entry.state, entry.why) for entry in first.entries.values()
    ]
    assert list(again.entries.values())[1].state == "diverged" and "Lower eta" in list(again.entries.values())[1].why
    assert "--retry" in " ".join(boards.build_results_table(again).notes)
    assert "diverged" in CliRunner().invoke(app, ["show", str(tmp_path)]).stdout


def test_retry_runs_again_what_diverged_and_nothing_else(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "1e25")
    swept(found, tmp_path)
    (tmp_path / found[1].name / "diverged.txt").write_text("an older reason\n")
    board, began = swept(found, tmp_path, retry=True)
    assert began == [found[1].name]
    assert "Lower eta" in board.entries[found[1].name].why


def test_shares_are_all_points_each_once_and_do_not_wait_for_each_other(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "0.2", "0.3")
    shares = [Shard(i, 2) for i in (1, 2)]
    assert sorted(point.name for share in shares for point in share.select(found)) == sorted(
        point.name for point in found
    )
    first = run_sweep(found, tmp_path, Here(), shard=shares[0])
    next(first)  # at work
    _, began = swept(found, tmp_path, shard=shares[1])
    assert began == [found[1].name]
    with expect_error(InputError, what=str(tmp_path), hint="--out"):
        swept(found, tmp_path, shard=shares[0])
    list(first)
    assert {entry.state for entry in load_status(tmp_path).entries.values()} == {"done"}
    assert len(load_status(tmp_path).entries) == 3
    assert swept(found, tmp_path)[1] == []


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    answer = CliRunner().invoke(app, ["sweep", "R=1", "eta=0.1,0.2", f"--share={text}"])
    assert isinstance(answer.exception, InputError) and "I/N" in str(answer.exception)


def test_without_a_terminal_lines_have_the_time_and_now_and_then_how_far_points_are(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boards, "PRINT_SECONDS", 0.0)
    display = boards.Display()
    for board, news in run_sweep(points(own, "0.1", "0.2"), tmp_path, Here()):
        display.show(board, news)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d     [012]/2  (running|done) ", line) for line in lines)
    assert any(re.search(r"eta=0.2 round 1/2 \d+\.\d\d%  \(1 done, 1 running; \d+ s left\)", line) for line in lines)


def entry(name: str, state: str = "waiting", **more: object) -> PointStatus:
    """A point of 10 rounds of one step."""
    return PointStatus(name, f"eta={name}", {"eta": name}, 10, 1.0, state, **more)  # type: ignore[arg-type]


def board(*entries: PointStatus) -> SweepStatus:
    return SweepStatus(Path("sweep"), {each.name: each for each in entries})


def test_a_point_is_called_the_best_only_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    """The next rate beyond a grid's edge is swept alone: it may be the worst of all."""
    first, second = entry("0.1", "done", accuracy=0.1), entry("0.3", "done", accuracy=0.2)
    display = boards.Display()
    display.show(board(first), JobStatus("0.1", "done"))
    display.show(board(first, second), JobStatus("0.3", "done"))
    alone, both = capsys.readouterr().err.splitlines()
    assert "10.00%  (1 done)" in alone and "20.00%, the best so far  (2 done)" in both


def seeded(eta: str, seed: int, state: str = "done", accuracy: float | None = None) -> PointStatus:
    settings = {"eta": eta, "seed": str(seed)}
    return PointStatus(f"{eta}-{seed}", f"eta={eta} seed={seed}", settings, 10, 1.0, state, 10, accuracy)


def test_the_best_setting_has_the_best_mean_over_its_seeds() -> None:
    lucky = [seeded("0.3", 1, accuracy=0.95), seeded("0.3", 2, accuracy=0.5)]
    steady = [seeded("0.1", 1, accuracy=0.8), seeded("0.1", 2, accuracy=0.9)]
    best = board(*lucky, *steady).find_best()
    assert best is not None and best.label == "eta=0.1" and best.accuracy == pytest.approx(0.85)


@pytest.mark.parametrize("state", ["diverged", "failed", "running", "waiting"])
def test_a_setting_with_a_seed_that_has_not_finished_is_not_the_best(state: str) -> None:
    broken = [seeded("0.3", 1, accuracy=0.95), seeded("0.3", 2, state, accuracy=0.94)]
    assert board(*broken).find_best() is None
    whole = [seeded("0.1", 1, accuracy=0.2), seeded("0.1", 2, accuracy=0.2)]
    best = board(*broken, *whole).find_best()
    assert best is not None and best.label == "eta=0.1"
    assert "eta=0.3" not in boards.format_summary(board(*broken, *whole)).partition("best so far")[2]


def test_rows_that_are_told_again_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rounds were run, six of them kept in 30 s; the clock stands still while the old rows are told."""
    clock = [1000.0]
    monkeypatch.setattr("splitrelay.sweeps.sweep.time.time", lambda: clock[0])
    point = entry("0.1", round=7, before=6, spent=30.0)
    seen = board(point)
    point.update(JobStatus("0.1", "running"))
    assert seen.estimate_seconds_left() == 3 * 5.0  # at the pace of the earlier sitting
    for r in range(7):
        point.update(JobStatus("0.1", "running", r, 0.1))
    assert (point.round, point.began) == (6, 1000.0) and seen.estimate_seconds_left() == 4 * 5.0
    clock[0] += 3.0
    point.update(JobStatus("0.1", "running", 7, 0.2))
    assert seen.estimate_seconds_left() == 3 * 3.0  # at this sitting's
    clock[0] += 9.0
    point.update(JobStatus("0.1", "done"))
    assert point.measure()[0] == 12.0


def test_the_time_left_is_that_of_the_core_that_ends_last() -> None:
    """A step took one second; two cores: 4 and 10 steps are left on them, 10 are waiting."""
    past = {"before": 0, "began": 1.0, "ended": 11.0, "round": 10}
    seen = board(entry("0", "done", **past), entry("1", "running", round=6), entry("2", "running"), entry("3"))
    assert seen.estimate_seconds_left() == pytest.approx(14.0)
    seen.most_running = 3  # there is a third, which has just become free
    assert seen.estimate_seconds_left() == pytest.approx(10.0)
    seen.most_running = 2
    assert "1 done, 2 running, 1 waiting; 14 s left; next eta=3" in boards.format_summary(seen)


def test_while_points_are_being_stopped_no_time_is_told() -> None:
    past = {"began": 1.0, "ended": 11.0}
    seen = board(entry("0", "stopped", round=5, **past), entry("1", "running", round=5, **past), entry("2"))
    assert boards.format_counts(seen) == "0 done, 1 running, 1 waiting, 1 stopped"


def test_a_second_terminal_sees_the_time_left_as_soon_as_there_is_one(own: Path, tmp_path: Path) -> None:
    going = run_sweep(points(own, "0.1", "0.2"), tmp_path, Here())
    for _, news in going:
        if news and news.round == 1:
            break
    assert math.isfinite(load_status(tmp_path).estimate_seconds_left())
    shown = CliRunner().invoke(app, ["sweep", "--status", str(tmp_path)]).stdout
    assert re.search(r"1 running, 1 waiting; \d+ s left; next eta=0.2", shown), shown
    going.close()


def test_a_point_goes_on_from_its_checkpoint(own: Path, tmp_path: Path) -> None:
    (point,) = points(own, "0.1")
    swept([point], tmp_path)
    longer = replace(point, spec=point.spec.model_copy(update={"R": 4}))
    lines = (tmp_path / point.name / "rounds.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == 2
    began, _ = next(run_sweep([longer], tmp_path, Here()))
    (found,) = began.entries.values()
    assert (found.before, found.round, found.state) == (2, 2, "waiting") and found.spent > 0


def test_a_damaged_record_fails_its_point_and_no_other(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "0.2")
    folder = tmp_path / "deep/sweep"
    swept(found[:1], folder)
    (folder / found[0].name / "rounds.jsonl").write_text("{\n")
    seen, began = swept(found, folder)
    assert began == [found[1].name] and [each.state for each in seen.entries.values()] == ["failed", "done"]
    for each in (seen, load_status(folder)):
        assert "rounds.jsonl, line 1:" in each.entries[found[0].name].why
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/sweep.json").write_text("{")  # hides no failure of another sweep
    assert find_failures(tmp_path) == {folder / found[0].name: seen.entries[found[0].name].why}


def test_where_there_is_no_sweep_those_further_down_are_named(own: Path, tmp_path: Path) -> None:
    with expect_error(InputError, what=str(tmp_path), hint="sweep.json"):
        load_status(tmp_path)
    swept(points(own, "0.1"), tmp_path / "cells")
    with expect_error(InputError, what=str(tmp_path), hint=str(tmp_path / "cells")):
        load_status(tmp_path)


def test_looking_at_a_sweep_needs_no_torch(own: Path, tmp_path: Path) -> None:
    swept(points(own, "0.1"), tmp_path)
    program = (
        "import sys; from splitrelay.cli.main import app; app(sys.argv[1:], standalone_mode=False);"
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, "sweep", "--status", str(tmp_path)], check=True)


def test_a_folder_of_sweeps_is_shown_with_a_row_for_each(own: Path, tmp_path: Path) -> None:
    swept(points(own, "0.1"), tmp_path / "cells")
    swept(points(own, "0.1", "0.2"), tmp_path / "tuned/search")
    answer = CliRunner().invoke(app, ["sweep", "--status", str(tmp_path), "--format", "csv"])
    assert answer.stdout.splitlines()[1:] == ["cells,1,0,0,0,0,0,,", "tuned/search,2,0,0,0,0,0,,"]


def test_show_tells_of_a_sweep_that_is_under_way(own: Path, tmp_path: Path) -> None:
    going = run_sweep(points(own, "0.1", "0.2"), tmp_path, Here())
    for _, news in going:
        shown = CliRunner().invoke(app, ["show", str(tmp_path)]).stdout
        assert "; next eta=0.2" in shown if news else "0 done, 2 waiting" in shown  # from before the first row on
        if news and news.round == 1:
            break
    assert re.search(r"0 done, 1 running, 1 waiting; \d+ s left; next eta=0.2 \(every point: sweep --status ", shown)
    going.close()
    assert "left" not in CliRunner().invoke(app, ["show", str(tmp_path)]).stdout


def test_what_is_being_stopped_is_said_with_its_round(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display, halted = boards.Display(), board(entry("0", "stopped", round=5), entry("1", "running"), entry("2"))
    display.show(halted, JobStatus("0", "stopped"))
    halted.entries["1"].state = "stopped"
    display.show(halted, JobStatus("1", "stopped"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("stopped   eta=0 round 5/10  (1 still at a visit)")
    assert second.endswith("stopped   eta=1  (2 to be continued, 1 not started)")


def test_words_that_need_nobody_to_answer() -> None:
    assert check_address("ray") is None
    assert check_address("auto") == "auto"


@pytest.mark.parametrize("word", ["head", "head:", ":6379", "head:0", "head:65536", "head:x", "ray://", "", "slurm"])
def test_what_is_no_address_is_refused(word: str) -> None:
    with expect_error(InputError, value=repr(word), limit=("host:port", "ray://host:port")):
        check_address(word)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_answers_is_refused(form: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ["sweep", "data=digits", "R=1", "eta=0.1,0.3", "--on", form.format(port), "--out", str(tmp_path / "sweep")]
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, InputError)
    assert str(port) in str(answer.exception) and "ray start --head" in str(answer.exception)
    assert not (tmp_path / "sweep").exists()


def test_a_host_that_is_too_slow_is_not_taken_for_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert "token" in str(make_connection_error("ray://head:1", ConnectionError("Unauthenticated")))
    slow = str(
        make_connection_error(
            "ray://head:1", ConnectionError("RuntimeError: Starting Ray client server failed. See x.err")
        )
    )
    assert "token" not in slow


def test_the_messengers_process_reads_no_torch() -> None:
    """It starts beside those that do: with torch in it too, a sweep on Ray would begin seconds later."""
    code = "import sys, splitrelay.sweeps.ray_backend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
